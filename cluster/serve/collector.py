"""When the cyclic garbage collector runs, and which objects it skips, so that it never blocks the loop for long.

A collection visits every container of its generation, a million in 0.1 s or more: about as long as it takes to create a
million. A machine's state may have tens of millions, most of which stay, since reference counting frees replaced ones.
So new containers are visited whenever the process has used some milliseconds of CPU time. Before a visit of the
surviving ones would take long, they are visited once more and frozen: later collections skip them.
"""

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

LONG_S = 0.015
"""The CPU time that a collection may take."""
FULL_S = 10.0
"""Between two visits of all: a few objects in a cycle, such as a failed request's stack frames, can hold many bytes."""
ALLOCATIONS = 50_000
"""Containers allocated minus those freed after which the youngest generation is collected within a turn."""
YOUNG, MIDDLE = 2, 2
"""How many collections of one generation precede one of the next: after 150,000 or 450,000 new containers."""
NEW, ALL = 1, 2
"""Generations: the younger two, and all."""

Callback = Callable[[Literal["start", "stop"], dict[str, int]], object]


class Collects(Protocol):
    """The part of the module `gc` that is used."""

    callbacks: list[Callback]

    def collect(self, generation: int = ALL, /) -> int:
        """Collect a generation and all younger ones."""
        ...

    def freeze(self) -> None:
        """Exclude all existing objects from later collections."""
        ...

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        """When generations are collected."""
        ...


class Collector:
    """Sets up the garbage collector, collects new containers, and freezes surviving ones."""

    def __init__(
        self,
        collects: Collects = gc,
        thread: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`thread` gives the CPU time of the calling thread in seconds, `clock` seconds."""
        self._gc = collects
        self._thread, self._clock = thread, clock
        self._since = 0.0
        self._all_take_s = 0.0  # At most: what the last visit took, and those of what was new since.
        self._full_at = clock()

    def start(self) -> None:
        """Freeze the program's own objects; from now on, collect rarely."""
        # A batch of commands is thousands of small lists that live for milliseconds and form no cycles. With its
        # default threshold of 700 the collector visits them again and again: a third of a node's time under load.
        self._gc.collect()
        self._gc.freeze()
        self._gc.set_threshold(ALLOCATIONS, YOUNG, MIDDLE)
        self._gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Stop: freeze no more objects."""
        self._gc.callbacks.remove(self._collecting)

    def look(self) -> None:
        """Run the collection that is due. Call it whenever the process has used 10 ms of CPU time.

        The collector's own thresholds do not ensure that: they count allocated minus freed containers, and a machine
        that replaces its values frees as many as it allocates.
        """
        now = self._clock()
        if self._all_take_s <= LONG_S and now - self._full_at < FULL_S:
            self._gc.collect(NEW)
            return
        self._full_at = now
        self._gc.collect()
        if self._all_take_s > LONG_S / 2:
            self._gc.freeze()
            self._all_take_s = 0.0

    def _collecting(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] < NEW:
            return  # What survives is still new.
        if phase == "start":
            self._since = self._thread()
            return
        took_s = self._thread() - self._since
        self._all_take_s = took_s if info["generation"] == ALL else self._all_take_s + took_s
