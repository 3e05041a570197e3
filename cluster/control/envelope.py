"""The only messages that PySyncObj may exchange: one msgpack array each, of integers and flags.

    [1, term, last_log_index, last_log_term]                    request_vote
    [2, term]                                                   response_vote
    [3, term, commit_index, prev_index, prev_term, [[index, term], ...]]   append_entries: no-ops only
    [4, next_index, reset, success]                             next_node_idx

PySyncObj itself sends pickles, and unpickles commands, dumps and parts of large entries, so a peer that talks to it
directly can run code here. So no bytes from a peer reach it. The only command in its log, the no-op of each election,
is added by the receiver; commands, dumps, membership changes and utility messages have no encoding.
"""

from collections.abc import Mapping
from typing import Any

from quire.log import PayloadInvalid, pack, unpack

from ..errors import ClusterError

NO_OP = b"\x01"
MAX_INTEGER = 2**53 - 1
MAX_NO_OPS = 256  # In one message.


class NotAdmitted(ClusterError):
    """The control plane may neither send nor receive this message."""


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise NotAdmitted(f"{value!r:.80} is not an integer from 0 to {MAX_INTEGER}")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise NotAdmitted(f"{value!r:.80} is not a flag")
    return value


def _no_ops(rows: object) -> list[list[int]]:
    if type(rows) is not list or len(rows) > MAX_NO_OPS:
        raise NotAdmitted(f"at most {MAX_NO_OPS} no-ops were expected")
    if any(type(row) is not list or len(row) != 2 for row in rows):
        raise NotAdmitted("a no-op is [index, term]")
    return [[_integer(index), _integer(term)] for index, term in rows]


def _of_entries(entries: Any) -> list[list[int]]:
    """[index, term] of each entry (command, index, term) of PySyncObj."""
    if any(command != NO_OP for command, _, _ in entries):
        raise NotAdmitted("a command other than a no-op")
    return _no_ops([[index, term] for _, index, term in entries])


_FIELDS: dict[str, frozenset[str]] = {
    "request_vote": frozenset({"type", "term", "last_log_index", "last_log_term"}),
    "response_vote": frozenset({"type", "term"}),
    "append_entries": frozenset({"type", "term", "commit_index", "entries", "prevLogIdx", "prevLogTerm"}),
    "next_node_idx": frozenset({"type", "next_node_idx", "reset", "success"}),
}


def encode(message: Mapping[str, object]) -> bytes:
    """Encode a message of PySyncObj.

    Raises:
        NotAdmitted: it is none of the four, or has other fields.
    """
    kind = message.get("type")
    if not isinstance(kind, str) or frozenset(message) != _FIELDS.get(kind):
        raise NotAdmitted(f"a message of type {kind!r:.40} with {sorted(message)!r:.200}")
    match kind:
        case "request_vote":
            row: list[object] = [1, *(_integer(message[name]) for name in ("term", "last_log_index", "last_log_term"))]
        case "response_vote":
            row = [2, _integer(message["term"])]
        case "append_entries":
            numbers = [_integer(message[name]) for name in ("term", "commit_index", "prevLogIdx", "prevLogTerm")]
            row = [3, *numbers, _of_entries(message["entries"])]
        case _:
            row = [4, _integer(message["next_node_idx"]), _flag(message["reset"]), _flag(message["success"])]
    return pack(row)


def decode(data: bytes) -> dict[str, object]:
    """Decode a message into the form that PySyncObj takes.

    Raises:
        NotAdmitted: it is none of the four.
    """
    try:
        row = unpack(data)
    except PayloadInvalid as error:
        raise NotAdmitted(str(error)) from error
    match row:
        case [1, term, last_index, last_term]:
            numbers = {"term": term, "last_log_index": last_index, "last_log_term": last_term}
            return {"type": "request_vote", **{name: _integer(value) for name, value in numbers.items()}}
        case [2, term]:
            return {"type": "response_vote", "term": _integer(term)}
        case [3, term, commit_index, prev_index, prev_term, rows]:
            numbers = {"term": term, "commit_index": commit_index, "prevLogIdx": prev_index, "prevLogTerm": prev_term}
            entries = [(NO_OP, index, number) for index, number in _no_ops(rows)]
            return {
                "type": "append_entries",
                **{name: _integer(value) for name, value in numbers.items()},
                "entries": entries,
            }
        case [4, next_index, reset, success]:
            return {
                "type": "next_node_idx",
                "next_node_idx": _integer(next_index),
                "reset": _flag(reset),
                "success": _flag(success),
            }
        case _:
            raise NotAdmitted(f"not a message of the control plane: {row!r:.80}")
