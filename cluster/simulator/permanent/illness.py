"""What a history's minority suffers from, drawn from its seed: one or two illnesses a node, and they do not end."""

from dataclasses import dataclass
from random import Random

MILLISECOND = 1_000
SECOND = 1_000_000
YEAR = 365 * 24 * 3_600 * SECOND
SHARE = 1 / 3
"""How many of all histories have an ordeal."""
LASTS_ELECTIONS = 30
"""How long it stays, in election timeouts."""

Value = str | int | float


@dataclass(frozen=True)
class Illness:
    """One illness, and how bad it is."""

    kind: str
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, (self.kind, *self.values)))


@dataclass(frozen=True)
class Ordeal:
    """What happens after the chaos. `patients` has the illnesses of each node that falls ill."""

    patients: tuple[tuple[Illness, ...], ...]
    strikes_leader: bool
    beside: str
    """What is under way as it begins: `transfer` to a patient, `promote` an observer, or nothing."""
    nominated: str
    """Whom the control plane nominates: `nobody`, a `patient`, a `healthy` node, or all voters in `turns`."""
    heals: bool

    def has(self, kind: str) -> bool:
        """Whether a patient has this kind of illness; any has the kind ""."""
        return not kind or any(illness.kind == kind for patient in self.patients for illness in patient)

    def __str__(self) -> str:
        patients = "; ".join(" + ".join(map(str, patient)) for patient in self.patients)
        whom = "the leader falls ill" if self.strikes_leader else "a follower falls ill"
        beside = f", beside a {self.beside}" if self.beside else ""
        return f"{whom}{beside}, {self.nominated} nominated: {patients}"


def has_ordeal(seed: int) -> bool:
    """Whether the history of a seed has one."""
    return Random(f"{seed}/permanent").random() < SHARE


def ordeal_of(seed: int, voters: int, *, expires: bool) -> Ordeal | None:
    """The ordeal of a seed; None in two of three. `expires` says that logs do: only then nodes are sent snapshots."""
    random = Random(f"{seed}/permanent")
    if random.random() >= SHARE:
        return None
    patients = random.randint(1, (voters - 1) // 2)
    kinds = [kind for kind in KINDS if expires or kind != "stuck_install"]
    return Ordeal(
        tuple(
            tuple(_illness(random, kind) for kind in random.sample(kinds, random.choice((1, 1, 2))))
            for _ in range(patients)
        ),
        strikes_leader=random.random() < 0.5,
        beside=random.choice(("", "", "", "transfer", "promote")),
        nominated=random.choice(("nobody", "patient", "patient", "healthy", "turns")),
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


def _illness(random: Random, kind: str) -> Illness:
    match kind:
        case "wrong_clock":
            return Illness(kind, (random.choice((-11 * SECOND, 11 * SECOND, -10 * YEAR, 10 * YEAR)),))
        case "clock_rate":
            return Illness(kind, (random.choice((0.5, 0.8, 1.25, 2.0)),))
        case "silent_flows":
            again_us = random.choice((0, 12 * 300 * MILLISECOND))
            return Illness(kind, (random.choice(("all", "links", "streams")), again_us))
        case "one_way":
            return Illness(
                kind, (random.choice(("hears nobody", "hears one less", "is not heard", "hears pongs alone")),)
            )
        case "crash_loop":
            return Illness(kind, (random.choice((50, 300, 900)) * MILLISECOND,))
        case _:
            return Illness(kind)
