"""When the cyclic garbage collector runs, and what it need not visit again, so that it never holds the loop for long.

A collection visits every container of its generation, a million in 0.1 s. A machine's state may have tens of millions,
most of which stay: reference counts free what is replaced. So whatever has survived a collection that took long is
frozen: no later one visits it.
"""

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

ALLOCATIONS = 50_000
"""Containers allocated, less those freed, between two collections of the youngest generation."""
YOUNG, MIDDLE = 2, 2
"""How many collections of a generation may precede one of the next: 150,000, or 450,000, new containers."""
LONG_S = 0.015
PAUSE_S = 10.0
"""Between two full collections: a few objects in a cycle, as a failed request's stack frames, can hold many bytes."""


Callback = Callable[[Literal["start", "stop"], dict[str, int]], object]


class Collects(Protocol):
    """What of the module `gc` is used."""

    callbacks: list[Callback]

    def collect(self) -> int:
        """Collect all generations."""
        ...

    def freeze(self) -> None:
        """Visit nothing any more that exists now."""
        ...

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        """When generations are collected."""
        ...


class Collector:
    """Sets the garbage collector up, and freezes what survives long collections."""

    def __init__(self, collects: Collects = gc, cpu: Callable[[], float] = time.thread_time) -> None:
        """`cpu` gives the processor time of the calling thread in seconds."""
        self._gc = collects
        self._cpu = cpu
        self._since = 0.0

    def start(self) -> None:
        """Freeze what the program consists of; from now on collect rarely."""
        # A batch of commands is thousands of small lists that live for milliseconds and form no cycles. With its
        # default threshold of 700 the collector visits them again and again: a third of a node's time under load.
        self._gc.collect()
        self._gc.freeze()
        self._gc.set_threshold(ALLOCATIONS, YOUNG, MIDDLE)
        self._gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Freeze nothing more."""
        self._gc.callbacks.remove(self._collecting)

    def collect(self) -> None:
        """Collect all that is not frozen; to be called every PAUSE_S."""
        self._gc.collect()

    def _collecting(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] == 0:
            return  # Most of the youngest will be freed soon.
        if phase == "start":
            self._since = self._cpu()
        elif self._cpu() - self._since > LONG_S:
            self._gc.freeze()
