"""The engine can be read in an afternoon: short functions, short files, names that say something."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("scheduler/*.py"), *ROOT.glob("worker/*.py")])
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


def function_lengths() -> list[tuple[int, str]]:
    return sorted(
        (node.end_lineno - node.lineno + 1, f"{path.name}:{node.name}")
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_nine_of_ten_functions_have_25_lines_at_most_and_none_has_more_than_50():
    lengths = function_lengths()

    assert lengths[int(len(lengths) * 0.9)][0] <= 25
    assert lengths[-1][0] <= 50, lengths[-1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_file_is_one_room(path: Path):
    assert path.stem not in NAMES_THAT_SAY_NOTHING
    limit = 300 if path.name == "runner.py" else 250  # the one place that knows every part
    assert len(path.read_text().splitlines()) <= limit


# What people type and see, and the PostgreSQL for trying: needed beside the engine, not by it.
COMMANDS = {"cli", "commands", "bulk", "operators", "arguments", "tables", "page", "database", "recurring"}
TRYING = {"embedded", "cluster"}


def test_the_engine_stays_under_seven_thousand_lines_and_what_stands_beside_it_small():
    size = {"engine": 0, "commands": 0, "trying": 0}
    for path in [*FILES, *ROOT.glob("scheduler/sql/*.sql")]:
        beside = "commands" if path.stem in COMMANDS else "trying" if path.stem in TRYING else "engine"
        size["engine" if path.suffix == ".sql" else beside] += sum(
            map(bool, map(str.strip, path.read_text().splitlines()))
        )

    assert size["engine"] <= 6_880
    assert size["commands"] <= 1_165
    assert size["trying"] <= 410
