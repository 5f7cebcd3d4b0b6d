"""who_runs tells where a kind is run, and which names there are."""

import json
import uuid

from .steps import declare


async def who_runs(connection, kind):
    return json.loads(await connection.fetchval("SELECT scheduler.who_runs($1)", kind))


async def register(db, queues, kinds, slots=("async",), *, draining=False):
    facts = {
        "host": "h", "pid": 1, "version": "1", "queues": queues, "kinds": kinds, "channel": "c",
        "slots": dict.fromkeys(slots, 5), "draining": draining,
    }  # fmt: skip
    await db.execute("SELECT scheduler.register($1, $2)", uuid.uuid4(), json.dumps(facts))


async def test_a_kind_is_run_from_the_queues_of_live_workers_that_have_slots_for_it(db, clock):
    await declare(db, {"kind": "child", "executor": "process"})
    await register(db, ["default", "gone"], ["k", "child"])
    await clock.advance(61)
    await register(db, ["default", "mail"], ["k", "child"])
    await register(db, ["draining"], ["k"], draining=True)
    await register(db, ["elsewhere"], ["other"])

    assert sorted((await who_runs(db, "k"))["served"]) == ["default", "mail"]
    assert (await who_runs(db, "child"))["served"] == []
    assert (await who_runs(db, "nobody"))["served"] == []


async def test_the_names_are_those_that_were_declared_or_are_served_and_not_those_of_waiting_rows(db, login):
    await declare(db, {"kind": "send", "queue": "mail"})
    await db.execute('SELECT scheduler.declare(\'[]\', \'[{"queue": "strict", "ordering": "strict"}]\')')
    await register(db, ["served"], ["k"])
    submitter = await login("scheduler_submitter")
    await submitter.execute("INSERT INTO scheduler.jobs (kind, queue) VALUES ('sned', 'mial')")

    found = await who_runs(submitter, "sned")

    assert found["queue"] is None
    assert sorted(found["kinds"]) == ["k", "send"]
    assert sorted(found["queues"]) == ["default", "mail", "served", "strict"]
    assert (await who_runs(submitter, "send"))["queue"] == "mail"
