"""The kv machine: its commands, each limit at it and one past it, scans page by page, snapshots."""

from typing import Any

import pytest

from quire.log import pack
from quire.log.packing import ExtType
from quire.sm import Context, InitialInvalid, KvMachine, Refused, SnapshotInvalid, check_batch
from quire.sm.machine import check_one_by_one
from quire.sm.machines.kv import ANSWER_BYTES, KEY_BYTES, KEYS_LIMIT, PAGE_BYTES, PAGE_KEYS, VALUE_BYTES, WHOLE_KEYS
from quire.sm.machines.kv_snapshot import BLOCK_BYTES_LIMIT, CHUNK_BYTES

CONTEXT = Context(0, 1, 0)
LONGEST_TEXT = "x" * (VALUE_BYTES - 3)  # msgpack puts three bytes before it.


def applied(*commands: list[Any]) -> list[Any]:
    """The answers of a new machine; a refusal's code in its place."""
    return answers(KvMachine(), *commands)


def answers(machine: KvMachine, *commands: list[Any]) -> list[Any]:
    assert check_batch(machine, commands) == []
    given = machine.apply_batch(commands, [CONTEXT] * len(commands))
    return [reply.code if isinstance(reply, Refused) else reply for reply in given]


def codes(*commands: Any) -> list[str]:
    """The code that `check_batch` gives each command, "" if none; `check` must agree."""
    machine = KvMachine()
    refused = check_batch(machine, commands)
    assert refused == check_one_by_one(machine, commands)
    by_position = {position: code for position, code, _ in refused}
    return [by_position.get(position, "") for position in range(len(commands))]


def filled(count: int) -> KvMachine:
    machine = KvMachine()
    machine.apply_batch([["put", f"k/{at:05}", at] for at in range(count)], [CONTEXT] * count)
    return machine


def test_put_says_whether_the_key_is_new_and_delete_whether_it_was_there() -> None:
    assert applied(
        ["put", "a", 1], ["put", "a", [2]], ["get", "a"], ["delete", "a"], ["delete", "a"], ["get", "a"]
    ) == [*(True, False, [2], True, False, None)]


def test_incr_counts_from_nothing_and_only_ints() -> None:
    assert applied(["incr", "n"], ["incr", "n", 5], ["incr", "n", -7]) == [1, 6, -1]
    assert applied(["put", "t", "1"], ["incr", "t"], ["get", "t"]) == [True, "NO_NUMBER", "1"]
    assert applied(["put", "t", True], ["incr", "t"]) == [True, "NO_NUMBER"]


@pytest.mark.parametrize(("edge", "step"), [(2**64 - 1, 1), (-(2**63), -1)])
def test_a_count_reaches_the_edge_of_64_bits_and_not_one_past_it(edge: int, step: int) -> None:
    assert applied(["incr", "n", edge - step], ["incr", "n", step], ["incr", "n", step], ["get", "n"]) == [
        *(edge - step, edge, "OVERFLOW", edge)
    ]


def test_cas_compares_and_swaps_creates_and_deletes() -> None:
    assert applied(
        ["cas", "a", 1, 2], ["cas", "a", None, 1], ["cas", "a", None, 2], ["cas", "a", 1, 2], ["get", "a"]
    ) == [False, True, False, True, 2]
    assert applied(["put", "a", 1], ["cas", "a", 1, None], ["get", "a"], ["cas", "a", None, None]) == [
        *(True, True, None, True)
    ]


@pytest.mark.parametrize(
    ("known", "expected"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", b"1"), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True])],
)
def test_values_that_python_calls_equal_are_not_one_to_cas(known: Any, expected: Any) -> None:
    assert applied(["put", "a", known], ["cas", "a", expected, 5], ["cas", "a", known, 6]) == [True, False, True]


@pytest.mark.parametrize("value", [0, "", b"", False, 1.5, [], {}, {"a": [1, {"b": b"\x00"}]}, ExtType(16, b"x")])
def test_any_value_but_null_can_be_put_and_is_given_back(value: Any) -> None:
    assert codes(["put", "a", value]) == [""]
    machine = KvMachine()
    answers(machine, ["put", "a", value])
    assert pack(machine.query(["get", "a"])) == pack(value)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("put", "COMMAND_INVALID"),
        ([], "COMMAND_INVALID"),
        ({"put": 1}, "COMMAND_INVALID"),
        (["put", "a"], "COMMAND_INVALID"),
        (["get", "a", 1], "COMMAND_INVALID"),
        (["incr", "a", 1, 2], "COMMAND_INVALID"),
        (["cas", "a", 1], "COMMAND_INVALID"),
        (["get"], "COMMAND_INVALID"),
        (["patch", "a"], "OPERATION_UNKNOWN"),
        ([["put"], "a", 1], "OPERATION_UNKNOWN"),
        (["put", 1, 1], "KEY_INVALID"),
        (["put", b"a", 1], "KEY_INVALID"),
        (["get", ""], "KEY_INVALID"),
        (["delete", None], "KEY_INVALID"),
        (["get", "\ud800"], "KEY_INVALID"),
        (["put", "a", None], "VALUE_INVALID"),
        (["put", "a", "\ud800"], "VALUE_INVALID"),
        (["put", "a", 2**64], "VALUE_INVALID"),
        (["incr", "a", 2**64], "OPERAND_INVALID"),
        (["incr", "a", True], "OPERAND_INVALID"),
        (["incr", "a", 1.0], "OPERAND_INVALID"),
        (["incr", "a", "1"], "OPERAND_INVALID"),
    ],
)
def test_what_is_no_command_is_refused_by_check(command: Any, code: str) -> None:
    assert codes(["put", "a", 1], command, ["incr", "a"]) == ["", code, ""]


MAPS_OF_OLD_LOGS = [{1: "a", "1": "b"}, {None: 1}, {b"a": {}}, [{"a": [b"", {2.5: 1}]}], ({True: 0},)]


@pytest.mark.parametrize("value", MAPS_OF_OLD_LOGS)
def test_check_refuses_a_map_with_a_key_that_is_no_text(value: Any) -> None:
    for command in (["put", "a", value], ["cas", "a", value, 1], ["cas", "a", None, value]):
        assert codes(["put", "a", {"1": "b"}], command, ["incr", "n"]) == ["", "VALUE_INVALID", ""]


@pytest.mark.parametrize("value", MAPS_OF_OLD_LOGS)
def test_such_a_map_of_an_old_log_or_snapshot_is_applied_and_restored(value: Any) -> None:
    machine, other = KvMachine(), KvMachine()
    assert machine.apply_batch([["put", "a", value], ["cas", "a", value, [value]]], [CONTEXT] * 2) == [True, True]
    other.restore(machine.snapshot())
    assert pack(other.query(["get", "a"])) == pack([value])
    assert answers(other, ["put", "a", 1]) == [False]


def test_a_key_may_be_as_long_as_the_limit_and_no_longer() -> None:
    for key in ("k" * KEY_BYTES, "é" * (KEY_BYTES // 2)):
        assert codes(["get", key], ["get", key + "k"], ["put", key, "v"], ["put", key + "k", "v"]) == [
            *("", "KEY_INVALID", "", "KEY_INVALID")
        ]


def test_a_value_may_be_as_long_as_the_limit_and_no_longer() -> None:
    longest = "x" * (VALUE_BYTES - 4)
    pairs: list[tuple[Any, Any]] = [
        (LONGEST_TEXT, LONGEST_TEXT + "x"),
        (LONGEST_TEXT.encode(), LONGEST_TEXT.encode() + b"x"),
        ([longest], [longest + "x"]),
    ]
    for value, longer in pairs:
        assert codes(
            ["put", "a", value], ["put", "a", longer], ["cas", "a", longer, None], ["cas", "a", None, longer]
        ) == [*("", "VALUE_INVALID", "VALUE_INVALID", "VALUE_INVALID")]


def test_a_command_answers_values_up_to_the_limit_and_a_query_all_of_them() -> None:
    fits, longer = "x" * (ANSWER_BYTES - 3), "x" * (ANSWER_BYTES - 2)
    machine = KvMachine()
    assert answers(machine, ["put", "a", fits], ["get", "a"], ["put", "a", longer], ["get", "a"]) == [
        *(True, fits, False, "ANSWER_TOO_LONG")
    ]
    assert machine.query(["get", "a"]) == longer


def test_as_many_keys_as_the_limit_and_not_one_more() -> None:
    machine = KvMachine()
    assert machine.keys_limit == KEYS_LIMIT
    machine.keys_limit = 2
    assert answers(
        machine, ["put", "a", 1], ["incr", "b"], ["put", "c", 1], ["incr", "c"], ["cas", "c", None, 1], ["put", "a", 2]
    ) == [True, 1, "KEYS_FULL", "KEYS_FULL", "KEYS_FULL", False]
    assert answers(machine, ["delete", "a"], ["put", "c", 1]) == [True, True]


def test_a_scan_gives_the_keys_of_a_prefix_in_order_page_by_page() -> None:
    machine = KvMachine()
    answers(machine, *(["put", key, key.upper()] for key in ["b", "a/2", "a", "a/10", "aé", "a/1", "c"]))
    assert machine.query(["scan", "a/"]) == {"values": [["a/1", "A/1"], ["a/10", "A/10"], ["a/2", "A/2"]], "next": None}
    first = machine.query(["scan", "a", None, 2])
    assert first == {"values": [["a", "A"], ["a/1", "A/1"]], "next": "a/1"}
    answers(machine, ["delete", "a/1"])
    rest = machine.query(["scan", "a", first["next"]])
    assert [key for key, _ in rest["values"]] == ["a/10", "a/2", "aé"]
    assert machine.query(["scan", "x"]) == machine.query(["scan", "a", "b"]) == {"values": [], "next": None}
    assert len(machine.query(["scan", ""])["values"]) == 6


def test_a_page_holds_as_many_keys_as_the_limit_and_no_more() -> None:
    machine = filled(PAGE_KEYS)
    page = machine.query(["scan", "k/", None, PAGE_KEYS])
    assert (len(page["values"]), page["next"]) == (PAGE_KEYS, None)
    answers(machine, ["put", "k/99999", 1])
    page = machine.query(["scan", "k/"])
    assert (len(page["values"]), page["next"]) == (PAGE_KEYS, f"k/{PAGE_KEYS - 1:05}")
    assert machine.query(["scan", "k/", page["next"]]) == {"values": [["k/99999", 1]], "next": None}
    for count in (PAGE_KEYS + 1, 0):
        with pytest.raises(Refused, match="QUERY_UNKNOWN"):
            machine.query(["scan", "k/", None, count])


def test_a_page_ends_with_the_pair_that_reaches_its_bytes() -> None:
    machine = KvMachine()
    fitting = -(-PAGE_BYTES // VALUE_BYTES)
    answers(machine, *(["put", f"{at:05}", LONGEST_TEXT] for at in range(fitting + 1)))
    page = machine.query(["scan", ""])
    assert len(page["values"]) == fitting
    assert len(machine.query(["scan", "", page["next"]])["values"]) == 1


@pytest.mark.parametrize(
    "request_",
    [
        "get",
        ["get"],
        ["get", "a", 1],
        ["put", "a", 1],
        ["scan"],
        ["scan", 1],
        ["scan", "", 1],
        ["scan", "", None, True],
    ],
)
def test_what_is_no_query_is_refused(request_: Any) -> None:
    with pytest.raises(Refused):
        KvMachine().query(request_)


def test_a_whole_state_has_as_many_keys_as_the_limit_and_no_more() -> None:
    machine = filled(WHOLE_KEYS)
    assert len(machine.query(None)) == WHOLE_KEYS
    answers(machine, ["put", "one more", 1])
    with pytest.raises(Refused, match="STATE_TOO_LONG"):
        machine.query(None)


def test_a_machine_begins_empty_and_takes_no_initial_value() -> None:
    assert KvMachine().query(None) == {}
    with pytest.raises(InitialInvalid):
        KvMachine({"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 5000])
@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_a_snapshot_is_taken_back_however_it_is_cut_and_has_the_same_bytes(count: int, cut: int) -> None:
    machine, other = filled(count), filled(3)
    answers(machine, ["delete", "k/00000"], ["put", "k/00000", "again"])
    snapshot = b"".join(machine.snapshot())
    other.restore(snapshot[start : start + cut] for start in range(0, len(snapshot), cut))
    assert b"".join(other.snapshot()) == snapshot
    assert other.query(["scan", ""]) == machine.query(["scan", ""])
    assert answers(other, ["delete", "k/00000"], ["put", "k/00000", 1]) == [True, True]


def test_a_snapshot_s_chunks_are_of_bounded_size() -> None:
    machine = KvMachine()
    answers(machine, *(["put", f"{at:01024}", LONGEST_TEXT] for at in range(200)))
    chunks = [len(chunk) for chunk in machine.snapshot()]
    assert len(chunks) > 1
    assert max(chunks) <= CHUNK_BYTES + BLOCK_BYTES_LIMIT


def block(*pairs: Any) -> bytes:
    payload = pack(list(pairs))
    return len(payload).to_bytes(4, "little") + payload


def end(count: int) -> bytes:
    return bytes(4) + count.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (b"", "4 bytes early"),
        (block("a", 1), "4 bytes early"),
        (block("a", 1) + end(1)[:-1], "1 bytes early"),
        (block("a", 1) + end(2), "states 2 keys and holds 1"),
        (block("a", 1) + end(1) + b"x", "bytes follow"),
        (block("a", 1, "a", 2) + end(2), "twice"),
        (block("a", 1) + block("a", 1) + end(2), "twice"),
        (block("a") + end(1), "not an array of"),
        (block() + end(0), "not an array of"),
        (block(*["a", 1] * 65) + end(65), "not an array of"),
        (block("a", None) + end(1), "VALUE_INVALID"),
        (block(1, 1) + end(1), "KEY_INVALID"),
        (b"\x01\x00\x00\x00\xc1" + end(1), "exactly one"),
        ((BLOCK_BYTES_LIMIT + 1).to_bytes(4, "little"), "above the limit"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_changes_nothing(snapshot: bytes, reason: str) -> None:
    machine = filled(2)
    with pytest.raises(SnapshotInvalid, match=reason):
        machine.restore([snapshot])
    assert machine.query(None) == {"k/00000": 0, "k/00001": 1}


def test_a_snapshot_with_more_keys_than_the_limit_is_refused() -> None:
    snapshot, machine = list(filled(3).snapshot()), KvMachine()
    machine.keys_limit = 3
    machine.restore(snapshot)
    machine.keys_limit = 2
    with pytest.raises(SnapshotInvalid, match="more than 2 keys"):
        machine.restore(snapshot)
