"""How far a job is: told to whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told (done, all): records, of those that the job goes over."""


def untold(_done: int, _all: int) -> None:
    """Nobody asked."""
