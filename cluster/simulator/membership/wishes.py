"""What an operator wants of the members during a history, drawn from its seed by random numbers of its own.

About half of all histories have such wishes. The others are as they would be without this module, so that their traces
can be compared from version to version.
"""

from random import Random
from typing import NamedTuple

from ..clock import MILLISECOND, SECOND

CHANCE = 0.75
"""How often a history without permanent faults has wishes: about half of all."""
EARLIEST_US = SECOND
KINDS = {"add": 4.0, "remove": 3.0, "demote": 1.5, "promote": 1.0, "move": 1.0, "drain": 1.0, "return": 1.5}
MEMBER_KINDS = frozenset(KINDS)
WISHES = (2, 8)
MOST_SPARES = 3
AWAY = "away"
"""Value of a wish: the node is cut off at that time, and promises another candidate meanwhile."""
OFTEN_AWAY = 0.4
OFTEN_RECOVERED = 0.2
OFTEN_RESTORED = 0.25

Value = str | int | float | bool


class Wished(NamedTuple):
    """A wish, as a fault of the plan: when, its kind, the nodes, and the values."""

    at: int
    kind: str
    whom: tuple[str, ...]
    values: tuple[Value, ...] = ()


class MemberPlan(NamedTuple):
    """What a history needs for its wishes: spare nodes, and after how long a lost disk is replaced (0: never)."""

    spares: int
    auto_replace_us: int
    rates: tuple[float, ...]
    """The rates of the spare nodes' clocks."""
    wishes: tuple[Wished, ...]
    recovers: bool
    """Whether a majority of the disks is lost in the end, and a survivor is recovered."""
    restores: bool
    """Whether a backup is restored beside the members."""


def member_plan_of(seed: int, node_ids: list[str], chaos_us: int) -> MemberPlan | None:
    """The wishes of a seed; None if its history has none."""
    random = Random(f"{seed}/members")
    if random.random() >= CHANCE:
        return None
    spares = random.choice((0, 1, 1, 2, 2, MOST_SPARES))
    spare_ids = [f"n{len(node_ids) + number + 1}" for number in range(spares)]
    everyone = [*node_ids, *spare_ids]
    wishes: list[Wished] = []
    if spare_ids:
        wishes.append(_addition(random, spare_ids, random.randint(EARLIEST_US, 2 * SECOND)))
    for _ in range(random.randint(*WISHES)):
        at = random.randint(EARLIEST_US, chaos_us)
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        wish = _wish(random, kind, everyone, spare_ids, at)
        wishes.append(wish)
        if AWAY in wish.values and kind == "remove" and random.random() < 0.5:
            again = at + random.randint(100, 1200) * MILLISECOND
            wishes.append(Wished(again, "add", wish.whom, ("joining",)))
    auto_replace_us = random.choice((0, 0, 0, 500, 1500)) * MILLISECOND
    if auto_replace_us:
        wishes.append(Wished(random.randint(EARLIEST_US, chaos_us // 2), "wipe", (random.choice(node_ids),)))
    rates = tuple(random.uniform(0.98, 1.02) for _ in spare_ids)
    recovers = Random(f"{seed}/recovery").random() < OFTEN_RECOVERED
    restores = not recovers and Random(f"{seed}/restore").random() < OFTEN_RESTORED
    return MemberPlan(spares, auto_replace_us, rates, tuple(wishes), recovers, restores)


def _addition(random: Random, spare_ids: list[str], at: int) -> Wished:
    """Add some or all spare nodes, which start before that or after."""
    added = random.sample(spare_ids, random.randint(1, len(spare_ids)))
    return Wished(at, "add", tuple(added), (random.choice(("joining", "joining", "joining", "observer")),))


def _wish(random: Random, kind: str, everyone: list[str], spare_ids: list[str], at: int) -> Wished:
    whom = random.choice(("leader", *everyone, *everyone))
    match kind:
        case "add":
            return _addition(random, random.choice((spare_ids or everyone, everyone)), at)
        case "move":
            address = random.choice((f"{whom}:1", f"{whom}:2", f"{whom}:2", f"{random.choice(everyone)}:1"))
            return Wished(at, kind, (whom,), (address,))
        case "drain":
            return Wished(at, kind, (whom,), (random.choice((300, 1000, 2500)) * MILLISECOND,))
        case "return":
            return Wished(at, kind, (random.choice(everyone),))
        case "remove" | "demote" if whom != "leader" and random.random() < OFTEN_AWAY:
            return Wished(at, kind, (whom,), (AWAY,))
        case _:
            return Wished(at, kind, (whom,))
