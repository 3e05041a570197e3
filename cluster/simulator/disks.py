"""A node's disk: how long a sync takes, and that it may fail or hang."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quire.log.simulated import faulty
from quire.replication.ports import Done

from .clock import MILLISECOND, Clocks


class SimDisk(faulty.Disk):
    """A disk that announces each operation to its node first: the node may die at that point."""

    def __init__(self, seed: str, before: Callable[[str], None]) -> None:
        super().__init__()
        self.random = Random(seed)
        self._before = before

    def step(self, operation: str, name: str, life: int) -> None:
        """Announce and do one changing operation."""
        self.check(life)
        self._before(f"{operation} {name}")
        super().step(operation, name, life)


@dataclass
class Latency:
    """How long a sync takes: from `lowest` to `highest` microseconds, and at least until `hangs_until`.

    `busy_until` is when the last one ends.
    """

    lowest: int
    highest: int
    hangs_until: int = 0
    busy_until: int = 0


class SimDevice:
    """The driver's `Device` for one process. `later` makes a call after a delay, if that process still runs."""

    def __init__(
        self,
        clocks: Clocks,
        latency: Latency,
        random: Random,
        later: Callable[[int, Callable[..., None]], None],
        before: Callable[[str], None],
    ) -> None:
        self._clocks = clocks
        self._latency = latency
        self._random = random
        self._later = later
        self._before = before

    def now(self) -> int:
        return self._clocks.now()

    def clock(self) -> int:
        return self._clocks.clock()

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        self._later(delay_us, then)

    def write(self, block: Callable[[], None], done: Done) -> None:
        """Do the work at the beginning or at the end of the time that it takes."""
        self._before("offload")
        latency, random, now = self._latency, self._random, self._clocks.schedule.now
        took = max(random.randint(latency.lowest, latency.highest), latency.hangs_until - now)
        latency.busy_until = now + took
        if random.random() < 0.5:
            error = failure_of(block)
            self._later(took, lambda: done(error, took))
            return

        def finish() -> None:
            done(failure_of(block), took)

        self._later(took, finish)

    def sync_mark(self, block: Callable[[], None], done: Done) -> None:
        """Sync the mark independently of the writer."""

        def finish() -> None:
            done(failure_of(block), 0)

        self._later(self._random.randint(0, 20 * MILLISECOND), finish)


def failure_of(block: Callable[[], None]) -> BaseException | None:
    """The exception of a block, as a thread would return it. A power loss is raised: it ends the node."""
    try:
        block()
    except faulty.PowerLoss:
        raise
    except Exception as error:  # noqa: BLE001  # As a thread's future does.
        return error
    return None
