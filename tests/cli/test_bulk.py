"""Cancel, retry and prune by ids and by filters: what is asked, what is done, what is said."""

import asyncio
import json

import pytest

from .commands import claim, column, declare, fail, insert, statuses, until, usage

MANY = 2500


@pytest.fixture
async def db(connect):
    """A connection to a database where the kinds k and other are declared."""
    connection = await connect()
    await declare(connection, "k", "other")
    return connection


def answer(**groups):
    return {"cancelled": [], "requested": [], "ended": [], "missing": []} | groups


# By id.


async def test_cancel_says_what_happened_to_each(run, submit, db):
    running = submit("k")
    await claim(db, "k")
    parent, other = submit("k"), submit("k")
    child = submit("k", "--depends-on", parent)

    first = run("cancel", parent, running, other)
    second = run("cancel", parent, 999, 998, parent)

    assert vars(first) == {
        "code": 0,
        "out": f"2 jobs cancelled: {parent}, {other}\n1 job asked to stop: {running}\n",
        "err": "",
    }
    assert (second.code, second.out) == (1, f"1 job had ended before: {parent}\n")
    assert second.err == "scheduler: 2 jobs not found: 998, 999\n"
    assert column(run("jobs").out, "status") == ["CANCELLED"] * 3 + ["RUNNING"]
    assert f"cancelled by  {parent}" in run("job", child).out
    assert "asked to stop" in run("jobs", "--status", "running").out


async def test_a_long_answer_is_cut_with_a_count_for_people_and_whole_for_programs(run, db):
    first, second = await insert(db, 12), await insert(db, 12)

    words, told = run("cancel", *first), run("cancel", "--json", *second, 999)

    assert words.out == f"12 jobs cancelled: {', '.join(map(str, first[:10]))} and 2 more\n"
    assert json.loads(told.out) == answer(cancelled=second, missing=[999])
    assert (words.code, told.code, told.err) == (0, 1, "")


async def test_retry_revives_what_the_failure_cancelled(run, submit, db):
    (parent,) = await fail(db, 1)
    child = submit("k", "--depends-on", parent)
    running = submit("k")
    await claim(db, "k")
    await db.execute("SELECT scheduler.resolve(NULL, 100)")
    assert await statuses(db, [parent, child, running]) == {"FAILED": 1, "CANCELLED": 1, "RUNNING": 1}

    done = run("retry", parent, running)

    assert done.out == (
        f"1 job retried: {parent}\n"
        f"1 job revived: {child} (cancelled by such a failure)\n"
        f"1 job had not ended: {running}\n"
    )
    assert (done.code, done.err) == (0, "")
    assert await statuses(db, [parent, child]) == {"PENDING": 1, "BLOCKED": 1}


async def test_retry_of_what_cannot_run_again_exits_1_with_the_reason(run, submit, db):
    first = submit("k", "--unique-key", "u")
    run("cancel", first)
    submit("k", "--unique-key", "u")

    done = run("retry", first, 999)

    assert (done.code, done.out) == (1, "")
    missing, refused = done.err.splitlines()
    assert refused.startswith(f"scheduler: 1 job refused: {first} (")
    assert "unique_key" in refused
    assert missing == "scheduler: 1 job not found: 999"


async def test_prune_deletes_what_ended_and_keeps_a_parent_of_an_unfinished_child(run, submit, db):
    gone, parent = await fail(db, 2)
    child = submit("other", "--delay", "1h")
    await db.execute("INSERT INTO scheduler.dependencies VALUES ($1, $2)", parent, child)
    waiting = submit("k")

    done = run("prune", gone, parent, waiting, 999)

    assert (done.code, done.out) == (1, f"1 job pruned: {gone}\n")
    kept = done.err.replace("\n", " ")
    assert all(line.startswith("scheduler: 1 job ") for line in done.err.splitlines())
    assert all(f": {job_id} " in kept for job_id in (parent, waiting, 999))
    assert run("job", gone).code == 1
    assert run("job", parent).code == 0


# By filters.


@pytest.mark.parametrize("verb", ["cancel", "retry", "prune"])
def test_neither_ids_nor_filters_nor_both_are_accepted(verb):
    neither, both = usage(verb), usage(verb, "1", "--kind", "k", "--yes")
    everything = usage(verb, "--yes")

    for refused in (neither, both, everything):
        assert (refused.code, refused.out) == (2, "")
        said = " ".join(refused.err.split())
        assert f"by id, as in `scheduler {verb} 12 13`" in said
        assert f"by filters, as in `scheduler {verb} --kind NAME`" in said
    assert "not by both" in both.err


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["cancel", "--status", "completed"], "'blocked', 'delayed', 'pending', 'running'."),
        (["retry", "--status", "running"], "'failed', 'timed_out', 'cancelled'."),
        (["prune", "--status", "pending"], "'completed', 'failed', 'timed_out', 'cancelled'."),
    ],
)
def test_a_status_that_the_verb_does_not_change_is_wrong_usage(words, allowed):
    refused = usage(*words, "--yes")

    assert refused.code == 2
    assert allowed in " ".join(refused.err.split()).lower()


def test_filters_without_a_terminal_need_yes(installed, terminal, submit):
    job_id = submit("k")

    for words in (["cancel", "--kind", "k"], ["retry", "--kind", "k"], ["prune", "--kind", "k", "--json"]):
        refused = installed(*words)

        assert (refused.code, refused.out) == (1, "")
        said = f"scheduler: {words[0]} by filters asks before it acts, and nobody can be asked here: add --yes\n"
        assert refused.err == said
    code, text = terminal("cancel", "--kind", "k", "--json").end()
    assert (code, text.count("\n")) == (1, 1)
    assert json.loads(installed("job", job_id, "--json").out)["status"] == "PENDING"


async def test_a_preview_shows_counts_and_the_first_jobs_and_asks(terminal, db):
    ids = await insert(db, 7) + await insert(db, 1, run_at=await db.fetchval("SELECT now() + interval '1 day'"))
    others = await insert(db, 2, "other")

    asked = terminal("cancel", "--kind", "k")
    preview = asked.expect_question("cancel them? [y/N]:")
    asked.type("n\n")
    code, text = asked.end()

    assert preview.startswith("8 jobs match: 1 DELAYED, 7 PENDING\n\n")
    table, more, _ = preview.partition("\n\n")[2].partition("\nand 3 more\n")
    assert more
    assert column(table, "id") == [str(job_id) for job_id in ids[:2:-1]]
    assert (code, text.splitlines()[-1]) == (1, "scheduler: nothing was changed")
    assert "CANCELLED" not in await statuses(db, ids)

    agreed = terminal("cancel", "--kind", "k")
    agreed.expect_question("cancel them? [y/N]:")
    agreed.type("y\n")
    code, text = agreed.end()

    assert code == 0
    assert "\n8 jobs cancelled: " in text
    assert await statuses(db, ids + others) == {"CANCELLED": 8, "PENDING": 2}


async def test_what_is_submitted_after_the_preview_is_left_alone(terminal, db):
    (seen,) = await insert(db, 1)

    asked = terminal("cancel", "--kind", "k")
    preview = asked.expect_question("cancel it? [y/N]:")
    (late,) = await insert(db, 1)
    asked.type("y\n")
    code, text = asked.end()

    assert preview.startswith("1 job matches: 1 PENDING\n")
    assert (code, f"1 job cancelled: {seen}\n" in text) == (0, True)
    assert await statuses(db, [late]) == {"PENDING": 1}


async def test_ctrl_c_at_the_question_changes_nothing(terminal, db):
    ids = await insert(db, 1)

    asked = terminal("cancel", "--kind", "k")
    asked.expect_question("cancel it? [y/N]:")
    asked.interrupt()
    code, text = asked.end()

    assert (code, text.splitlines()[-1]) == (130, "cancel it? [y/N]: ^C")
    assert await statuses(db, ids) == {"PENDING": 1}


async def test_filters_that_match_nothing_say_so_and_change_nothing(run, db):
    await insert(db, 1)

    words, told = run("cancel", "--kind", "other", "--yes"), run("cancel", "--kind", "other", "--yes", "--json")

    assert vars(words) == {"code": 0, "out": "", "err": "scheduler: no job matches\n"}
    assert (told.code, json.loads(told.out)) == (0, answer())


async def test_2500_jobs_are_cancelled_in_batches(installed, db):
    ids, others = await insert(db, MANY), await insert(db, 1, "other")

    done = installed("cancel", "--kind", "k", "--yes")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2,500 jobs cancelled: ")
    assert done.out.endswith(" and 2,490 more\n")
    assert await statuses(db, ids + others) == {"CANCELLED": MANY, "PENDING": 1}
    assert await db.fetchval("SELECT count(DISTINCT xmin::text) FROM scheduler.jobs_finished") >= 3


async def test_2500_ids_are_cancelled_in_batches_and_told_to_programs(run, db):
    ids = await insert(db, MANY)

    done = run("cancel", "--json", *ids)

    told = json.loads(done.out)
    assert sorted(told.pop("cancelled")) == ids
    assert set(told) == {"requested", "ended", "missing"}
    assert await db.fetchval("SELECT count(DISTINCT xmin::text) FROM scheduler.jobs_finished") >= 3


@pytest.mark.slow
async def test_2500_failed_jobs_are_retried_and_those_cancelled_on_purpose_are_not(run, db):
    await db.execute("UPDATE scheduler.kinds SET max_attempts = 1")
    ids, cancelled = await fail(db, MANY), await insert(db, 2)
    run("cancel", *cancelled)

    done = run("retry", "--kind", "k", "--yes")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2,500 jobs retried: ")
    assert await statuses(db, ids + cancelled) == {"PENDING": MANY, "CANCELLED": 2}
    assert "2 jobs retried" in run("retry", "--status", "cancelled", "--yes").out


async def test_a_child_refused_in_a_batch_before_that_of_its_parent_is_told_as_revived(run, submit, db):
    (parent,) = await fail(db, 1)
    between = await insert(db, 1000)
    await db.fetchval("SELECT scheduler.cancel($1)", between)
    child = submit("k", "--depends-on", parent)
    await db.execute("SELECT scheduler.resolve(NULL, 100)")
    assert await statuses(db, [child]) == {"CANCELLED": 1}

    done = run("retry", "--kind", "k", "--status", "failed", "--status", "cancelled", "--yes", "--json")

    told = json.loads(done.out)
    assert (done.code, told["revived"], told["refused"]) == (0, [child], [])
    assert set(told["retried"]) == {parent, *between}


async def test_2500_finished_jobs_are_pruned(run, db):
    ids = await insert(db, MANY)
    run("cancel", *ids)

    done = run("prune", "--status", "cancelled", "--yes")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2,500 jobs pruned: ")
    assert await statuses(db, ids) == {}


async def test_filters_choose_by_error_text_age_queue_and_tenant(run, db):
    (by_error,), (other_error,) = (
        await fail(db, 1, error="100% of _disk_ full"),
        await fail(db, 1, error="100x of xdisk"),
    )
    (old,), (young,) = await fail(db, 1, "other"), await fail(db, 1, "other")
    await db.execute("UPDATE scheduler.jobs_finished SET submitted_at = now() - interval '3 hours' WHERE id = $1", old)
    (by_queue,), (by_tenant,) = await fail(db, 1, queue="mail"), await fail(db, 1, tenant="acme")

    def retried(*filters):
        return json.loads(run("retry", "--yes", "--json", *filters).out)["retried"]

    assert retried("--error", "100% of _disk_") == [by_error]
    assert retried("--kind", "other", "--older-than", "2h") == [old]
    assert retried("--kind", "other", "--newer-than", "2h", "--older-than", "0s") == [young]
    assert retried("--queue", "mail") == [by_queue]
    assert retried("--tenant", "acme", "--status", "failed") == [by_tenant]
    assert await statuses(db, [other_error]) == {"FAILED": 1}


# While it runs.


async def waits_for_a_lock(db):
    return await db.fetchval(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'scheduler' AND wait_event_type = 'Lock'"
        " AND datname = current_database()"
    )


@pytest.mark.parametrize("words", [["--yes"], []], ids=["unasked", "asked"])
async def test_ctrl_c_finishes_the_batch_in_hand_and_says_how_many_were_done(terminal, db, connect, words):
    ids = await insert(db, MANY)
    holder = await connect()
    lock = holder.transaction()
    await lock.start()
    await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", ids[MANY // 2])

    bulk = terminal("cancel", "--kind", "k", *words)
    if not words:
        bulk.expect_question("cancel them? [y/N]:")
        bulk.type("y\n")
    await until(lambda: waits_for_a_lock(db))
    bulk.interrupt()
    bulk.expect("^C")
    await lock.rollback()
    code, text = await asyncio.to_thread(bulk.end)

    assert code == 130
    assert await statuses(db, ids) == {"CANCELLED": 2000, "PENDING": 500}  # the second batch was held
    assert "scheduler: stopped after 2,000 of 2,500 jobs: the same command goes on with the rest\n" in text
    assert "2,000 jobs cancelled: " in text
    assert "Aborted" not in text


async def test_a_bulk_on_a_terminal_shows_how_far_it_has_come(terminal, db, connect):
    ids = await insert(db, MANY)
    holder = await connect()
    lock = holder.transaction()
    await lock.start()
    await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", ids[MANY // 2])

    bulk = terminal("cancel", "--kind", "k", "--yes")
    await asyncio.to_thread(bulk.expect, "1000/2500")
    await lock.rollback()
    code, text = await asyncio.to_thread(bulk.end)

    assert code == 0
    assert "2,500 jobs cancelled: " in text


async def test_a_bulk_that_loses_the_database_says_what_was_done(terminal, db, connect):
    ids = await insert(db, MANY)
    holder = await connect()
    lock = holder.transaction()
    await lock.start()
    await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", ids[MANY // 2])

    bulk = terminal("cancel", "--kind", "k", "--yes")
    await until(lambda: waits_for_a_lock(db))
    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'scheduler' AND wait_event_type = 'Lock' AND datname = current_database()"
    )
    code, text = await asyncio.to_thread(bulk.end)
    await lock.rollback()

    done = (await statuses(db, ids))["CANCELLED"]
    assert code == 4
    assert f"{done:,} jobs cancelled: " in text
    assert "scheduler: PostgreSQL cannot be reached: " in text
