"""check_batch for machines with and without their own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from quire.sm import ArithmeticMachine, CheckFailed, Context, Refused, check_batch


class Even:
    """Takes even ints; its check fails on None."""

    name = "even"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        self.initial = initial

    def check(self, command: Any) -> None:
        if command % 2:
            raise Refused("ODD", f"{command} is odd")

    def apply(self, command: Any, context: Context) -> Any:
        return command

    def query(self, request: Any) -> Any:
        return self.initial

    def snapshot(self) -> Iterator[bytes]:
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        return None


class EvenInBatches(Even):
    def check_batch(self, commands: Sequence[Any]) -> list[list[Any]]:
        return [[position, "ODD_BATCH", ""] for position, command in enumerate(commands) if command % 2]


def test_a_batch_that_passes_gives_nothing() -> None:
    assert check_batch(Even(), [2, 4]) == []
    assert check_batch(Even(), []) == []
    assert check_batch(ArithmeticMachine(), [["add", 3], ["div", "5"]]) == []


def test_each_refused_command_is_named_by_its_position() -> None:
    assert check_batch(Even(), [1, 2, 3]) == [[0, "ODD", "1 is odd"], [2, "ODD", "3 is odd"]]
    refused = check_batch(ArithmeticMachine(), [["add", 3], ["div", 0], ["add", 1.5], ["add", 1]])
    assert [[position, code] for position, code, _ in refused] == [[1, "DIVISION_BY_ZERO"], [2, "OPERAND_INVALID"]]


def test_a_machine_may_check_whole_batches_itself() -> None:
    assert check_batch(EvenInBatches(), [1, 2]) == [[0, "ODD_BATCH", ""]]


def test_a_check_that_fails_itself_is_told_apart_from_a_refusal() -> None:
    with pytest.raises(CheckFailed) as failure:
        check_batch(Even(), [2, None])
    assert failure.value.position == 1
    assert "TypeError" in failure.value.reason
    with pytest.raises(CheckFailed) as failure:
        check_batch(EvenInBatches(), [2, None])
    assert failure.value.position is None
