"""SQL is written in scheduler/sql and migrations/; Python calls verbs, and only through the store."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORE = ROOT / "scheduler" / "store.py"
FILES = sorted([*ROOT.glob("scheduler/*.py"), *ROOT.glob("worker/*.py")])
SQL_FILES = sorted(ROOT.glob("scheduler/sql/*.sql"))

LOOKS_LIKE_SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s|(CREATE|ALTER|DROP)\s+[A-Z]+\s"
    r"|TRUNCATE\s|GRANT\s|REVOKE\s|LISTEN\s|NOTIFY\s|BEGIN\b|COMMIT\b|ROLLBACK\b|SET\s+(LOCAL\s+)?\w+\s*(=|TO\b))"
)
CALL_OF_A_VERB = re.compile(r"SELECT (?:\* FROM )?scheduler\.(\w+)\((?:\$\d(?:, \$\d)*)?\)")


def strings(path: Path) -> list[tuple[int, str]]:
    """Every string of a module but its docstrings, with its line."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_no_sql_stands_outside_the_store_and_in_it_only_calls_of_verbs(path: Path):
    sql = [(line, text) for line, text in strings(path) if LOOKS_LIKE_SQL.match(text)]

    allowed = CALL_OF_A_VERB.fullmatch if path == STORE else lambda _: False

    assert [(line, text) for line, text in sql if not allowed(text)] == []


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "INSERT INTO jobs VALUES (1)", "UPDATE jobs SET a = 1", "WITH a AS (SELECT 1) SELECT 1", "LISTEN x"],
)
def test_the_rule_above_sees_sql_and_lets_only_a_verb_pass(text: str):
    assert LOOKS_LIKE_SQL.match(text)
    assert not CALL_OF_A_VERB.fullmatch(text)


def test_every_verb_that_the_store_calls_is_a_function_with_that_name():
    defined = set(re.findall(r"FUNCTION scheduler\.(\w+)\(", "".join(path.read_text() for path in SQL_FILES)))

    called = {match[1] for _, text in strings(STORE) if (match := CALL_OF_A_VERB.fullmatch(text))}

    assert called
    assert called <= defined


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: path.stem)
def test_a_sql_file_opens_with_its_promise_names_its_callers_and_defines_its_name(path: Path):
    body = path.read_text()

    assert re.match(rf"-- {path.stem}\b", body)
    callers = re.search(r"^-- callers: (.*)$", body, re.MULTILINE)[1].split(", ")
    assert callers == ["none"] or set(callers) <= {"submitter", "worker", "operator", "viewer"}
    assert re.search(rf"CREATE (OR REPLACE (FUNCTION|VIEW)|VIEW) scheduler\.{path.stem}\b", body)


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: path.stem)
def test_sql_reads_no_clock_but_ours_and_takes_no_limit_in_a_subquery_that_may_run_twice(path: Path):
    code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())

    if path.stem != "clock":
        assert not re.search(r"\b(now\(\)|clock_timestamp|statement_timestamp|CURRENT_TIMESTAMP|LOCALTIMESTAMP)", code)
    assert not re.search(r"\bIN \(SELECT(?:(?!\bFOR\b)[^()])*LIMIT(?:(?!\bFOR\b)[^()])*FOR (NO KEY )?UPDATE", code)


def functions(code: str) -> list[tuple[str, str]]:
    return re.findall(r"FUNCTION scheduler\.(\w+)\((.*?)\$\$", code, re.DOTALL)


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: path.stem)
def test_what_runs_with_the_owners_rights_fixes_its_search_path(path: Path):
    for name, head in functions(path.read_text()):
        if "SECURITY DEFINER" in head:
            assert "SET search_path = pg_catalog, pg_temp" in head, name


def test_migrations_import_nothing_of_ours():
    for path in ROOT.glob("migrations/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] in {"scheduler", "worker"}], path


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: path.stem)
def test_what_steers_the_planner_switches_jit_off(path: Path):
    # Before PostgreSQL 18 a scan that is switched off and taken all the same costs 1e10: enough to compile each call.
    for name, head in functions(path.read_text()):
        assert "SET enable_" not in head or "SET jit = off" in head, name
