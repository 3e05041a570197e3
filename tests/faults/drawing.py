"""Scenarios drawn by chance: the same seed draws the same ones."""

import random

from tests.faults.mesh import BOTH
from tests.faults.scenario import (
    CONTROL,
    STREAM,
    Action,
    ClientsSaid,
    Cut,
    CutClients,
    Heal,
    Kill,
    Pair,
    Pause,
    Said,
    Scenario,
    Step,
    Stop,
    Transfer,
    among,
    between,
)

SIZE = 3
MOST_STEPS = 5
LONGEST_S = 4.0
BULK = 0.2


def drawn(chance: random.Random, name: str) -> Scenario:
    """One to five things that go wrong within four seconds, each as likely as any other."""
    lasting_s = round(chance.uniform(0.5, LONGEST_S), 2)
    times = sorted(round(chance.uniform(0.0, lasting_s), 2) for _ in range(chance.randint(1, MOST_STEPS)))
    steps: list[Step] = []
    away: set[int] = set()
    for at_s in times:
        action = _action(chance)
        if isinstance(action, Kill | Stop | Pause):
            if away:
                continue  # One is away at a time: of two nobody leads, and nothing is learnt.
            away.add(action.place)
        steps.append(Step(at_s, action))
    return Scenario(name, tuple(steps), lasting_s, SIZE, bulk=chance.random() < BULK)


def _action(chance: random.Random) -> Action:
    places = tuple(range(SIZE))
    some = tuple(sorted(chance.sample(places, chance.randint(1, SIZE))))
    one = chance.choice(places)
    match chance.randrange(10):
        case 0:
            return Cut(between([one], places), chance.choice((BOTH, CONTROL, STREAM)))
        case 1 | 2 | 3:
            return _said(chance)
        case 4:
            return CutClients(some)
        case 5:
            kind, attributes = chance.choice((("timeout", {"timeout": 200}), ("limit_data", {"bytes": 2_000})))
            return ClientsSaid(some, "timeout" if kind == "timeout" else "limit_data", "downstream", attributes)
        case 6:
            return Heal()
        case 7:
            return Transfer(one)
        case 8:
            return Pause(one)
        case _:
            return chance.choice((Kill(one), Stop(one)))


def _said(chance: random.Random) -> Said:
    places = range(SIZE)
    one, every = chance.choice(list(places)), among(places)
    pairs: frozenset[Pair] = chance.choice(
        (
            every,
            between([one], places),
            frozenset(pair for pair in every if pair[0] == one),
            frozenset(pair for pair in every if pair[1] == one),
        )
    )
    channels = chance.choice((BOTH, BOTH, CONTROL, STREAM))
    latency, rate, size = chance.randint(1, 400), chance.randint(16, 2_000), chance.randint(500, 200_000)
    return chance.choice(
        (
            Said(pairs, "latency", {"latency": latency, "jitter": latency // 2}, channels),
            Said(pairs, "bandwidth", {"rate": rate}, channels),
            Said(pairs, "timeout", {"timeout": chance.choice((0, 300))}, channels),
            Said(pairs, "reset_peer", {"timeout": chance.randint(0, 500)}, channels),
            Said(pairs, "limit_data", {"bytes": size}, channels),
            Said(pairs, "slicer", {"average_size": 300, "size_variation": 200, "delay": 20}, channels),
        )
    )
