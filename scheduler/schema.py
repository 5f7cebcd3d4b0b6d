"""The schema of the database: bring it to this version, or say why it cannot be used.

The migrations live in the folder migrations/ of the project and inside the wheel; they import nothing of the scheduler.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SUPPORTED = ("0002",)


def is_next(found: str) -> bool:
    """Tell whether the database is one revision ahead, as it is in a deploy until its workers have been replaced.

    A verb never changes its signature or its meaning, so what knows this revision works on the next one.
    """
    return found.isdecimal() and int(found) == int(SUPPORTED[-1]) + 1


def is_supported(found: str) -> bool:
    """Tell whether this version works on a database of that revision."""
    return found in SUPPORTED or is_next(found)


def migrations_folder() -> Path:
    """Return the folder of the migrations: inside the installed package, or beside it in a checkout."""
    package = Path(str(files("scheduler")))
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


async def migrate(dsn: str, to: str = "head", *, down: bool = False) -> bool:
    """Bring the database to the newest schema, or to a revision; return whether its roles could be created.

    Waits for another migration, never long for a table: see migrations/env.py. Raises what asyncpg or SQLAlchemy raise.
    """

    async def connect() -> asyncpg.Connection[Any]:
        return await asyncpg.connect(dsn, statement_cache_size=0)

    with ThreadPoolExecutor(1) as thread:  # alembic's environment runs an event loop of its own
        return await asyncio.get_running_loop().run_in_executor(thread, _move, connect, to, down)


def _move(connect: Callable[[], Awaitable[asyncpg.Connection[Any]]], to: str, down: bool) -> bool:  # noqa: FBT001
    # Half a second of imports that only a migration needs.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connect"] = connect
    (command.downgrade if down else command.upgrade)(config, to)
    return bool(config.attributes["report"]["roles"])
