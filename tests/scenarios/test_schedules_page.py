"""What docs/schedules.md shows is run: its jobs, its programs, its commands and its SQL."""

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

from newcomer import User
from witness import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "schedules.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_what_the_page_shows_works(dsn, db, tmp_path):
    user = User(tmp_path, dsn)
    module, program = blocks("python")
    user.writes("of_the_page.py", module)
    user.writes("program.py", program + "\nimport asyncio\nasyncio.run(main())\n")

    async def facts(name):
        return await db.fetchrow("SELECT * FROM scheduler.schedules WHERE name = $1", name)

    options = {"cwd": tmp_path, "env": user.environment, "capture_output": True, "text": True}
    with user.runs("scheduler-worker", "--app", "of_the_page", "--processes", "0"):
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "program.py"], **options)
        assert (done.returncode, done.stdout.split()[1:], done.stderr) == (0, ["4"], "")
        (commands,) = blocks("sh")
        for line in commands.splitlines():
            said = await asyncio.to_thread(user.run, *shlex.split(line))
            assert said.code == 0, said
            if "preview" in line:
                assert len(said.out.splitlines()) == 20
        await db.execute("".join(blocks("sql")))

        async def told():
            return (await facts("misspelt"))["error"]

        assert "'Berlin' is no IANA zone" in await until(told, "a worker should have looked at it")
        query = """SELECT f.result FROM scheduler.jobs_finished f JOIN scheduler.schedules s ON s.id = f.schedule_id
          WHERE s.name = 'one-by-one' AND f.status = 'COMPLETED'"""
        results = await until(lambda: db.fetch(query), "a fixed delay should have fired at once")

    assert results[0]["result"].startswith('"east: the day before 20')
    assert (await facts("report"))["next_fire"].minute == 0
    assert (await facts("from-sql"), (await facts("often"))["version"]) == (None, 1)
