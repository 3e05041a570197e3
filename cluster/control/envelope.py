"""The only messages that PySyncObj may exchange: one msgpack array each, of integers and flags.

    [1, term, last_log_index, last_log_term]                    request_vote
    [2, term]                                                   response_vote
    [3, term, commit_index, prev_index, prev_term, [[index, term], ...]]   append_entries: no-ops only
    [4, next_index, reset, success]                             next_node_idx

PySyncObj itself sends pickles, and unpickles commands, dumps and parts of large entries, so a peer that talks to it
directly can run code here. So no bytes from a peer reach it. The only command in its log, the no-op of each election,
is added by the receiver; commands, dumps, membership changes and utility messages have no encoding.

PySyncObj checks nothing that it receives: an entry at an index that does not follow the previous one makes it fail
later, at any tick. So its log is what its own leaders make: entries from 1, without gaps, of terms that do not fall.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quire.log import PayloadInvalid, pack, unpack

from ..errors import ClusterError

NO_OP = b"\x01"
MAX_INTEGER = 2**53 - 1
MAX_LOG_LENGTH = 10_000  # One no-op an election. Above it PySyncObj is rebuilt, which costs one election.
MAX_INDEX = 2 * MAX_LOG_LENGTH  # A log grows past its length by what arrives in a tick.
MAX_NO_OPS = 256  # In one message.


class NotAdmitted(ClusterError):
    """The control plane may neither send nor receive this message."""


def _integer(value: object, lowest: int = 0, highest: int = MAX_INTEGER) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise NotAdmitted(f"{value!r:.80} is not an integer from {lowest} to {highest}")
    return value


def _index(value: object) -> int:
    return _integer(value, 1, MAX_INDEX)  # A log begins with a no-op at 1.


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise NotAdmitted(f"{value!r:.80} is not a flag")
    return value


def _no_ops(rows: object) -> list[list[int]]:
    if type(rows) is not list or len(rows) > MAX_NO_OPS:
        raise NotAdmitted(f"at most {MAX_NO_OPS} no-ops were expected")
    if any(type(row) is not list or len(row) != 2 for row in rows):
        raise NotAdmitted("a no-op is [index, term]")
    return [[_index(index), _integer(term)] for index, term in rows]


def _append(numbers: Sequence[object], rows: object) -> tuple[int, int, int, int, list[list[int]]]:
    """The numbers of append_entries, and its no-ops, which follow the entry before them without a gap."""
    term, commit_index, prev_index, prev_term = numbers
    no_ops = _no_ops(rows)
    following = _index(prev_index) + 1
    if [index for index, _ in no_ops] != list(range(following, following + len(no_ops))):
        raise NotAdmitted(f"the no-ops after index {following - 1} have gaps")
    terms = [_integer(prev_term), *(term for _, term in no_ops), _integer(term)]
    if terms != sorted(terms):
        raise NotAdmitted(f"the terms fall, or are above {terms[-1]}")
    return terms[-1], _integer(commit_index, 0, MAX_INDEX), following - 1, terms[0], no_ops


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
            last_index, last_term = _index(message["last_log_index"]), _integer(message["last_log_term"])
            row: list[object] = [1, _integer(message["term"]), last_index, last_term]
        case "response_vote":
            row = [2, _integer(message["term"])]
        case "append_entries":
            numbers = [message[name] for name in ("term", "commit_index", "prevLogIdx", "prevLogTerm")]
            row = [3, *_append(numbers, _of_entries(message["entries"]))]
        case _:
            row = [4, _index(message["next_node_idx"]), _flag(message["reset"]), _flag(message["success"])]
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
            return {
                "type": "request_vote",
                "term": _integer(term),
                "last_log_index": _index(last_index),
                "last_log_term": _integer(last_term),
            }
        case [2, term]:
            return {"type": "response_vote", "term": _integer(term)}
        case [3, *numbers, rows] if len(numbers) == 4:
            term, commit_index, prev_index, prev_term, no_ops = _append(numbers, rows)
            return {
                "type": "append_entries",
                "term": term,
                "commit_index": commit_index,
                "prevLogIdx": prev_index,
                "prevLogTerm": prev_term,
                "entries": [(NO_OP, index, number) for index, number in no_ops],
            }
        case [4, next_index, reset, success]:
            return {
                "type": "next_node_idx",
                "next_node_idx": _index(next_index),
                "reset": _flag(reset),
                "success": _flag(success),
            }
        case _:
            raise NotAdmitted(f"not a message of the control plane: {row!r:.80}")
