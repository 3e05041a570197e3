"""When the cyclic garbage collector runs, and what it need not visit again, so that it never holds the loop for long.

A collection visits every container of its generation, a million in 0.1 s or more: about the time in which a million are
created. A machine's state may have tens of millions, most of which stay: reference counts free what is replaced. So
what is new is visited each time the process has used some milliseconds. Before the visit of what has stayed would take
long, it is visited once more and frozen: no later collection visits it.
"""

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

PAUSE_S = 0.01
"""Between two looks."""
USED_S = 0.005
"""Processor time of the process after which what is new is visited. The collector's own thresholds do not see to that:
they count containers allocated less those freed, and a machine that replaces its values frees as many."""
LONG_S = 0.015
"""What a collection may take, in processor time."""
FULL_EVERY = 1000
"""Looks, 10 s: a few objects in a cycle, as a failed request's stack frames, can hold many bytes."""
ALLOCATIONS = 50_000
"""Containers allocated, less those freed, after which the youngest generation is collected within a turn."""
YOUNG, MIDDLE = 2, 2
"""How many such collections of a generation may precede one of the next: 150,000, or 450,000, new containers."""
NEW, ALL = 1, 2
"""Generations: the younger two, and all."""

Callback = Callable[[Literal["start", "stop"], dict[str, int]], object]


class Collects(Protocol):
    """What of the module `gc` is used."""

    callbacks: list[Callback]

    def collect(self, generation: int = ALL, /) -> int:
        """Collect a generation and all younger ones."""
        ...

    def freeze(self) -> None:
        """Visit nothing any more that exists now."""
        ...

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        """When generations are collected."""
        ...


class Collector:
    """Sets the garbage collector up, lets it visit what is new, and freezes what has stayed."""

    def __init__(
        self,
        collects: Collects = gc,
        thread: Callable[[], float] = time.thread_time,
        process: Callable[[], float] = time.process_time,
    ) -> None:
        """`thread` gives the processor time of the calling thread in seconds, `process` that of all threads."""
        self._gc = collects
        self._thread, self._process = thread, process
        self._since = 0.0
        self._all_take_s = 0.0  # At most: what the last visit took, and those of what was new since.
        self._used_s = 0.0
        self._looks = 0

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

    def look(self) -> None:
        """Collect what is due; to be called every PAUSE_S."""
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
