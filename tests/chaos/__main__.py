"""`make chaos MINUTES=10 SEED=1`: harm real workers and servers, then check what they left behind.

The seed decides the order of the faults and what is submitted, not how it all interleaves. Exit code 1 when an
invariant does not hold; the history and the logs stay in the folder then.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop

from .campaign import Campaign
from .checker import violations
from .report import lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Harm workers and servers, then check.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=60, help="jobs submitted per second")
    parser.add_argument("--sabotage", type=Path, help="a file of SQL that breaks the engine: the checker must object")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="leasework-chaos-", dir=memory()))
    folder.chmod(0o755)  # PostgreSQL runs as another account where we are root
    print(f"chaos in {folder}: {arguments.minutes:g} minutes, seed {arguments.seed}", flush=True)
    sabotage = arguments.sabotage.read_text() if arguments.sabotage else ""
    campaign = Campaign(folder, seed=arguments.seed, rate=arguments.rate, sabotage=sabotage)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        history = runner.run(campaign.run(arguments.minutes * 60))
    title = f"seed {arguments.seed}, revision {revision()}, {arguments.minutes:g} minutes"
    print("\n".join(lines(history, title)))
    if violations(history) or arguments.keep:
        (folder / "history.json").write_bytes(msgspec.json.encode(history))
        print(f"the history and the logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return bool(violations(history))


def memory() -> str | None:
    """Return a folder in memory where there is room: the disk is not what is tested here."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and shutil.disk_usage(shm).free > 2 << 30 else None


def revision() -> str:
    """Return what was tested: the commit, and whether files differ from it."""
    words = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
