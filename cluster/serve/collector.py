"""When the cyclic garbage collector runs, and which objects it skips, so that it never blocks the loop for long.

A collection visits every container of its generation, a million in 0.1 s or more: about as long as it takes to create a
million. A machine's state may have tens of millions, most of which stay, since reference counting frees replaced ones.
So new containers are visited each time the process has used some milliseconds of CPU time. Before a visit of the
surviving ones would take long, they are visited once more and frozen: later collections skip them.
"""

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

PAUSE_S = 0.01
"""Between two looks."""
USED_S = 0.005
"""CPU time of the process after which new containers are visited. The collector's own thresholds do not ensure that:
they count allocated minus freed containers, and a machine that replaces its values frees as many as it allocates."""
LONG_S = 0.015
"""The CPU time that a collection may take."""
FULL_EVERY = 1000
"""In checks, 10 s: a few objects in a cycle, such as a failed request's stack frames, can hold many bytes."""
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
        process: Callable[[], float] = time.process_time,
    ) -> None:
        """`thread` gives the CPU time of the calling thread in seconds, `process` that of all threads."""
        self._gc = collects
        self._thread, self._process = thread, process
        self._since = 0.0
        self._all_take_s = 0.0  # At most: what the last visit took, and those of what was new since.
        self._used_s = 0.0
        self._looks = 0

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
        """Run the collections that are due. Call it every PAUSE_S."""
        self._looks += 1
        if self._all_take_s > LONG_S or self._looks % FULL_EVERY == 0:
            self._gc.collect()
            if self._all_take_s > LONG_S / 2:
                self._gc.freeze()
                self._all_take_s = 0.0
        elif self._process() - self._used_s > USED_S:
            self._gc.collect(NEW)
        else:
            return
        self._used_s = self._process()

    def _collecting(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] < NEW:
            return  # What survives is still new.
        if phase == "start":
            self._since = self._thread()
            return
        took_s = self._thread() - self._since
        self._all_take_s = took_s if info["generation"] == ALL else self._all_take_s + took_s
