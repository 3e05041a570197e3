"""Scenarios drawn at random: the same seed draws the same ones."""

import random

from tests.faults import actions
from tests.faults.mesh import BOTH
from tests.faults.permanent import OF_ITS_PROCESS, PERMANENT_FAULTS, TEN_YEARS_S
from tests.faults.scenario import Scenario, Shape, Step

SIZE = 3
MOST_STEPS = 5
LONGEST_S = 4.0
BULK = 0.2
SHORTEST_PERMANENT_S, LONGEST_PERMANENT_S = 6.0, 9.0
APART_S = 2.0  # Between what goes wrong first and second.
OF_FIVE = 0.25  # Of the scenarios with a faulty minority: two faulty nodes of five. The others: one of three.


def drawn(chance: random.Random, name: str) -> Scenario:
    """One to five things that go wrong within four seconds, each as likely as any other."""
    lasting_s = round(chance.uniform(0.5, LONGEST_S), 2)
    times = sorted(round(chance.uniform(0.0, lasting_s), 2) for _ in range(chance.randint(1, MOST_STEPS)))
    steps: list[Step] = []
    away: set[int] = set()
    for at_s in times:
        action = _action(chance)
        if isinstance(action, actions.Kill | actions.Stop | actions.Pause):
            if away:
                continue  # One is away at a time: of two nobody leads, and nothing is learnt.
            away.add(action.place)
        if isinstance(action, actions.SetClock):
            if any(isinstance(step.action, actions.SetClock) for step in steps):
                continue  # Two wrong clocks of three are a majority.
        steps.append(Step(at_s, action))
    return Scenario(name, tuple(steps), lasting_s, Shape(SIZE), bulk=chance.random() < BULK)


def drawn_for_good(chance: random.Random, name: str) -> Scenario:
    """A minority has permanent faults: one of three nodes has one or two, or two of five nodes have one each."""
    size = 5 if chance.random() < OF_FIVE else SIZE
    nodes = range(size)
    faulty = chance.sample(nodes, 2) if size == 5 else [chance.choice(nodes)] * chance.choice((1, 2))
    steps: list[Step] = []
    kinds: list[str] = []
    at_s = 0.0
    for node in faulty:
        if size == SIZE and kinds and kinds[0] in OF_ITS_PROCESS:
            left = [kind for kind in PERMANENT_FAULTS if kind not in OF_ITS_PROCESS]
        else:
            left = [kind for kind in PERMANENT_FAULTS if kind not in kinds]
        kind = chance.choice(left)
        # A fault that copies files of another node copies those of a healthy one.
        others = [each for each in nodes if each not in faulty] + [each for each in faulty if each != node]
        steps.append(Step(at_s, PERMANENT_FAULTS[kind](node, others)))
        kinds.append(kind)
        at_s = round(chance.uniform(0.0, APART_S), 2)
    lasting_s = round(chance.uniform(SHORTEST_PERMANENT_S, LONGEST_PERMANENT_S), 2)
    return Scenario(name, tuple(steps), lasting_s, Shape(size, volumes=True), permanent=tuple(kinds))


def _action(chance: random.Random) -> actions.Action:
    places = tuple(range(SIZE))
    some = tuple(sorted(chance.sample(places, chance.randint(1, SIZE))))
    one = chance.choice(places)
    match chance.randrange(11):
        case 0:
            return actions.Cut(actions.between([one], places), chance.choice((BOTH, actions.CONTROL, actions.STREAM)))
        case 1 | 2 | 3:
            return _said(chance)
        case 4:
            return actions.CutClients(some)
        case 5:
            kind, attributes = chance.choice((("timeout", {"timeout": 200}), ("limit_data", {"bytes": 2_000})))
            return actions.ClientsSaid(some, "timeout" if kind == "timeout" else "limit_data", "downstream", attributes)
        case 6:
            return actions.Heal()
        case 7:
            return actions.Transfer(one)
        case 8:
            return actions.Pause(one)
        case 9:
            return actions.SetClock(one, chance.choice((-TEN_YEARS_S, -11, 11, TEN_YEARS_S)))
        case _:
            return chance.choice((actions.Kill(one), actions.Stop(one)))


def _said(chance: random.Random) -> actions.Said:
    places = range(SIZE)
    one, every = chance.choice(list(places)), actions.among(places)
    others = [place for place in places if place != one]
    pairs: frozenset[actions.Pair] = chance.choice(
        (
            every,
            actions.between([one], places),
            actions.of(one, *others),
            actions.to(one, *others),
        )
    )
    channels = chance.choice((BOTH, BOTH, actions.CONTROL, actions.STREAM))
    latency, rate, size = chance.randint(1, 400), chance.randint(16, 2_000), chance.randint(500, 200_000)
    return chance.choice(
        (
            actions.Said(pairs, "latency", {"latency": latency, "jitter": latency // 2}, channels),
            actions.Said(pairs, "bandwidth", {"rate": rate}, channels),
            actions.Said(pairs, "timeout", {"timeout": chance.choice((0, 300))}, channels),
            actions.Said(pairs, "reset_peer", {"timeout": chance.randint(0, 500)}, channels),
            actions.Said(pairs, "limit_data", {"bytes": size}, channels),
            actions.Said(pairs, "slicer", {"average_size": 300, "size_variation": 200, "delay": 20}, channels),
        )
    )
