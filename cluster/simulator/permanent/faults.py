"""The permanent faults of a history's minority, drawn from its seed: one or two per node."""

from dataclasses import dataclass
from random import Random

MILLISECOND = 1_000
SECOND = 1_000_000
YEAR = 365 * 24 * 3_600 * SECOND
SHARE = 1 / 3
"""The share of histories that have permanent faults."""
LASTS_ELECTIONS = 30
"""How long they are watched, in election timeouts."""

Value = str | int | float


@dataclass(frozen=True)
class PermanentFault:
    """One fault of a node, with its parameters."""

    kind: str
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, (self.kind, *self.values)))


@dataclass(frozen=True)
class PermanentFaults:
    """What happens after the chaos. `faulty` has the faults of each node that gets any."""

    faulty: tuple[tuple[PermanentFault, ...], ...]
    hits_leader: bool
    concurrent: str
    """What is in progress when they begin: `transfer` to a faulty node, `promote` an observer, or nothing."""
    nominated: str
    """Which nodes the control plane nominates: `nobody`, a `faulty` one, a `healthy` one, or `all` voters in turn."""
    heals: bool

    def has(self, kind: str) -> bool:
        """Whether a node has this kind of fault; any counts for the kind ""."""
        return not kind or any(fault.kind == kind for faults in self.faulty for fault in faults)

    def __str__(self) -> str:
        faulty = "; ".join(" + ".join(map(str, faults)) for faults in self.faulty)
        whom = "the leader fails" if self.hits_leader else "a follower fails"
        concurrent = f", during a {self.concurrent}" if self.concurrent else ""
        return f"{whom}{concurrent}, {self.nominated} nominated: {faulty}"


def has_permanent_faults(seed: int) -> bool:
    """Whether the history of a seed has any."""
    return Random(f"{seed}/permanent").random() < SHARE


def permanent_faults_of(seed: int, voters: int, *, expires: bool) -> PermanentFaults | None:
    """The permanent faults of a seed; None in two of three. Only if the log `expires`, nodes are sent snapshots."""
    random = Random(f"{seed}/permanent")
    if random.random() >= SHARE:
        return None
    count = random.randint(1, (voters - 1) // 2)
    kinds = [kind for kind in KINDS if expires or kind != "stuck_install"]
    return PermanentFaults(
        tuple(
            tuple(_fault(random, kind) for kind in random.sample(kinds, random.choice((1, 1, 2)))) for _ in range(count)
        ),
        hits_leader=random.random() < 0.5,
        concurrent=random.choice(("", "", "", "transfer", "promote")),
        nominated=random.choice(("nobody", "faulty", "faulty", "healthy", "all")),
        heals=random.random() < 0.5,
    )


KINDS = (
    "full_disk",
    "slow_disk",
    "hung_disk",
    "failed_machine",
    "wrong_clock",
    "clock_rate",
    "silent_flows",
    "one_way",
    "partial_reach",
    "crash_loop",
    "stuck_install",
)


OTHER_CODE_KINDS = ("live", "restart")
"""How a node comes to run other code; see `Injector`."""


def other_code_of(seed: int, voters: int) -> PermanentFaults:
    """A minority that runs other code than the rest, mostly with the leader among it; in the end it gets theirs."""
    random = Random(f"{seed}/other code")
    count = random.randint(1, (voters - 1) // 2)
    return PermanentFaults(
        tuple((PermanentFault("other_code", (random.choice(OTHER_CODE_KINDS),)),) for _ in range(count)),
        hits_leader=random.random() < 0.8,
        concurrent=random.choice(("", "", "transfer", "promote")),
        nominated=random.choice(("nobody", "faulty", "faulty", "healthy", "all")),
        heals=True,
    )


def _fault(random: Random, kind: str) -> PermanentFault:
    match kind:
        case "wrong_clock":
            return PermanentFault(kind, (random.choice((-11 * SECOND, 11 * SECOND, -10 * YEAR, 10 * YEAR)),))
        case "clock_rate":
            return PermanentFault(kind, (random.choice((0.5, 0.8, 1.25, 2.0)),))
        case "silent_flows":
            again_us = random.choice((0, 12 * 300 * MILLISECOND))
            return PermanentFault(kind, (random.choice(("all", "links", "streams")), again_us))
        case "one_way":
            return PermanentFault(
                kind, (random.choice(("hears nobody", "hears one less", "is not heard", "hears pongs alone")),)
            )
        case "crash_loop":
            return PermanentFault(kind, (random.choice((50, 300, 900)) * MILLISECOND,))
        case _:
            return PermanentFault(kind)
