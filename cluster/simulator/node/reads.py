"""The linearizable reads that clients begin at a simulated node."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from quire.replication.core import events
from quire.sm import Applier

from .life import Life


@dataclass
class Reader:
    """A client that waits for a linearizable read. Gets `answer(state, applied_index)` or `fail()`."""

    answer: Callable[[object, int], None]
    fail: Callable[[], None]


class Queue:
    """The readers that wait until the machine has applied enough."""

    def __init__(self) -> None:
        self._reading: list[tuple[int, int, Reader]] = []

    def put(self, index: int, read_id: int, reader: Reader) -> None:
        """Wait until every record below `index` is applied."""
        heappush(self._reading, (index, read_id, reader))

    def answer(self, applier: Applier) -> None:
        """Answer those that have waited long enough."""
        while self._reading and self._reading[0][0] <= applier.applied_index:
            heappop(self._reading)[2].answer(applier.state(), applier.applied_index)

    def fail(self) -> None:
        """Answer none of them."""
        for _, _, reader in self._reading:
            reader.fail()
        self._reading.clear()


class Applied(Protocol):
    """What has been applied."""

    applier: Applier


class Reads:
    """Begins reads, and answers them when the machine has applied enough."""

    def __init__(self, life: Life, queue: Queue, applied: Applied) -> None:
        self._life = life
        self._queue = queue
        self._applied = applied
        self._readers: dict[int, Reader] = {}
        self._last_read = 0

    def begin(self, reader: Reader) -> None:
        """Begin a client's linearizable read."""
        self._last_read += 1
        self._readers[self._last_read] = reader
        self._life.node.step(events.ReadRequested(self._last_read))

    def read_ready(self, read_id: int, index: int | None) -> None:
        reader, applier = self._readers.pop(read_id), self._applied.applier
        if index is None or applier.failure is not None:
            reader.fail()
        elif applier.applied_index >= index:
            reader.answer(applier.state(), applier.applied_index)
        else:
            self._queue.put(index, read_id, reader)
