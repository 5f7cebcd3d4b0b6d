"""What the demo shows: bars in a terminal, a line a second elsewhere, and two tables at the end."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

KINDS = {  # and what runs them
    "CountNodes": "a process",
    "Checksum": "a thread",
    "FolderChecksum": "the event loop",
    "Totals": "the event loop",
}
Rows = Sequence[Mapping[str, Any]]  # kind, status, jobs, attempts, reclaimed

console = Console(highlight=False, soft_wrap=True)


class Bars:
    """Live progress, a bar per kind of job."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]:<24}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {kind: self._progress.add_task(kind, note="") for kind in KINDS}
        self._started = time.monotonic()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, rows: Rows) -> None:
        for kind, task in self._tasks.items():
            mine = [row for row in rows if row["kind"] == kind]
            note = f"{_sum(mine, status='RUNNING')} running, {_sum(mine, 'reclaimed')} reclaimed"
            self._progress.update(task, completed=_sum(mine, status="COMPLETED"), total=_sum(mine), note=note)
        elapsed = time.monotonic() - self._started
        if not console.is_terminal and elapsed >= self._next_line:
            self._next_line = elapsed + 1
            done, running = _sum(rows, status="COMPLETED"), _sum(rows, status="RUNNING")
            console.print(
                f"{elapsed:6.1f} s   {done:,} of {_sum(rows):,} completed, {running} running,"
                f" {_sum(rows, 'reclaimed')} leases reclaimed"
            )


def show_jobs(rows: Rows) -> None:
    table = Table(box=SIMPLE_HEAD, show_footer=True)
    table.add_column("Kind", "in all")
    table.add_column("Run by")
    table.add_column("Status")
    for name in ("jobs", "attempts", "reclaimed"):
        table.add_column(name.capitalize(), f"{_sum(rows, name):,}", justify="right")
    for row in sorted(rows, key=lambda row: [*KINDS].index(row["kind"])):
        numbers = (f"{row[name]:,}" for name in ("jobs", "attempts", "reclaimed"))
        table.add_row(row["kind"], KINDS[row["kind"]], row["status"], *numbers)
    console.print(table)


def show_workers(done: Mapping[int, int], held: Mapping[int, int]) -> None:
    """Show how many jobs each worker completed, and what a killed one left; both by pid."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("Worker")
    table.add_column("Completed", justify="right")
    table.add_column("End")
    for pid in sorted({*done, *held}):
        end = f"SIGKILL while it ran {held[pid]} jobs" if pid in held else "stopped when all was done"
        table.add_row(f"pid {pid}", f"{done.get(pid, 0):,}", end)
    console.print(table)


def _sum(rows: Rows, what: str = "jobs", status: str | None = None) -> int:
    return sum(int(row[what]) for row in rows if status in {None, row["status"]})
