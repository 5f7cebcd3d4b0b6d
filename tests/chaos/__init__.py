"""Chaos: real workers and servers are harmed by a seed, and an offline checker reads what four witnesses say.

    make chaos MINUTES=10 SEED=1

campaign.py starts a primary with an asynchronous standby (servers.py), workers behind proxies (workers.py, proxy.py)
and submitters (load.py); nemesis.py does the damage, ghost.py repeats what holders of ended claims might have said.
The witnesses: triggers that see every change of a job (recorder.sql), the submitters, a file in which the handlers
note what they do (jobs.py), and the tables in the end. All of it is a History (history.py), checked by checker.py and
told by report.py.

The invariants are those of which the engine has the parts: I1 to I7, I10, I12, I13, I15. Schedules (I8), limits (I9)
and batches (I11) are not submitted yet; that times and sizes stay bounded (I14) is for benchmarks on a quiet machine.
"""
