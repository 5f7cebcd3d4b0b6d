"""What docs/deploy.md says, taken apart."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()


def blocks(language, containing=""):
    found = re.findall(rf"^```{language}\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)
    return [block for block in found if containing in block]


def block(language, containing):
    (only,) = blocks(language, containing)
    return only


def table(first_column):
    """Return the rows of the table with that first heading, each a list of its cells."""
    lines = DEPLOY.split(f"| {first_column} |", 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
