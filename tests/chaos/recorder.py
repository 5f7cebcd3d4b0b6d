"""Installs the triggers, and reads what they and the tables say into a History."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .history import Effect, Ended, Event, History, Row, Schedule

if TYPE_CHECKING:
    import asyncpg

EVENTS = """
SELECT seq, extract(epoch FROM at)::float8 AS at, xid::text::bigint AS xid, actor, job, was, now, attempt, fence,
  worker::text, extract(epoch FROM lease)::float8 AS lease FROM chaos.events ORDER BY seq"""
ROWS = """
SELECT id, (payload ->> 'token')::bigint AS token, kind, status::text, attempt, failures, crashes, max_attempts,
  max_crashes, fence, depends_on, on_parent_failure, cancelled_by, idempotency_key, unique_key,
  (result ->> 'fence')::bigint AS result_fence, schedule_id AS schedule,
  (extract(epoch FROM fire_time) * 1000000)::bigint AS fire_time,
  (extract(epoch FROM finished_at) * 1000000)::bigint AS finished FROM scheduler.jobs"""
SCHEDULES = """
SELECT id, mode, overlap, misfire, cron, (extract(epoch FROM every) * 1000000)::bigint AS every,
  (extract(epoch FROM starts_at) * 1000000)::bigint AS starts_at,
  (extract(epoch FROM last_fire) * 1000000)::bigint AS last_fire, skipped, error FROM scheduler.schedules"""
ENDED = """
SELECT job_id AS job, attempt, outcome, substring(error FROM 'fence=(\\d+)')::bigint AS error_fence
FROM scheduler.attempts"""
EFFECTS = "SELECT job, fence FROM chaos.effects"
EDGES = "SELECT parent, child FROM scheduler.dependencies WHERE ended AND NOT applied"
MEMBERS = """
SELECT parent, child FROM scheduler.dependencies
WHERE child IN (SELECT child FROM scheduler.dependencies WHERE parent = child)"""
CLOSED = "SELECT batch, seq FROM chaos.closed"


async def install(connection: "asyncpg.Connection[Any]") -> None:
    await connection.execute((Path(__file__).parent / "recorder.sql").read_text())


async def read(connection: "asyncpg.Connection[Any]") -> History:
    """Return what the database knows; the rest is the campaign's to add."""
    return History(
        events=await _read(connection, EVENTS, Event),
        rows=await _read(connection, ROWS, Row),
        ended=await _read(connection, ENDED, Ended),
        schedules=await _read(connection, SCHEDULES, Schedule),
        edges=await _pairs(connection, EDGES),
        members=await _pairs(connection, MEMBERS),
        closed=await _pairs(connection, CLOSED),
        written=await _pairs(connection, EFFECTS),
    )


async def sizes(connection: "asyncpg.Connection[Any]") -> dict[str, float]:
    """Return what the database holds that should stay small."""
    return {"percent of the queue of notices": 100 * await connection.fetchval("SELECT pg_notification_queue_usage()")}


async def _read(connection: "asyncpg.Connection[Any]", query: str, shape: Any) -> list[Any]:
    return [msgspec.convert(dict(row), shape) for row in await connection.fetch(query)]


async def _pairs(connection: "asyncpg.Connection[Any]", query: str) -> list[tuple[int, int]]:
    return [(first, second) for first, second in await connection.fetch(query)]


def read_effects(ledger: Path) -> list[Effect]:
    """Return what the handlers noted; the last line of a killed process may be cut short."""
    text = ledger.read_text() if ledger.exists() else ""
    found = re.findall(r"^(began|finished) (\S+) (\d+) (\d+)$", text, re.MULTILINE)
    return [Effect(what=what, at=float(at), job=int(job), fence=int(fence)) for what, at, job, fence in found]
