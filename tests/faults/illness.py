"""What may be wrong with a node for good, as actions; `tests/faults/drawing.py` makes scenarios of it.

All of it stays until everything is healed. An illness strikes one node, the patient, and links between it and others.
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
Strikes = Callable[[int, Others], Action]

ILLNESSES: dict[str, Strikes] = {
    "its disk is full": lambda ill, others: FillDisk(ill),
    "its disk is slow": lambda ill, others: SlowDisk(ill, SLOW_S),
    "its disk hangs": lambda ill, others: HangDisk(ill),
    "its machine failed": lambda ill, others: FailMachine(ill),
    "its connections fell silent": lambda ill, others: Silence(between([ill], others)),
    "its streams fell silent": lambda ill, others: Silence(between([ill], others), STREAM),
    "its control links fell silent": lambda ill, others: Silence(between([ill], others), CONTROL),
    "it hears nobody": lambda ill, others: silent(to(ill, *others)),
    "nobody hears it": lambda ill, others: silent(of(ill, *others)),
    "nobody hears its streams": lambda ill, others: silent(of(ill, *others), STREAM),
    "it is cut off": lambda ill, others: Cut(between([ill], others)),
    "it does not reach one other": lambda ill, others: Cut(between([ill], others[:1])),
    "its links are slow": lambda ill, others: slow(between([ill], others), 600, 300),
    "its links break again and again": lambda ill, others: Said(between([ill], others), "timeout", {"timeout": 400}),
    "its clock is 11 s ahead": lambda ill, others: SetClock(ill, 11),
    "its clock is ten years ahead": lambda ill, others: SetClock(ill, TEN_YEARS_S),
    "its clock is ten years behind": lambda ill, others: SetClock(ill, -TEN_YEARS_S),
    "it was killed": lambda ill, others: Kill(ill),
    "it is frozen": lambda ill, others: Pause(ill),
    "it lost its identity": lambda ill, others: Damage(ill, (IDENTITY,)),
    "it lost its promise": lambda ill, others: Damage(ill, (PROMISE,)),
    "it lost its mark": lambda ill, others: Damage(ill, (MARK,)),
    "it lost its log": lambda ill, others: Damage(ill, (LOG,)),
    "it lost its log and its mark": lambda ill, others: Damage(ill, (LOG, MARK)),
    "it lost all but its log": lambda ill, others: Damage(ill, (IDENTITY, PROMISE, MARK)),
    "it has another's identity": lambda ill, others: Damage(ill, (IDENTITY,), others[0]),
    "it has another's mark": lambda ill, others: Damage(ill, (MARK,), others[0]),
    "it has another's log": lambda ill, others: Damage(ill, (LOG,), others[0]),
    "it is replaced": lambda ill, others: Replace(ill),
}
"""What is wrong, and how it comes about: of who is ill, and all others."""

OF_VOLUMES = frozenset({"its disk is full"})
OF_ITS_PROCESS = frozenset(
    name for name, strikes in ILLNESSES.items() if isinstance(strikes(0, (1, 2)), Kill | Pause | Damage | Replace)
)
"""Of these a node has one at a time."""
