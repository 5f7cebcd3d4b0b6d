"""docs/guarantees.md is true: what it names exists, and every known failure has a test or a reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMES = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)

# The failures that were collected; numbers that are missing were dropped.
FAILURES = re.findall(r"\S+", """
F01 F02 F04 F05 F06 F07 F08 F09 F11 F12 F13 F14 F15 F16 F17 F18 F19 F20 F21 F22 F23 F25 F26 F27 F28 F29 F30 F31 F33 F34
F36 F37 F38 F39 F40 F41 F43 F44 F45 F46 F48 F49 F50 F51 F52 F54 F55 F56 F57 F58 F59 F60 F62 F63 F64 F66 F67 F68 F69 F71
F72 F74 F75
B01 B02 B03 B05 B06 B08 B09 B10 B11 B14 B15 B17 B18 B19 B21 B22 B23 B24 B25 B27 B29 B30 B32 B33 B34 B35 B37 B38 B39 B40
B42 B44 B45 B46 B47 B49 B50 B51 B52 B54 B56 B59 B60 B62 B64
""")  # fmt: skip


def names_in(file):
    return NAMES.findall(file.read_text())


def numbers(name):
    """Return the failures whose numbers stand in the name of a test, as in test_f07_b01_..."""
    found = re.match(r"test_((?:[fb]\d\d_)+)", name)
    return set(found[1].upper().strip("_").split("_")) if found else set()


def rows():
    """Return the table: number -> (what goes wrong, held by)."""
    found = re.findall(r"^\| ([FB]\d\d) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    return {number: (what, by) for number, what, by in found}


def linked(text):
    """Return the files that a text links to, as the page stands in docs/."""
    return [(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", text)]


def test_every_file_that_the_page_links_to_is_there():
    assert [path for path in linked(PAGE) if not path.exists()] == []


def test_every_test_that_the_page_names_is_in_the_file_named_before_it():
    wrong, named = [], 0
    for held in re.findall(r"\*Held by\* (.*?)(?:\n\n|\Z)", PAGE, re.DOTALL):
        for target, names in re.findall(r"\]\(([^)]+)\)([^\[]*)", held):
            there = names_in((ROOT / "docs" / target).resolve())
            given = re.findall(r"`(test_\w+)`", names)
            named += len(given)
            wrong += [(target, name) for name in given if name not in there]
            assert given, f"{target} is linked, and no test of it is named"
    assert wrong == []
    assert named > 30


def test_every_promise_names_a_test_that_holds_it():
    promises = re.split(r"^## ", PAGE.split("## The proof by harm")[0], flags=re.MULTILINE)[1:]

    assert len(promises) == 17
    assert [promise.splitlines()[0] for promise in promises if "*Held by* [" not in promise] == []
    assert [promise.splitlines()[0] for promise in promises if "**Holds**" not in promise] == []


def test_every_failure_has_one_row():
    assert list(rows()) == FAILURES
    assert len(re.findall(r"^\| [FB]\d\d ", PAGE, re.MULTILINE)) == len(FAILURES)


def test_every_row_names_files_with_a_test_of_its_number_or_says_why_not():
    for number, (what, by) in rows().items():
        assert what, number
        for file in linked(by):
            assert any(number in numbers(name) for name in names_in(file)), f"{file.name} has no test of {number}"
        assert linked(by) or len(by) > 30, f"{number}: {by}"


def test_no_test_with_a_number_is_missing_from_the_page():
    missing = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in names_in(file):
            missing += [
                (number, file.name)
                for number in numbers(name)
                if number not in rows() or file not in linked(rows()[number][1])
            ]
    assert missing == []
