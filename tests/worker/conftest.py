"""The fixtures of these tests; those of tests/scenarios are the same."""

from starting import gate, launch, scheduler, work

__all__ = ["gate", "launch", "scheduler", "work"]
