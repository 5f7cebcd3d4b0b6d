"""A ghost repeats, as a slow network would, what holders of ended claims might have said."""

import asyncio
import contextlib
from random import Random
from typing import Any

import asyncpg

from .load import LOST

LEASE_LOST = "LW001"


class Ghost:
    """Speaks for claims that have ended; nothing of it may be accepted."""

    FIND = """
        SELECT e.job, e.fence, e.worker FROM chaos.events e JOIN scheduler.jobs j ON j.id = e.job
        WHERE e.seq > (SELECT max(seq) FROM chaos.events) - 1000 AND e.now = 'RUNNING' AND j.fence > e.fence
        ORDER BY j.status = 'RUNNING' DESC, random() LIMIT 5"""
    SETTLE = """SELECT scheduler.settle($1, jsonb_build_array(jsonb_build_object('id', $2::bigint,
        'fence', $3::bigint, 'outcome', 'completed', 'result', jsonb_build_object('fence', $3::bigint))))
        -> 'lost' @> to_jsonb($2::bigint)"""
    RELEASE = "SELECT scheduler.release($1, ARRAY[$2::bigint], ARRAY[$3::bigint]) -> 'lost' @> to_jsonb($2::bigint)"
    COMPLETE = "SELECT scheduler.complete($2, $3), $1::uuid"
    RENEW = "SELECT scheduler.renew($1, ARRAY[$2::bigint], ARRAY[$3::bigint], '1 h') -> 'lost' @> to_jsonb($2::bigint)"

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._rng = Random(f"{seed} ghost")
        self.refused = 0
        self.accepted: list[str] = []
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            with contextlib.suppress(*LOST):
                await self._haunt()
            await asyncio.sleep(0.2)

    async def _haunt(self) -> None:
        """Speak over one connection, to one server: after a promotion an older claim may be the current one again."""
        connection = await asyncpg.connect(self._dsn, timeout=5, command_timeout=5)
        try:
            while not self.stopped:
                for job, fence, worker in await connection.fetch(self.FIND):
                    verb = self._rng.choice(["SETTLE", "RELEASE", "RENEW", "COMPLETE"])
                    if await self._is_refused(connection, getattr(self, verb), worker, job, fence):
                        self.refused += 1
                    else:
                        self.accepted.append(f"job {job}: {verb.lower()} of the stale fence {fence} was not refused")
                await asyncio.sleep(0.2)
        finally:
            connection.terminate()

    async def _is_refused(self, connection: "asyncpg.Connection[Any]", call: str, *arguments: Any) -> bool:
        try:
            return bool(await connection.fetchval(call, *arguments))
        except asyncpg.PostgresError as error:
            if error.sqlstate == LEASE_LOST:
                return True
            raise
