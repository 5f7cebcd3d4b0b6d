"""A service keeps its own tables with Alembic in the same database: neither sees or touches the other's."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from alembic import command
from alembic.config import Config
from documents import block

from scheduler.schema import migrate

pytestmark = pytest.mark.slow

ENVIRONMENT = """
import asyncio
import os
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import create_async_engine

target_metadata = MetaData()
Table("orders", target_metadata, Column("id", Integer, primary_key=True))

def run(connection):
{configure}
    with context.begin_transaction():
        context.run_migrations()

async def main():
    async with create_async_engine(os.environ["URL"]).connect() as connection:
        await connection.run_sync(run)
        await connection.commit()

asyncio.run(main())
"""
CONFIGURE = {
    "their own schema": "context.configure(connection=connection, target_metadata=target_metadata)",
    "all schemas": "context.configure(connection=connection, target_metadata=target_metadata, include_schemas=True)",
    "as documented": block("python", "include_name"),
}
OURS = """SELECT count(*) FROM pg_class WHERE relnamespace = 'scheduler'::regnamespace
  UNION ALL SELECT count(*) FROM pg_proc WHERE pronamespace = 'scheduler'::regnamespace"""


@pytest.fixture
def alembic(dsn, tmp_path):
    """Run Alembic as a user would, with an environment of his; return what it printed."""
    command.init(Config(tmp_path / "alembic.ini"), str(tmp_path / "service"), template="generic")
    url = urlsplit(dsn)._replace(scheme="postgresql+asyncpg").geturl()

    def alembic(*words, sees="their own schema"):
        configure = "\n".join(f"    {line}" for line in CONFIGURE[sees].splitlines())
        (tmp_path / "service" / "env.py").write_text(ENVIRONMENT.format(configure=configure))
        words = [sys.executable, "-m", "alembic", *words]
        done = subprocess.run(
            words, cwd=tmp_path, env=os.environ | {"URL": url}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return alembic


def revision(folder: Path) -> str:
    (path,) = folder.glob("service/versions/*.py")
    text = path.read_text()
    path.unlink()
    return text


@pytest.mark.parametrize("sees", ["their own schema", "as documented"])
async def test_a_users_alembic_goes_up_and_down_beside_ours(db, dsn, alembic, tmp_path, sees):
    before = await db.fetch(OURS)

    alembic("revision", "--autogenerate", "-m", "orders", sees=sees)
    written = next(tmp_path.glob("service/versions/*.py")).read_text()
    alembic("upgrade", "head", sees=sees)
    await migrate(dsn)
    assert await db.fetchval("SELECT count(*) FROM public.alembic_version") == 1
    assert await db.fetchval("SELECT count(*) FROM orders") == 0
    alembic("check", sees=sees)
    alembic("downgrade", "base", sees=sees)

    assert "create_table('orders'" in written
    assert "jobs" not in written
    assert await db.fetchval("SELECT to_regclass('orders') IS NULL")
    assert await db.fetch(OURS) == before
    assert await db.fetchval("SELECT count(*) FROM scheduler.alembic_version") == 1


async def test_a_users_alembic_that_sees_all_schemas_would_drop_ours(alembic, tmp_path):
    """So the document warns."""
    alembic("revision", "--autogenerate", "-m", "orders", sees="all schemas")

    assert "drop_table('jobs_active', schema='scheduler')" in revision(tmp_path)


async def test_a_foreign_key_to_a_job_is_refused_by_postgresql(db):
    import asyncpg

    with pytest.raises(asyncpg.InvalidForeignKeyError):
        await db.execute("CREATE TABLE orders (job bigint REFERENCES scheduler.jobs (id))")
