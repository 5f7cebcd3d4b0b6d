"""Chaos: real workers and servers are harmed by a seed, and an offline checker reads what four witnesses say.

    make chaos MINUTES=10 SEED=1

campaign.py starts a primary with an asynchronous standby (servers.py), workers behind proxies (workers.py, proxy.py),
half of them behind PgBouncer too (pooler.py), submitters (load.py) and schedules (recurring.py); nemesis.py does the
damage, ghost.py repeats what holders of ended claims might have said. The witnesses: triggers that see every change of
a job (recorder.sql), the submitters, a file in which the handlers note what they do (jobs.py), and the tables in the
end. All of it is a History (history.py), checked by checker.py and later.py, and told by report.py.

The invariants are those of which the engine has the parts: I1 no submission is lost; I2 one claim at a time; I3 fences
grow, and only the holder writes; I4 an end is an end; I5 attempts are accounted for; I6 nothing is stuck; I7 children
come after their parents; I8 each fire makes one job; I10 keys are unique; I11 a batch's callback comes once, and last;
I12 effects have a claim; I13 nothing is left over; I14 what should stay small does (times are for benchmarks, on a
quiet machine); I15 neighbours and faults fail nobody. There are no limits (I9) yet.
"""
