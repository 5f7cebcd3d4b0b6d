"""The invariants of what somebody else decides later: jobs of schedules (I8), and callbacks of batches (I11).

What a schedule names is computed here without the engine's calendar, so a campaign has simple ones only: so often, or
`*/n * * * * *`.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from .history import Row, Schedule
from .lives import Lives

Finding = Iterator[str]
SECOND = 1_000_000
# How many unfinished jobs of its own let a fire make none.
TOO_MANY = {"skip": 1, "queue_one": 2, "allow": float("inf")}


def rhythm(schedule: Schedule) -> tuple[int, int]:
    """Return a time that the schedule names, and the distance to the next one."""
    if schedule.cron is not None:
        return 0, int(schedule.cron.removeprefix("*/").removesuffix(" * * * * *")) * SECOND
    return schedule.starts_at, schedule.every or 0


def fires_of(lives: Lives, schedule: Schedule) -> list[Row]:
    rows = (row for row in lives.history.rows if row.schedule == schedule.id)
    return sorted(rows, key=lambda row: row.fire_time or 0)


def fires_are_named(lives: Lives) -> Finding:
    """I8: a schedule fires at the times that its definition names, none of them twice, and none before it has come."""
    schedules = {schedule.id: schedule for schedule in lives.history.schedules}
    made = Counter((row.schedule, row.fire_time) for row in lives.history.rows if row.schedule is not None)
    yield from (f"schedule {schedule} made {n} jobs for {time}" for (schedule, time), n in made.items() if n > 1)
    yield from (f"schedule {one.id} stands still: {one.error}" for one in schedules.values() if one.error is not None)
    for row in lives.history.rows:
        if row.schedule is None:
            continue
        schedule, time = schedules.get(row.schedule), row.fire_time or 0
        if schedule is None:
            yield f"job {row.id} is of schedule {row.schedule}, which nobody made"
            continue
        start, step = rhythm(schedule)
        if time < schedule.starts_at or (schedule.mode != "fixed_delay" and (time - start) % step):
            yield f"job {row.id} was made for {time}, which schedule {schedule.id} does not name"
        life = lives.moves.get(row.id)
        if life and round(life[0].at * SECOND) < time:
            yield f"job {row.id} of schedule {schedule.id} was made before {time} had come"


def no_fire_is_left_out(lives: Lives) -> Finding:
    """I8: from its first fire to its last, each time of a schedule has a job, unless unfinished ones forbade it.

    Not where missed fires are folded into one: nobody wrote down when somebody was there to fire.
    """
    for schedule in lives.history.schedules:
        if schedule.misfire != "backfill" or schedule.mode == "fixed_delay" or schedule.last_fire is None:
            continue
        rows = fires_of(lives, schedule)
        made = {row.fire_time for row in rows}
        first = rows[0].fire_time if rows else None
        times = range(schedule.last_fire if first is None else first, schedule.last_fire + 1, rhythm(schedule)[1])
        missing = [time for time in times if time not in made]
        for time in missing:
            alive = (row for row in rows if (row.fire_time or 0) < time and (row.finished or time + 1) > time)
            if sum(1 for _ in alive) < TOO_MANY[schedule.overlap]:
                yield f"schedule {schedule.id} left out {time}"
        if schedule.skipped != len(missing):
            yield f"schedule {schedule.id} counts {schedule.skipped} fires without a job, there are {len(missing)}"


def a_delay_follows_its_job(lives: Lives) -> Finding:
    """I8: with a fixed delay the next job comes so long after the end of the one before."""
    for schedule in lives.history.schedules:
        if schedule.mode == "fixed_delay":
            for before, row in pairwise(fires_of(lives, schedule)):
                if before.finished is None or (row.fire_time or 0) < before.finished + (schedule.every or 0):
                    yield f"schedule {schedule.id} made job {row.id} too soon after the end of job {before.id}"


def a_callback_comes_last(lives: Lives) -> Finding:
    """I11: a callback completes once; it is not claimed before its batch was closed and all members have ended."""
    closed = dict(lives.history.closed)
    for batch, members in lives.members.items():
        claims = lives.claims.get(batch, ())
        completed = sum(move.now == "COMPLETED" for move in lives.moves.get(batch, ()))
        if completed > 1:
            yield f"the callback of batch {batch} completed {completed} times"
        if claims and closed.get(batch, float("inf")) > claims[0].seq:
            yield f"the callback of batch {batch} was claimed before that was closed"
        for member in members:
            if claims and lives.end(member) > claims[0].seq:
                yield f"the callback of batch {batch} was claimed before member {member} had ended"
