"""The log machine: no state, any record."""

from typing import Any

import pytest

from quire.sm import Context, Contexts, InitialInvalid, LogMachine, Refused, SnapshotInvalid
from quire.sm.machine import check_batch, check_one_by_one

HERE = Context(index=7, epoch=1, timestamp=0)


def test_any_record_passes_and_results_in_nothing() -> None:
    machine = LogMachine()
    values = [None, 1.5, b"raw", {"a": [1]}, ["add", 3]]
    for value in values:
        machine.check(value)
        machine.apply(value, HERE)
    assert machine.check_batch(values) == []
    assert machine.apply_batch(values, Contexts(0, len(values), 1, 0)) == [None] * len(values)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {None: 1}, [{"a": [b"", {2.5: 1}]}], ({True: 0},)])
def test_check_refuses_a_map_with_a_key_that_is_no_text_and_apply_takes_it(value: Any) -> None:
    machine = LogMachine()
    refused = check_batch(machine, [{"1": "b"}, value, b"raw"])

    assert [(position, code) for position, code, _ in refused] == [(1, "VALUE_INVALID")]
    assert refused == check_one_by_one(machine, [{"1": "b"}, value, b"raw"])
    assert machine.apply_batch([value], Contexts(0, 1, 1, 0)) == [None]


def test_it_has_no_state_to_ask_for() -> None:
    with pytest.raises(Refused):
        LogMachine().query("anything")


def test_its_snapshot_is_empty_and_no_other_is_taken() -> None:
    machine = LogMachine()
    assert list(machine.snapshot()) == []
    machine.restore([])
    machine.restore([b""])
    with pytest.raises(SnapshotInvalid):
        machine.restore([b"", b"45"])


def test_it_starts_from_no_value() -> None:
    with pytest.raises(InitialInvalid):
        LogMachine(42)  # type: ignore[arg-type]
