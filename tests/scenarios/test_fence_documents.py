"""What docs/exactly-once.md says is run: its table, its jobs, its statement for an effect elsewhere."""

import re
from pathlib import Path

from witness import ended, insert, until

from scheduler import borrowed

PAGE = (Path(__file__).parents[2] / "docs" / "exactly-once.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_jobs_of_the_page_move_what_they_say_once(db, dsn, launch, tmp_path):
    (tables,) = blocks("sql")
    await db.execute(tables)
    (tmp_path / "shop.py").write_text("\n".join(blocks("python")))
    await launch(app="shop", folder=tmp_path, environment={"SHOP_DSN": dsn}).ready()

    paid = await ended(db, await insert(db, "Pay", {"account": 1, "cents": 100}))
    moved = await ended(db, await insert(db, "Move", {"cents": 50}))

    deposit = "SELECT id FROM scheduler.jobs WHERE kind = 'Deposit' AND status = 'COMPLETED'"
    await until(lambda: db.fetchval(deposit), "the deposit should follow")
    assert [(job["status"], job["result"], job["attempt"]) for job in (paid, moved)] == [
        ("COMPLETED", '{"left": 900}', 1),
        ("COMPLETED", None, 1),
    ]
    assert await db.fetch("SELECT * FROM accounts ORDER BY id") == [(1, 850), (2, 50)]


async def test_the_statement_of_the_page_refuses_an_older_fence(db):
    (statement,) = re.findall(r"`(UPDATE reports .*?)`", PAGE)
    await db.execute("CREATE TABLE reports (id int, body text, fence bigint); INSERT INTO reports VALUES (7, '', 0)")

    done = [await db.execute(statement, body, fence) for body, fence in (("new", 9 << 32 | 2), ("old", 9 << 32 | 1))]

    assert done == ["UPDATE 1", "UPDATE 0"]


def test_the_page_names_every_connection_that_is_accepted():
    table = PAGE.split("| connection | block |")[1].split("\n\n")[0]

    named = {"PoolConnectionProxy": "from a pool", "BaseDatabaseWrapper": "Django", "ConnectionProxy": "Django"}
    for module, name, *_ in borrowed._KNOWN:
        words = "asyncpg" if module == "asyncpg" else named.get(name, f"`{name}`")
        assert words in table, (module, name)
