"""The workers of tests/worker, for scenarios in which several things go wrong at once."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "worker"))

from starting import gate, launch, scheduler, work

__all__ = ["gate", "launch", "scheduler", "work"]
