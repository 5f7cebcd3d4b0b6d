"""The commands jobs and job: what they find and how it is shown."""

import json
import os
import re
import subprocess
from datetime import datetime

from .commands import PROGRAM, claim, column, declare, fail, insert, settle


def test_an_empty_list_says_so_in_words(run):
    assert vars(run("jobs")) == {"code": 0, "out": "", "err": "scheduler: there are no jobs\n"}
    assert vars(run("jobs", "--kind", "k")) == {"code": 0, "out": "", "err": "scheduler: no job matches\n"}
    assert vars(run("jobs", "--json")) == {"code": 0, "out": "[]\n", "err": ""}


async def test_jobs_lists_newest_first_in_80_columns(installed, submit, db):
    await declare(db, "k", "shop.reports.monthly_report_of_all_customers")
    failed, running = submit("k", "--priority", "high"), submit("shop.reports.monthly_report_of_all_customers")
    delayed, plain = submit("k", "--delay", "2h"), submit("k", "--priority", "-7")
    await settle(db, await claim(db, "k"), "failed", retryable=False, error_type="ValueError", error="é\x1b[31m\n" * 50)
    await claim(db, "shop.reports.monthly_report_of_all_customers")

    table = installed("jobs").out

    assert table.splitlines()[0].split() == ["id", "kind", "status", "queue", "prio", "tries", "age", "error"]
    assert column(table, "id") == [str(job_id) for job_id in (plain, delayed, running, failed)]
    assert column(table, "status") == ["PENDING", "DELAYED", "RUNNING", "FAILED"]
    assert column(table, "prio") == ["-7", "medium", "medium", "high"]
    assert column(table, "tries") == ["0", "0", "1", "1"]
    assert column(table, "queue") == ["default"] * 4
    assert "in 119m" in table or "in 2h" in table
    assert "shop.reports." in table
    assert "ValueError: é\ufffd" in table
    assert "\x1b" not in table
    assert max(map(len, table.splitlines())) <= 80


async def test_jobs_are_filtered(run, submit, db):
    await declare(db, "a", "b")
    ids = [submit(kind, "--tenant", tenant) for kind, tenant in (("a", "x"), ("a", "y"), ("b", "x"))]
    run("cancel", ids[0])

    def listed(*words):
        return [job["id"] for job in json.loads(run("jobs", "--json", *words).out)]

    assert listed() == ids[::-1]
    assert listed("--status", "pending") == [ids[2], ids[1]]
    assert listed("--status", "pending", "--status", "CANCELLED", "--kind", "a") == [ids[1], ids[0]]
    assert listed("--tenant", "x") == [ids[2], ids[0]]
    assert listed("--queue", "default", "--limit", "1") == [ids[2]]
    assert listed("--before", ids[2]) == [ids[1], ids[0]]


async def test_jobs_are_filtered_by_age_and_by_the_text_of_the_error(run, db):
    await declare(db, "k")
    (full,), (gone,) = await fail(db, 1, error="Disk 100% full"), await fail(db, 1, error="disk 100 full")
    (old,) = await insert(db, 1)
    await db.execute("UPDATE scheduler.jobs_active SET submitted_at = now() - interval '3 hours' WHERE id = $1", old)

    def listed(*words):
        return [job["id"] for job in json.loads(run("jobs", "--json", *words).out)]

    assert listed("--error", "100% full") == [full]
    assert listed("--error", "full") == [gone, full]
    assert listed("--older-than", "2.5h") == [old]
    assert listed("--older-than", "1d") == []
    assert listed("--newer-than", "180m") == [gone, full]
    assert listed("--newer-than", "1d", "--older-than", "60s") == [old]


def test_a_kind_that_nobody_declared_is_visible(run, submit):
    job_id = submit("unheard_of")

    table, page = run("jobs").out, run("job", job_id).out

    assert column(table, "queue") == ["-"]
    assert column(table, "error") == ["kind not declared"]
    assert "waits for" in page
    assert "a declaration of unheard_of: run `scheduler declare`" in page
    run("cancel", job_id)
    assert "declar" not in run("jobs").out


def test_json_instants_are_iso_8601_and_payloads_stay_out(run, submit):
    job_id = submit("k", '{"to": "hush"}')

    (listed,) = json.loads(run("jobs", "--json").out)
    one = json.loads(run("job", job_id, "--json").out)

    assert datetime.fromisoformat(listed["submitted_at"]).utcoffset() is not None
    assert (listed["id"], listed["kind"], listed["status"]) == (job_id, "k", "PENDING")
    assert one["attempts"] == []
    assert not {"payload", "result"} & {*listed, *one}
    assert "hush" not in run("job", job_id).out
    assert '"to": "hush"' in run("job", job_id, "--payload").out


async def test_job_shows_facts_attempts_and_the_newest_traceback(run, submit, db):
    await declare(db, "k")
    job_id = submit("k", "--tenant", "acme")
    child = submit("k", "--depends-on", job_id)
    trace = "Traceback:\n  File x\nOSError: \x1b]0;title\a gone"
    await settle(db, await claim(db, "k"), "failed", error_type="OSError", error="gone", traceback=trace, delay=0)
    await db.execute("SELECT scheduler.promote(10)")
    await settle(db, await claim(db, "k"), "completed", result={"n": 1})

    page = run("job", job_id, "--payload").out

    assert page.startswith(f"job {job_id}  k  COMPLETED\n")
    for fact in (
        r"attempts +2",
        r"failures +1 of at most 5",
        r"tenant +acme",
        rf"children +{child}",
        r"submitted +\d{4}-",
    ):
        assert re.search(rf"^  {fact}", page, re.MULTILINE), fact
    table = page[page.index("attempt  outcome") :].split("\n\n")[0]
    assert table.splitlines()[0].split() == ["attempt", "outcome", "started", "duration", "worker", "error"]
    assert column(table, "outcome") == ["failed", "completed"]
    assert column(table, "error") == ["OSError: gone", ""]
    assert re.search(r"\d ms|\d s", table)
    assert "traceback of attempt 1\nTraceback:\n  File x\nOSError: \ufffd]0;title\ufffd gone\n" in page
    assert page.endswith('payload\n{}\n\nresult\n{\n  "n": 1\n}\n')


async def test_job_tells_that_a_batch_is_open_and_how_it_ends(run, db):
    batch = await db.fetchval("SELECT scheduler.submit('k', '{}', '{\"batch\": true}')")

    shown = run("job", str(batch)).out
    assert f"open_batch    until close_batch({batch}), or `scheduler cancel {batch}`" in shown
    assert "depends on" not in shown

    await db.execute("SELECT scheduler.close_batch($1)", batch)
    assert "open_batch" not in run("job", str(batch)).out


def test_a_job_that_does_not_exist_exits_1(run):
    for words in (["job", 999], ["job", 999, "--json"]):
        assert vars(run(*words)) == {
            "code": 1,
            "out": "",
            "err": "scheduler: job 999 does not exist\n",
        }


def test_a_reader_that_goes_away_is_no_error(submit, dsn):
    submit("k")
    pipeline = f"{PROGRAM} jobs --json | true"

    environment = os.environ | {"SCHEDULER_DSN": dsn}
    done = subprocess.run(pipeline, shell=True, env=environment, capture_output=True, text=True, check=False)

    assert done.stderr == ""
