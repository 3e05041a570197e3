"""The bytes that kv counts: those of its pairs at any time, and the limit on them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.log import pack
from quire.sm import Context, KvMachine, Refused
from quire.sm.machines.kv_size import ENTRY_BYTES, INT_BYTES
from tests.sm import pairs
from tests.sm.test_models import KvModel, Refusal, check_history

CONTEXT = Context(0, 1, 0)
LIMIT = 6 * ENTRY_BYTES
"""Room for five short pairs."""


def counted(values: dict[str, Any]) -> int:
    """What the page says that the pairs count."""
    sizes = (INT_BYTES if type(value) is int else len(pack(value)) for value in values.values())
    return sum(len(pack(key)) + ENTRY_BYTES for key in values) + sum(sizes)


def limited(limit: int) -> KvMachine:
    machine = KvMachine()
    machine.limit_state(limit)
    return machine


def size_of(machine: KvMachine) -> int:
    return int(machine.query(["size"])["bytes"])


def answers(machine: KvMachine, *commands: list[Any]) -> list[Any]:
    given = machine.apply_batch(commands, [CONTEXT] * len(commands))
    return [reply.code if isinstance(reply, Refused) else reply for reply in given]


class SmallKv(KvMachine):
    """With a limit that a few commands reach."""

    def __init__(self, initial: None = None) -> None:
        super().__init__(initial)
        self.limit_state(LIMIT)


class SmallModel(KvModel):
    """Counts everything anew after each command, and takes back what made it grow beyond the limit."""

    def answer(self, command: Any) -> Any:
        before = self.values.copy()
        answer = super().answer(command)
        if self.size(self.values) > max(LIMIT, self.size(before)):
            self.values = before
            return Refusal("STATE_FULL")
        return answer

    def size(self, packed: dict[str, bytes]) -> int:
        ints = {0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3}
        heads = ((value[0], len(value)) for value in packed.values())
        sizes = (INT_BYTES if head <= 0x7F or head >= 0xE0 or head in ints else length for head, length in heads)
        return sum(len(pack(key)) + ENTRY_BYTES for key in packed) + sum(sizes)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(pairs.commands, min_size=1, max_size=12), min_size=1, max_size=8), st.integers(0, 7))
def test_replicas_with_a_limit_refuse_the_same_whether_they_were_restored_or_not(
    batches: list[list[Any]], cut: int
) -> None:
    check_history(SmallKv, SmallModel(), batches, cut)


LENGTHS = st.sampled_from([0, 1, 31, 32, 255, 256, 65_530])
LONG = st.one_of(
    st.builds("x".__mul__, LENGTHS),
    st.builds(b"x".__mul__, LENGTHS),
    st.builds("é".__mul__, st.sampled_from([1, 15, 16, 127, 128, 30_000])),
    st.builds(lambda length: [0] * length, st.sampled_from([0, 15, 16, 60_000])),
)
SIZED = st.one_of(
    pairs.commands, st.builds(lambda key, value: ["put", key, value], st.sampled_from(["a", "b", "é" * 40]), LONG)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZED, max_size=40), st.sampled_from([0, 300, 70_000]))
def test_the_count_is_that_of_the_pairs_after_each_command_and_after_a_restore(commands: list[Any], limit: int) -> None:
    machine = limited(limit)
    for command in commands:
        before, size = b"".join(machine.snapshot()), size_of(machine)
        [answer] = answers(machine, command)
        assert size_of(machine) == counted(machine.query(None))
        if answer == "STATE_FULL":
            assert b"".join(machine.snapshot()) == before
        assert size_of(machine) <= max(limit, size) or not limit

    other = limited(limit)
    answers(other, ["put", "other", [1]])
    other.restore(machine.snapshot())
    assert other.query(["size"]) == machine.query(["size"])


def test_the_state_may_be_as_large_as_its_limit_and_no_larger() -> None:
    machine = limited(2 * (ENTRY_BYTES + 2) + 20)
    assert answers(machine, ["put", "a", "x" * 9], ["put", "b", "x" * 9], ["put", "c", False]) == [
        *(True, True, "STATE_FULL")
    ]
    assert machine.query(["size"]) == {"keys": 2, "bytes": size_of(machine), "limit": size_of(machine)}
    assert answers(
        machine,
        ["put", "a", "x" * 10],
        ["cas", "a", "x" * 9, "x" * 10],
        ["cas", "c", None, 1],
        ["incr", "c"],
        ["cas", "a", "y", "x" * 10],
        ["get", "c"],
    ) == [*("STATE_FULL", "STATE_FULL", "STATE_FULL", "STATE_FULL"), False, None]


def test_what_does_not_grow_passes_also_above_the_limit() -> None:
    machine = KvMachine()
    answers(machine, ["put", "a", "x" * 500], ["put", "n", 1], ["put", "é", "é"])
    machine.limit_state(1)
    assert answers(
        machine,
        ["put", "a", "y" * 500],
        ["put", "a", "y" * 499],
        ["put", "a", "y" * 500],
        ["incr", "n", 2**63],
        ["cas", "é", "é", "e"],
        ["delete", "a"],
        ["put", "a", 1],
        ["cas", "n", 2**63 + 1, None],
        ["delete", "é"],
    ) == [*(False, False, "STATE_FULL", 2**63 + 1, True, True, "STATE_FULL", True, True)]
    assert machine.query(["size"]) == {"keys": 0, "bytes": 0, "limit": 1}


def test_without_a_limit_nothing_is_refused() -> None:
    machine = limited(1)
    machine.limit_state(0)
    assert answers(machine, ["put", "a", "x" * 500]) == [True]
    assert machine.query(["size"])["limit"] is None
