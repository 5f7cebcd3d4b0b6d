"""Count again what the demo counted, without the scheduler: `python recount.py totals.json`.

It imports nothing but Python's standard library and shares no code with the jobs, so that a mistake in one of the two
shows. Exit code 1 on any difference; the first are printed.
"""

import ast
import hashlib
import json
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
SHOWN = 10


def find(root: Path) -> dict[str, list[Path]]:
    """Return the files of Python's standard library by folder, without its tests and what was installed later."""
    found: dict[str, list[Path]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        if scripts := [Path(folder, name) for name in files if name.endswith(".py")]:
            found[str(Path(folder).relative_to(root))] = scripts
    return found


def count(source: bytes, nodes: dict[str, int]) -> None:
    """Add to `nodes` how often each type of node is in the syntax tree of one file."""
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        waiting = []
        nodes["(cannot be parsed)"] = nodes.get("(cannot be parsed)", 0) + 1
    while waiting:
        node = waiting.pop()
        name = type(node).__name__
        nodes[name] = nodes.get(name, 0) + 1
        waiting.extend(ast.iter_child_nodes(node))


def recount(root: Path) -> dict[str, Any]:
    """Return the totals as the last job of the demo writes them."""
    files = 0
    nodes: dict[str, int] = {}
    everything = hashlib.sha256()
    for folder, paths in sorted(find(root).items()):
        inside = hashlib.sha256()
        for name, path in sorted((str(path.relative_to(root)), path) for path in paths):
            source = path.read_bytes()
            count(source, nodes)
            inside.update(f"{hashlib.sha256(source).hexdigest()}  {name}\n".encode())
            files += 1
        everything.update(f"{inside.hexdigest()}  {folder}\n".encode())
    return {"files": files, "sha256": everything.hexdigest(), "nodes": nodes}


def differences(told: dict[str, Any], counted: dict[str, Any]) -> Iterator[str]:
    """Say where the two disagree, in words."""
    for name in ("files", "sha256"):
        if told[name] != counted[name]:
            yield f"{name}: {told[name]} in the totals, {counted[name]} in the files"
    for name in sorted(told["nodes"].keys() | counted["nodes"].keys()):
        theirs, ours = told["nodes"].get(name, 0), counted["nodes"].get(name, 0)
        if theirs != ours:
            yield f"nodes of type {name}: {theirs:,} in the totals, {ours:,} in the files"


def main() -> int:
    warnings.simplefilter("ignore")  # old spellings in a file or two
    told = json.loads(Path(sys.argv[1]).read_text())
    counted = recount(Path(sysconfig.get_path("stdlib")))
    found = list(differences(told, counted))
    for difference in found[:SHOWN]:
        print(f"           different: {difference}")
    if len(found) > SHOWN:
        print(f"           and {len(found) - SHOWN} more differences")
    if not found:
        nodes = counted["nodes"]
        print(
            f"           equal: {counted['files']:,} files, {sum(nodes.values()):,} syntax nodes of {len(nodes)} types"
        )
        print(f"           equal: sha256 {counted['sha256'][:16]}... over all of them")
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
