"""Permanent faults of a node, as actions; `tests/faults/drawing.py` makes scenarios of it.

Each fault lasts until all faults are healed. It concerns one node, and links between that node and others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.faults.actions import (
    CONTROL,
    STREAM,
    Action,
    Cut,
    Damage,
    FailMachine,
    FillDisk,
    HangDisk,
    Kill,
    Pause,
    Replace,
    Said,
    SetClock,
    Silence,
    SlowDisk,
    between,
    of,
    silent,
    slow,
    to,
)

TEN_YEARS_S = 10 * 365 * 86_400
SLOW_S = 0.9  # Of the election timeout that the scenarios have.
IDENTITY, PROMISE, MARK, LOG = "identity", "promise", "mark", "log"

Others = Sequence[int]
Inject = Callable[[int, Others], Action]

PERMANENT_FAULTS: dict[str, Inject] = {
    "its disk is full": lambda faulty, others: FillDisk(faulty),
    "its disk is slow": lambda faulty, others: SlowDisk(faulty, SLOW_S),
    "its disk hangs": lambda faulty, others: HangDisk(faulty),
    "its machine failed": lambda faulty, others: FailMachine(faulty),
    "its connections fell silent": lambda faulty, others: Silence(between([faulty], others)),
    "its streams fell silent": lambda faulty, others: Silence(between([faulty], others), STREAM),
    "its control links fell silent": lambda faulty, others: Silence(between([faulty], others), CONTROL),
    "it hears nobody": lambda faulty, others: silent(to(faulty, *others)),
    "nobody hears it": lambda faulty, others: silent(of(faulty, *others)),
    "nobody hears its streams": lambda faulty, others: silent(of(faulty, *others), STREAM),
    "it is cut off": lambda faulty, others: Cut(between([faulty], others)),
    "it does not reach one other": lambda faulty, others: Cut(between([faulty], others[:1])),
    "its links are slow": lambda faulty, others: slow(between([faulty], others), 600, 300),
    "its links break again and again": lambda faulty, others: Said(
        between([faulty], others), "timeout", {"timeout": 400}
    ),
    "its clock is 11 s ahead": lambda faulty, others: SetClock(faulty, 11),
    "its clock is ten years ahead": lambda faulty, others: SetClock(faulty, TEN_YEARS_S),
    "its clock is ten years behind": lambda faulty, others: SetClock(faulty, -TEN_YEARS_S),
    "it was killed": lambda faulty, others: Kill(faulty),
    "it is frozen": lambda faulty, others: Pause(faulty),
    "it lost its identity": lambda faulty, others: Damage(faulty, (IDENTITY,)),
    "it lost its promise": lambda faulty, others: Damage(faulty, (PROMISE,)),
    "it lost its mark": lambda faulty, others: Damage(faulty, (MARK,)),
    "it lost its log": lambda faulty, others: Damage(faulty, (LOG,)),
    "it lost its log and its mark": lambda faulty, others: Damage(faulty, (LOG, MARK)),
    "it lost all but its log": lambda faulty, others: Damage(faulty, (IDENTITY, PROMISE, MARK)),
    "it has another's identity": lambda faulty, others: Damage(faulty, (IDENTITY,), others[0]),
    "it has another's mark": lambda faulty, others: Damage(faulty, (MARK,), others[0]),
    "it has another's log": lambda faulty, others: Damage(faulty, (LOG,), others[0]),
    "it is replaced": lambda faulty, others: Replace(faulty),
}
"""Each fault by name, and the action that injects it into a node, given the other nodes."""

OF_VOLUMES = frozenset({"its disk is full"})
OF_ITS_PROCESS = frozenset(
    name for name, inject in PERMANENT_FAULTS.items() if isinstance(inject(0, (1, 2)), Kill | Pause | Damage | Replace)
)
"""Of these a node has one at a time."""
