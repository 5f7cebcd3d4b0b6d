"""What README.md says is run: its jobs, its commands, its Python and its SQL."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def command(name: str) -> list[str]:
    """The line of README that runs a command, with the command of this environment."""
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if line.split()[0] == name]
    return [str(Path(sys.executable).with_name(name)), *shlex.split(line, comments=True)[1:]]


async def test_what_the_readme_shows_works(empty_dsn, connect, tmp_path):
    myjobs, submit = blocks("python")
    (tmp_path / "myjobs.py").write_text(myjobs)
    (tmp_path / "submit.py").write_text(submit)
    environment = os.environ | {"SCHEDULER_DSN": empty_dsn, "SCHEDULER_APP": "myjobs"}

    subprocess.run(command("scheduler"), cwd=tmp_path, env=environment, check=True)
    worker = subprocess.Popen(command("scheduler-worker"), cwd=tmp_path, env=environment)
    try:
        said = subprocess.run(
            [sys.executable, "submit.py"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout
        db = await connect(empty_dsn)
        await db.execute("".join(blocks("sql")))
        async with asyncio.timeout(30):
            while await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE status <> 'COMPLETED'"):
                await asyncio.sleep(0.1)
    finally:
        worker.terminate()
        code = worker.wait(30)

    assert said == "499500 sent to a@example.org\n"
    assert code == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE kind = 'Sum'") == 3


def test_every_file_that_the_readme_points_to_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_first_screen_is_short():
    before_the_table = README.split("| where to look | for |")[0]

    assert len(before_the_table.splitlines()) <= 45
