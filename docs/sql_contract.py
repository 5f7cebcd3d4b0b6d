"""Write the second half of sql-contract.md from the headers of scheduler/sql and the comments in the database.

What stands above the mark in that page is written by hand, and kept. `make contract` runs this on a private PostgreSQL
that it migrates; a test compares the page with a fresh database.
"""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from scheduler.cluster import Cluster, wheel_binaries
from scheduler.schema import migrate

DOCS = Path(__file__).parent
PAGE = DOCS / "sql-contract.md"
SQL = DOCS.parent / "scheduler" / "sql"
MARK = "<!-- From here on written by docs/sql_contract.py: `make contract` -->\n"
ROLES = {"submitter": "Whoever submits", "worker": "Workers", "operator": "Operators", "viewer": "Whoever watches"}

FUNCTIONS = """
SELECT p.proname AS name, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result,
  array_agg(replace(r.rolname, 'scheduler_', '')) AS callers
FROM pg_proc p CROSS JOIN aclexplode(p.proacl) AS acl JOIN pg_roles r ON r.oid = acl.grantee AND r.oid <> p.proowner
WHERE p.pronamespace = 'scheduler'::regnamespace AND starts_with(r.rolname, 'scheduler_')
GROUP BY p.oid ORDER BY p.proname"""
RELATIONS = """
SELECT c.oid::int8, c.relname AS name, c.relkind::text AS kind,
  coalesce(obj_description(c.oid, 'pg_class'), obj_description(c.reltype, 'pg_type')) AS comment
FROM pg_class c
WHERE c.relnamespace = 'scheduler'::regnamespace AND NOT c.relispartition AND c.relname <> 'alembic_version'
  AND (c.relkind IN ('r', 'p', 'v') OR c.relkind = 'c' AND EXISTS (
    SELECT FROM pg_proc p CROSS JOIN aclexplode(p.proacl) AS acl
    WHERE p.prorettype = c.reltype AND acl.grantee <> p.proowner))
ORDER BY c.relname"""
COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
  CASE WHEN a.attidentity <> '' THEN 'identity' ELSE pg_get_expr(d.adbin, d.adrelid) END AS default,
  p.writable,
  col_description(c.oid, a.attnum) AS comment
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
CROSS JOIN has_column_privilege('scheduler_submitter', c.oid, a.attnum, 'INSERT') AS p(writable)
WHERE c.oid = $1 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY p.writable DESC, (p.writable AND a.attnotnull AND d.adbin IS NULL) DESC, a.attnum"""
RULES = """
SELECT conname FROM pg_constraint WHERE conrelid = $1 AND contype = 'c' AND conname LIKE '% %' ORDER BY conname"""
STATUSES = "SELECT enum_range(NULL::scheduler.job_status)::text[]"


class Verb(NamedTuple):
    name: str
    arguments: str
    result: str
    callers: list[str]
    header: str


def headers() -> dict[str, str]:
    """Read what the SQL files say of each function: the comment that opens with its name, less the line of callers."""
    found = {}
    for path in sorted(SQL.glob("*.sql")):
        for comment in re.findall(r"^(?:--.*\n)+", path.read_text(), re.MULTILINE):
            lines = [line[2:].strip() for line in comment.splitlines() if not line.startswith("-- callers:")]
            if opening := re.match(r"(\w+)(\([^)]*\))?: ", lines[0]):
                found.setdefault(opening[1], "\n".join([lines[0][opening.end() :], *lines[1:]]))
    return found


def prose(text: str) -> str:
    """Return a comment as Markdown: an empty line ends a paragraph, shapes of JSON are code."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    pieces = re.split(r'(`[^`]*`|\[?\{"[^{}]*\}\]?)', "\n\n".join(paragraphs))
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = re.sub(r"([*<])", r"\\\1", piece)
        elif not piece.startswith("`"):
            pieces[at] = f"`{piece}`"
    return "".join(pieces)


def verbs_markdown(verbs: list[Verb]) -> Iterator[str]:
    """Yield the verbs by role: each stands where the first of its callers looks."""
    for role, title in ROLES.items():
        found = [verb for verb in verbs if next(r for r in ROLES if r in verb.callers) == role]
        if found:
            yield f"### {title}\n"
        for verb in found:
            yield f"#### {verb.name}\n"
            yield f"```sql\nscheduler.{verb.name}({verb.arguments}) -> {verb.result}\n```\n"
            callers = ", ".join(r for r in ROLES if r in verb.callers)
            yield f"{verb.header[:1].upper()}{prose(verb.header)[1:]}\n\nCallers: {callers}.\n"


def table_markdown(columns: list[asyncpg.Record]) -> Iterator[str]:
    """Yield one row per column; what no column has makes no column of the page."""
    facts = [
        {
            "column": f"`{column['name']}`",
            "type": column["type"].replace("timestamp with time zone", "timestamptz")
            + (" not null" if column["required"] else ""),
            "default": f"`{column['default']}`" if column["default"] else "",
            "submitters write": "yes" if column["writable"] else "",
            "meaning": prose(column["comment"] or ""),
        }
        for column in columns
    ]
    names = [name for name in facts[0] if any(fact[name] for fact in facts)]
    for cells in (names, ["---"] * len(names), *([fact[name] for name in names] for fact in facts)):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


async def relation_markdown(db: Any, relation: asyncpg.Record, header: str | None) -> list[str]:  # noqa: ANN401
    lines = [f"### {relation['name']}\n", f"{prose(header or relation['comment'])}\n"]
    lines += table_markdown(await db.fetch(COLUMNS, relation["oid"]))
    rules = [row["conname"] for row in await db.fetch(RULES, relation["oid"])]
    return [*lines, *(f"- {prose(rule)}" for rule in rules), *([""] if rules else [])]


async def reference(dsn: str) -> str:
    """Return the generated half of the page, from a migrated database with roles."""
    db = await asyncpg.connect(dsn)
    try:
        texts = headers()
        verbs = [Verb(**row, header=texts[row["name"]]) for row in await db.fetch(FUNCTIONS)]
        lines = ["## Verbs\n", *verbs_markdown(verbs)]
        relations = await db.fetch(RELATIONS)
        for title, kinds in (("Types", "c"), ("Tables", "rp"), ("Views", "v")):
            lines.append(f"## {title}\n")
            if kinds == "c":
                lines.append(f"`scheduler.job_status`: {', '.join(await db.fetchval(STATUSES))}.\n")
            for relation in relations:
                if relation["kind"] in kinds:
                    lines += await relation_markdown(db, relation, texts[relation["name"]] if kinds == "v" else None)
        return "\n".join(lines).rstrip() + "\n"
    finally:
        await db.close()


def page(reference: str) -> str:
    """Return the whole page: what is written by hand, and this reference."""
    return f"{PAGE.read_text().partition(MARK)[0]}{MARK}\n{reference}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # as root, PostgreSQL runs as another account
        binaries = wheel_binaries()
        assert binaries is not None
        server = Cluster(binaries, Path(folder) / "server", {"fsync": "off"})
        server.start()
        try:
            asyncio.run(migrate(server.url))
            PAGE.write_text(page(asyncio.run(reference(server.url))))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
