"""The actions of scenarios on a cluster's links and nodes, as data.

Nodes are named by their place when a scenario begins: 0 is the leader, 1, 2, ... are its followers. So the same actions
mean the same whoever was elected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.mesh import BOTH, Channel
from tests.faults.toxiproxy import Direction, ToxicKind

LEADER, FOLLOWER, OTHER, THIRD, FOURTH = range(5)

Pair = tuple[int, int]
CONTROL, STREAM = (Channel.CONTROL,), (Channel.STREAM,)


def between(some: Iterable[int], others: Iterable[int]) -> frozenset[Pair]:
    """Each of one group dials each of the other, and the reverse."""
    left, right = list(some), list(others)
    return frozenset(
        (a, b) for first, second in ((left, right), (right, left)) for a in first for b in second if a != b
    )


def among(places: Iterable[int]) -> frozenset[Pair]:
    """Each dials each other."""
    those = list(places)
    return frozenset((a, b) for a in those for b in those if a != b)


def to(place: int, *others: int) -> frozenset[Pair]:
    """What others say to one."""
    return frozenset((other, place) for other in others)


def of(place: int, *others: int) -> frozenset[Pair]:
    """What one says to others."""
    return frozenset((place, other) for other in others)


@dataclass(frozen=True)
class Cut:
    """Break what these dial, (dialler, target), and refuse it from now on."""

    dialled: frozenset[Pair]
    channels: tuple[Channel, ...] = BOTH


@dataclass(frozen=True)
class Said:
    """Poison what nodes say, (speaker, hearer), on whichever connection it goes."""

    pairs: frozenset[Pair]
    kind: ToxicKind
    attributes: dict[str, int]
    channels: tuple[Channel, ...] = BOTH


@dataclass(frozen=True)
class CutClients:
    """Break what clients dial to these nodes."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class ClientsSaid:
    """Poison what clients ask these nodes (upstream), or what they are answered (downstream)."""

    places: tuple[int, ...]
    kind: ToxicKind
    direction: Direction
    attributes: dict[str, int]


@dataclass(frozen=True)
class Heal:
    """Take away all that was done to links so far."""


@dataclass(frozen=True)
class Transfer:
    """Ask the leader to hand over to this one; whether it does is its affair."""

    to: int


@dataclass(frozen=True)
class Kill:
    """SIGKILL; started again at the end."""

    place: int


@dataclass(frozen=True)
class Stop:
    """SIGTERM, which lets a leader hand over first; started again at the end."""

    place: int


@dataclass(frozen=True)
class Pause:
    """SIGSTOP; goes on at the end."""

    place: int


@dataclass(frozen=True)
class SetClock:
    """Set this one's wall clock to so many seconds ahead of the right time (negative: behind); right again at the end.

    Only a minority's: of three clocks of which two are wrong, a majority is.
    """

    place: int
    ahead_s: int


@dataclass(frozen=True)
class LeaveBehind:
    """Cut this one off until the log of every other voter begins above its end, however long that takes."""

    place: int


@dataclass(frozen=True)
class AwaitInstall:
    """Wait until this one has a whole chunk of a snapshot that it fetches; or all of it."""

    place: int


@dataclass(frozen=True)
class Silence:
    """Nothing more passes on the connections that these have dialled so far, (dialler, target); new ones pass."""

    dialled: frozenset[Pair]
    channels: tuple[Channel, ...] = BOTH


@dataclass(frozen=True)
class FillDisk:
    """This one's volume has no room left; it needs a shape with volumes."""

    place: int


@dataclass(frozen=True)
class SlowDisk:
    """Each sync of this one's files takes so many seconds longer."""

    place: int
    seconds: float


@dataclass(frozen=True)
class HangDisk:
    """No sync of this one's files ends."""

    place: int


@dataclass(frozen=True)
class FailMachine:
    """This one's machine raises in every apply; the process is started again at the end."""

    place: int


@dataclass(frozen=True)
class Damage:
    """Kill this one, take files or folders of its data_dir away, or put another node's in their place, and start it."""

    place: int
    files: tuple[str, ...]
    by: int | None = None
    """Whose files it gets; None: it lost them."""


@dataclass(frozen=True)
class Replace:
    """Kill this one, wipe its disk, start it, and ask the others again and again to make it a voter."""

    place: int


Action = (
    Cut
    | Said
    | CutClients
    | ClientsSaid
    | Heal
    | Transfer
    | Kill
    | Stop
    | Pause
    | SetClock
    | LeaveBehind
    | AwaitInstall
    | Silence
    | FillDisk
    | SlowDisk
    | HangDisk
    | FailMachine
    | Damage
    | Replace
)


def silent(pairs: frozenset[Pair], channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say does not arrive, and no connection breaks before it is healed."""
    return Said(pairs, "timeout", {"timeout": 0}, channels)


def slow(pairs: frozenset[Pair], latency: int, jitter: int = 0, channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say arrives so many milliseconds later."""
    return Said(pairs, "latency", {"latency": latency, "jitter": jitter}, channels)


def narrow(pairs: frozenset[Pair], kilobytes: int, channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say arrives at so many KB/s."""
    return Said(pairs, "bandwidth", {"rate": kilobytes}, channels)
