"""What of PySyncObj's messages crosses the wire: four kinds, integers and flags, and no byte that could be a pickle."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cluster.control.envelope import MAX_INDEX, MAX_INTEGER, MAX_NO_OPS, NO_OP, NotAdmitted, decode, encode
from quire.log import pack
from quire.replication.net.wire import MAX_CONTROL_BYTES

VOTE = {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 2}
GIVEN = {"type": "response_vote", "term": 3}
NO_OPS = {
    "type": "append_entries",
    "term": 3,
    "commit_index": 8,
    "prevLogIdx": 8,
    "prevLogTerm": 2,
    "entries": [(NO_OP, 9, 3)],
}
NEXT = {"type": "next_node_idx", "next_node_idx": 10, "reset": False, "success": True}

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=5), st.binary(max_size=9)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=7), max_leaves=12)


@pytest.mark.parametrize("message", [VOTE, GIVEN, NO_OPS, NEXT, {**NO_OPS, "entries": []}])
def test_a_message_that_is_admitted_comes_back_as_it_went(message: dict[str, Any]) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "apply_command", "command": NO_OP},
        {"type": "apply_command_response", "request_id": 1, "log_idx": 1, "log_term": 1},
        {"type": "timeout_now", "term": 3},
        {"type": "append_entries", "term": 3, "commit_index": 8, "serialized": (b"dump", True, True)},
        {"type": "append_entries", "term": 3, "commit_index": 8, "serialized": None},
        {**NO_OPS, "transmission": "start", "data": b"part"},
        {**NO_OPS, "entries": [(b"\x00command", 9, 3)]},
        {**NO_OPS, "entries": [(b"\x02", 9, 3)]},
        {**NO_OPS, "entries": [(NO_OP, 9, 3)] * (MAX_NO_OPS + 1)},
        {**NO_OPS, "prevLogIdx": None},
        {**VOTE, "more": 1},
        {**VOTE, "term": -1},
        {**VOTE, "term": MAX_INTEGER + 1},
        {**VOTE, "term": True},
        {**VOTE, "term": 1.0},
        {**NEXT, "reset": 1},
    ],
)
def test_anything_else_of_pysyncobjs_is_not_sent(message: dict[str, Any]) -> None:
    with pytest.raises(NotAdmitted):
        encode(message)


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        [0, 1],
        [5, 1],
        [2],
        [2, 1, 1],
        [2, -1],
        [2, MAX_INTEGER + 1],
        [2, True],
        [1, 1, 1, b"bytes"],
        [3, 1, 1, 1, 1, [[1, 1, 1]]],
        [3, 1, 1, 1, 1, [[b"\x80\x04", 1]]],
        [3, 1, 1, 1, 1, [[1, 1]] * (MAX_NO_OPS + 1)],
        [3, 1, 1, 1, 1, b"bytes"],
        [4, 1, 0, 1],
        [4, 0, False, True],
        [4, MAX_INDEX + 1, False, True],
        [1, 3, 0, 0],
        [1, 3, MAX_INDEX + 1, 0],
        [3, 3, 1, 0, 0, []],
        [3, 3, MAX_INDEX + 1, 1, 0, []],
        [3, 3, 1, 8, 2, [[10, 3]]],
        [3, 3, 1, 8, 2, [[9, 3], [9, 3]]],
        [3, 3, 1, 8, 2, [[8, 3]]],
        [3, 3, 1, 8, 2, [[9, 4]]],
        [3, 3, 1, 8, 2, [[9, 3], [10, 2]]],
        [3, 3, 1, 8, 4, []],
        [3, 3, 1, MAX_INDEX, 2, [[MAX_INDEX + 1, 3]]],
    ],
)
def test_what_is_no_message_is_not_taken(row: Any) -> None:
    with pytest.raises(NotAdmitted):
        decode(pack(row))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x02", b"\x80\x04\x95\x00"])
def test_what_is_no_msgpack_is_not_taken(data: bytes) -> None:
    with pytest.raises(NotAdmitted):
        decode(data)


@given(VALUES)
def test_whatever_arrives_is_four_kinds_of_integers_and_flags_or_nothing(value: Any) -> None:
    try:
        message = decode(pack(value))
    except NotAdmitted:
        return
    entries: Any = message.pop("entries", [])
    assert message.pop("type") in ("request_vote", "response_vote", "append_entries", "next_node_idx")
    assert all(type(field) in (int, bool) for field in message.values())
    assert all((command, type(index), type(term)) == (NO_OP, int, int) for command, index, term in entries)


def test_as_many_no_ops_as_one_message_may_hold_fit_the_link() -> None:
    first = MAX_INDEX - MAX_NO_OPS + 1
    entries = [(NO_OP, index, MAX_INTEGER) for index in range(first, MAX_INDEX + 1)]
    full = {**NO_OPS, "term": MAX_INTEGER, "prevLogIdx": first - 1, "entries": entries}
    assert len(encode(full)) <= MAX_CONTROL_BYTES
    assert decode(encode(full)) == full
