"""What a scenario is made of: a cluster's size, what goes wrong when, and how clients load it meanwhile.

Nodes are named by their place when a scenario begins: 0 is the leader, 1, 2, ... are its followers. So a scenario is
data, and means the same whoever was elected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


Action = Cut | Said | CutClients | ClientsSaid | Heal | Transfer | Kill | Stop | Pause


@dataclass(frozen=True)
class Step:
    """At so many seconds after the disturbance began."""

    at_s: float
    action: Action


@dataclass(frozen=True)
class Scenario:
    """One way for things to go wrong. After `lasting_s` everything is healed."""

    name: str
    steps: tuple[Step, ...]
    lasting_s: float = 1.5
    size: int = 3
    bulk: bool = field(default=False)
    """Whether a writer of megabytes works beside the clients."""


def scenario(name: str, *actions: Action | Step, lasting_s: float = 1.5, size: int = 3, bulk: bool = False) -> Scenario:
    """A scenario whose actions happen at once, or when a step says."""
    steps = tuple(action if isinstance(action, Step) else Step(0.0, action) for action in actions)
    return Scenario(name, steps, lasting_s, size, bulk)


def silent(pairs: frozenset[Pair], channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say does not arrive, and no connection breaks before it is healed."""
    return Said(pairs, "timeout", {"timeout": 0}, channels)


def slow(pairs: frozenset[Pair], latency: int, jitter: int = 0, channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say arrives so many milliseconds later."""
    return Said(pairs, "latency", {"latency": latency, "jitter": jitter}, channels)


def narrow(pairs: frozenset[Pair], kilobytes: int, channels: tuple[Channel, ...] = BOTH) -> Said:
    """What they say arrives at so many KB/s."""
    return Said(pairs, "bandwidth", {"rate": kilobytes}, channels)
