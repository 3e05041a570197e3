"""A node's disk and its clocks: when a sync ends, what it costs, and that it may fail or hang."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quire.log import Sync
from quire.log.simulated import faulty
from quire.replication.driver import Done

from .schedule import MILLISECOND, Schedule

START_CLOCK = 1_700_000_000_000_000


class SimDisk(faulty.Disk):
    """A disk that tells its node of each operation before it happens: the node may stop there."""

    def __init__(self, seed: str, before: Callable[[str], None]) -> None:
        super().__init__()
        self.random = Random(seed)
        self._before = before

    def step(self, operation: str, name: str, life: int) -> None:
        """One changing operation."""
        self.check(life)
        self._before(f"{operation} {name}")
        super().step(operation, name, life)


@dataclass
class Clocks:
    """A node's clocks. `rate` is how fast its monotonic one runs; `ahead` is what its wall clock is wrong by."""

    schedule: Schedule
    rate: float
    ahead: int

    def now(self) -> int:
        """Monotonic microseconds."""
        return int(self.schedule.now * self.rate)

    def clock(self) -> int:
        """The wall clock, which may be stepped back."""
        return START_CLOCK + self.now() + self.ahead


@dataclass
class Latency:
    """How long a sync takes, in microseconds: between the two, until `hangs_until` at least."""

    lowest: int
    highest: int
    hangs_until: int = 0


class SimDevice:
    """`Device` of one life of a node. `later` hands a call to the node, if it still lives then."""

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
        """The device does the work at some time between now and when it says so."""
        self._before("offload")
        latency, random, now = self._latency, self._random, self._clocks.schedule.now
        took = max(random.randint(latency.lowest, latency.highest), latency.hangs_until - now)
        if random.random() < 0.5:
            error = failure_of(block)
            self._later(took, lambda: done(error))
            return

        def finish() -> None:
            done(failure_of(block))

        self._later(took, finish)

    def sync_mark(self, sync: Sync, done: Done) -> None:
        """Beside the writer, at its own pace."""

        def finish() -> None:
            done(failure_of(sync.run))

        self._later(self._random.randint(0, 20 * MILLISECOND), finish)


def failure_of(block: Callable[[], None]) -> BaseException | None:
    """What a block raised, as a thread would hand it back; a loss of power ends the node instead."""
    try:
        block()
    except faulty.PowerLoss:
        raise
    except Exception as error:  # noqa: BLE001  # a thread's future takes whatever it is, too
        return error
    return None
