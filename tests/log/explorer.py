"""The crash explorer: stops a change before each of its storage operations and after the last, then loses any part of
what was not synced.

A disk orders nothing but its syncs. So a crash leaves what was synced, and any subset of the later changes: sectors,
sizes, names. If these subsets are few, all are tried; else all changes, none, all but one, only one, and others at
random. (The content of an index file, which is never synced, is always lost at random.) From one outcome at each point,
recovery itself is stopped before each of its operations, with another loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from quire.log.segment.store import INDEX_SUFFIX
from quire.log.simulated import Disk, Kept
from tests.log.histories import History

Steps = Callable[[History], None]

OUTCOMES = 16
"""How many outcomes of a crash are tried at each point; soaks try more."""


class WatchedDisk(Disk):
    """A disk that calls `before`, if it is set, before each changing operation."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], None] | None = None

    def step(self, operation: str, name: str, life: int) -> None:
        self.check(life)
        if self.before is not None:
            self.before(f"{operation} {name}")
        super().step(operation, name, life)


def explore(prepare: Steps, steps: Steps, *, outcomes: int = OUTCOMES, seed: int = 0) -> int:
    """Crash `steps` at every point in many ways, and check what a reopening finds; return how many were tried."""
    tried = 0
    for number, (point, operation) in enumerate(stops(prepare, steps)):
        random = Random(seed << 32 | number)
        for place, kept in enumerate(losses(point.disk, outcomes, random)):
            lost: list[str] = []
            crashed = point.fork()
            crashed.disk.lose_power(_noting(kept, lost))
            try:
                if place == 0:
                    _stop_recovery(crashed, random)
                _check(crashed)
            except Exception as error:
                how = f"{prepare.__name__}, {steps.__name__}: stopped before {operation} (step {number})"
                error.add_note(f"{how}, seed {seed}, crash {place} of {outcomes}; lost: {', '.join(lost) or 'nothing'}")
                raise
            tried += 1
    return tried


def stops(prepare: Steps, steps: Steps) -> list[tuple[History, str]]:
    """Return how `steps` left the disk before each operation, with that operation, and at the end."""
    points: list[tuple[History, str]] = []

    def note(operation: str) -> None:
        if not history.truncating:
            history.note_durable()
        points.append((history.fork(), operation))

    disk = WatchedDisk()
    history = History(disk)
    history.open()
    prepare(history)
    disk.before = note
    steps(history)
    note("the end")
    return points


def losses(disk: Disk, most: int, random: Random) -> Iterator[Kept]:
    """Yield functions that say which unsynced changes survive: every possibility, if there are at most `most`."""
    count = sum(not name.endswith(INDEX_SUFFIX) for name in disk.unsynced())
    every = 1 << count
    if every <= most:
        order = [*range(every)]
        random.shuffle(order)
        yield from (_by_bits(bits, random) for bits in order)
        return
    for _ in range(most - most // 4 * 3):
        yield _by_bits(random.getrandbits(count), random)
    yield _by_bits(0, random)
    yield _by_bits(every - 1, random)
    singles = [1 << place for place in range(count)] + [every - 1 - (1 << place) for place in range(count)]
    for _ in range(most // 4 * 3 - 2):
        yield _by_bits(singles.pop(random.randrange(len(singles))) if singles else random.getrandbits(count), random)


def _by_bits(bits: int, random: Random) -> Kept:
    """Return what lets the first change survive if the lowest bit is set, and so on."""
    left = bits

    def kept(name: str) -> bool:
        nonlocal left
        if name.endswith(INDEX_SUFFIX):
            return random.random() < 0.5
        answer, left = bool(left & 1), left >> 1
        return answer

    return kept


def _noting(kept: Kept, lost: list[str]) -> Kept:
    def noted(name: str) -> bool:
        answer = kept(name)
        if not answer:
            lost.append(name)
        return answer

    return noted


def _stop_recovery(crashed: History, random: Random) -> None:
    """Open what a crash left, and check what a second crash at each operation of this open leaves."""
    points: list[Disk] = []
    watched = WatchedDisk()
    first = crashed.fork(crashed.disk.fork(watched))
    watched.before = lambda _: points.append(watched.fork())
    first.open()
    for disk in points:
        disk.lose_power(_by_bits(random.getrandbits(64), random))
        crashed.fork(disk).check_reopened()


def _check(crashed: History) -> None:
    crashed.check_reopened()
    # The log that is left takes appends, stops cleanly, and opens unchanged.
    crashed.append(3)
    crashed.flush()
    crashed.close()
    crashed.check_reopened()
