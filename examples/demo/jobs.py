"""The jobs of the demo, which find out what Python's own standard library is made of.

Every file gets two jobs, one that counts its syntax nodes and one that takes its checksum; every folder gets one that
joins the checksums of its files; and one job, the child of all the others, adds everything up.
"""

import ast
import asyncio
import hashlib
import json
import sysconfig
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from scheduler import AsyncJob, BlockingJob, Context, CpuBoundJob, Scheduler

LIBRARY = Path(sysconfig.get_path("stdlib"))
CHUNK = 500  # results read at once


class CountNodes(CpuBoundJob, timeout=timedelta(minutes=1)):
    """Pure computation: it gets a process of its own, so two of them use two cores."""

    path: str

    def run(self, ctx: Context) -> dict[str, Any]:
        nodes: Counter[str] = Counter()
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse((LIBRARY / self.path).read_bytes())
            nodes.update(type(node).__name__ for node in ast.walk(tree))
        except (SyntaxError, ValueError):  # a template, say; recount.py does the same
            nodes["(cannot be parsed)"] = 1
        return {"worker": ctx.worker_id, "nodes": dict(nodes)}


class Checksum(BlockingJob):
    """Reading files blocks: it gets a thread."""

    path: str

    def run(self, ctx: Context) -> dict[str, Any]:
        digest = hashlib.sha256((LIBRARY / self.path).read_bytes()).hexdigest()
        return {"worker": ctx.worker_id, "path": self.path, "sha256": digest}


class FolderChecksum(AsyncJob):
    """Waits for the database, and nothing else: hundreds of these share one event loop."""

    folder: str

    async def run(self, ctx: Context) -> dict[str, Any]:
        files = sorted((result["path"], result["sha256"]) for result in await results_of_parents(ctx))
        return {"worker": ctx.worker_id, "folder": self.folder, "sha256": joined(files)}


class Totals(AsyncJob, timeout=timedelta(minutes=1)):
    """The end of the graph. Its payload stays small: what it depends on stands in its own row."""

    file: str

    async def run(self, ctx: Context) -> dict[str, Any]:
        nodes: Counter[str] = Counter()
        folders: list[tuple[str, str]] = []
        files = 0
        for result in await results_of_parents(ctx):
            if "nodes" in result:
                files += 1
                nodes.update(result["nodes"])
            elif "folder" in result:
                folders.append((result["folder"], result["sha256"]))
        totals = {"files": files, "sha256": joined(sorted(folders)), "nodes": dict(sorted(nodes.items()))}
        await asyncio.to_thread(publish, totals, Path(self.file), ctx.fence)
        return {"worker": ctx.worker_id}


async def results_of_parents(ctx: Context) -> list[dict[str, Any]]:
    """Return what the jobs returned that this one depends on; they have all completed, or it would not run."""
    async with Scheduler.connect(connections=1) as scheduler:
        parents = (await scheduler.job(ctx.job_id))["depends_on"]
        results: list[dict[str, Any]] = []
        for start in range(0, len(parents), CHUNK):
            results += (await scheduler.results(parents[start : start + CHUNK])).values()
        return results


def joined(checksums: list[tuple[str, str]]) -> str:
    """Return one checksum of many: that of the list which the program sha256sum would print."""
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in checksums).encode()).hexdigest()


def publish(totals: dict[str, Any], file: Path, fence: int) -> None:
    """Write the file so that a second run of the job, or two at once, leave the same one whole file."""
    unfinished = file.with_suffix(f".{fence}")
    unfinished.write_text(json.dumps(totals, indent=2))
    unfinished.replace(file)
