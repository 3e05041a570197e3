"""The built-in machines against models that share nothing with them, with a snapshot taken back on the way.

A history is cut somewhere: one replica goes on, another is restored from its snapshot there. Both give the same answers
and digests from then on, and both the model's.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.log import pack, unpack
from quire.sm import Applier, ArithmeticMachine, Context, KvMachine, StateMachine, check_batch, default_initial
from quire.sm.machines.kv import ANSWER_BYTES
from tests.sm import commands as arithmetic
from tests.sm import pairs
from tests.sm.frames import Frames
from tests.sm.test_arithmetic import rounded

NULL = pack(None)


class ArithmeticModel:
    """The value as an exact fraction, rounded once a command."""

    def __init__(self) -> None:
        self.value = Fraction(42)

    def answer(self, command: Any) -> Any:
        operation, operand = command
        number = Fraction(Decimal(operand))
        match operation:
            case "add":
                exact = self.value + number
            case "sub":
                exact = self.value - number
            case "mul":
                exact = self.value * number
            case _:
                exact = self.value / number
        result = rounded(exact)
        if result is None:
            return Refusal("OVERFLOW")
        self.value = result
        return result

    def seen(self, result: Any) -> Any:
        return Fraction(Decimal(result))

    def whole(self, state: Any) -> bool:
        return bool(self.seen(state) == self.value)


class KvModel:
    """A dict of packed values, one command at a time; answers are packed, too, for Python calls 1 and True equal."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def answer(self, command: Any) -> Any:
        operation, key, *operands = command
        known = self.values.get(key, NULL)
        match operation:
            case "put":
                return pack(self.change(key, pack(operands[0])) == NULL)
            case "get":
                return Refusal("ANSWER_TOO_LONG") if len(known) > ANSWER_BYTES else known
            case "delete":
                return pack(self.change(key, NULL) != NULL)
            case "cas":
                expected, value = map(pack, operands)
                if known == expected:
                    self.change(key, value)
                return pack(known == expected)
            case _:
                return self.count(key, known, operands[0] if operands else 1)

    def change(self, key: str, value: bytes) -> bytes:
        """Give a key its value; the one that it had."""
        known = self.values.pop(key, NULL) if value == NULL else self.values.get(key, NULL)
        if value != NULL:
            self.values[key] = value
        return known

    def count(self, key: str, known: bytes, number: int) -> Any:
        before = 0 if known == NULL else unpack(known)
        if type(before) is not int:
            return Refusal("NO_NUMBER")
        if not -(2**63) <= before + number < 2**64:
            return Refusal("OVERFLOW")
        self.change(key, pack(before + number))
        return pack(before + number)

    def seen(self, result: Any) -> Any:
        return pack(result)

    def whole(self, state: Any) -> bool:
        return [(key, pack(value)) for key, value in state.items()] == list(self.values.items())


class Refusal(NamedTuple):
    code: str


def restored(machine: StateMachine, other: Applier) -> Applier:
    """A replica that begins with another one's snapshot."""
    machine.restore(list(other.machine.snapshot()))
    return Applier(machine, boundary=other.boundary)


def check_history(make: type[StateMachine], model: Any, batches: Sequence[list[Any]], cut: int) -> None:
    """Two replicas, one of them restored before batch `cut`, and the model, over one history."""
    initial = default_initial(make)
    frames, appliers = Frames(), [Applier(make(initial))]
    for at, batch in enumerate(batches):
        if at == cut:
            appliers.append(restored(make(initial), appliers[0]))
        assert check_batch(appliers[0].machine, batch) == []
        frame, expected = frames.records(batch), [model.answer(command) for command in batch]
        for applied in [applier.apply(frame) for applier in appliers]:
            refused = {position: Refusal(code) for position, code, _ in applied.refused}
            assert [
                refused[position] if position in refused else model.seen(result)
                for position, result in enumerate(applied.results)
            ] == expected
    appliers.append(restored(make(initial), appliers[0]))
    for applier in appliers:
        assert model.whole(applier.state())
        assert (applier.digest, applier.applied_index) == (appliers[0].digest, appliers[0].applied_index)
        assert b"".join(applier.machine.snapshot()) == b"".join(appliers[0].machine.snapshot())


def histories(commands: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Batches of commands, and the position of the snapshot among them."""
    return given(st.lists(st.lists(commands, min_size=1, max_size=12), min_size=1, max_size=8), st.integers(0, 7))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@histories(arithmetic.commands)
def test_arithmetic_answers_as_exact_fractions_rounded_once(batches: list[list[Any]], cut: int) -> None:
    check_history(ArithmeticMachine, ArithmeticModel(), batches, cut)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@histories(pairs.commands)
def test_kv_answers_as_a_dict_of_packed_values(batches: list[list[Any]], cut: int) -> None:
    check_history(KvMachine, KvModel(), batches, cut)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(pairs.commands), pairs.keys, st.integers(1, 10))
def test_the_pages_of_a_scan_are_the_sorted_pairs_of_the_prefix(commands: list[Any], prefix: str, count: int) -> None:
    machine = KvMachine()
    machine.apply_batch(commands, [Context(0, 1, 0)] * len(commands))
    found: list[list[Any]] = []
    after = None
    while True:
        page = machine.query(["scan", prefix[:1], after, count])
        found += page["values"]
        if (after := page["next"]) is None:
            break
    assert found == [[key, value] for key, value in sorted(machine.query(None).items()) if key.startswith(prefix[:1])]
