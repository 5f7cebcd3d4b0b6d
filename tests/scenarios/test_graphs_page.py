"""The examples of docs/graphs.md run, as one program, with a worker process beside it."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from scheduler import ParentsTooLarge, WaitsInJob
from scheduler.job import KINDS
from scheduler.sync_client import SyncHandle

PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
EXPECTED = {"chain": 6, "graph": 23, "batch": 11, "crawl": 15, "keys": [True, False, True, False]}


@pytest.fixture
def program(tmp_path):
    """Import the examples as the module that a worker imports, too; its kinds are forgotten at the end."""
    path = tmp_path / "graphs_of_the_page.py"
    path.write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
    known = set(KINDS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]
    for kind in set(KINDS) - known:
        del KINDS[kind]


async def test_each_example_of_the_page_on_graphs_does_what_it_says(scheduler, launch, program):
    await launch(app=program.__name__, folder=Path(program.__file__).parent).ready()

    for name, expected in EXPECTED.items():
        assert await getattr(program, name)(scheduler) == expected, name


def test_the_page_names_what_exists():
    functions = set(re.findall(r"^async def (\w+)\(scheduler", PAGE, re.MULTILINE))

    assert functions == set(EXPECTED)
    assert all(f"`{error.__name__}`" in PAGE for error in (WaitsInJob, ParentsTooLarge))
    assert all(f"`handle.{word}`" in PAGE for word in ("created", "running") if word in SyncHandle.__mro__[1].__slots__)
