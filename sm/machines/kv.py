"""The `kv` machine: values by key, and commands that read and change them one key at a time.

    ["put", key, value]             true if the key is new, false if it had a value
    ["get", key]                    the value, null if there is none; only values up to ANSWER_BYTES
    ["delete", key]                 whether the key had a value
    ["cas", key, expected, value]   true if the value was `expected` and is now `value`, else false; null means no value
    ["incr", key]  ["incr", key, n] the new sum, an int; a key without a value counts from 0

Two values are equal if their msgpack bytes are equal: 1, 1.0 and true differ, as do maps in different orders. null is
not a value. Results are short, because they are kept for retries and hashed by every node: a command of a few bytes
must not return megabytes. Read long values by `query`, which is not in the log. The queries are

    null                            the whole state
    ["get", key]                    the value, null if there is none
    ["scan", prefix]                {"values": [[key, value], ...], "next": key or null}, in key order
    ["scan", prefix, after]         the same, beginning after the key `after`, which need not exist any more
    ["scan", prefix, after, count]  at most `count` pairs; PAGE_KEYS at most
    ["size"]                        {"keys": number, "bytes": their counted size, "limit": its maximum, null if none}
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from reprlib import repr as short_repr
from typing import Any

from sortedcontainers import SortedList

from quire.log import PayloadInvalid, pack
from quire.log.json_text import has_text_keys

from ..errors import CommandFailed, InitialInvalid, reason_of
from ..machine import Context, RefusalRow, Refused
from .arithmetic import INT_HIGHEST, INT_LOWEST
from .kv_size import StateSize
from .kv_snapshot import read_pairs, write_pairs

KEY_BYTES = 1024  # As UTF-8.
VALUE_BYTES = 64 << 10  # As msgpack.
ANSWER_BYTES = 1024  # The longest value that the command `get` returns, as msgpack.
KEYS_LIMIT = 10_000_000  # About 2 GB of short keys; without a limit the process would run out of memory.
WHOLE_KEYS = 100_000  # The largest whole state in keys: packing it blocks everything else on the node.
PAGE_KEYS = 1000
PAGE_BYTES = 1 << 20  # A page ends with the pair that reaches it.

_HEAD_BYTES = 5  # The longest msgpack head of a string or bytes of these lengths.
_LENGTHS = {"put": (3,), "get": (2,), "delete": (2,), "cas": (4,), "incr": (2, 3)}
_CONTAINERS = frozenset({dict, list, tuple})
_ABSENT = object()


class KvMachine:
    """Values by key; initially empty."""

    name = "kv"
    version = 1
    quick = True
    default_initial = None
    keys_limit = KEYS_LIMIT

    def __init__(self, initial: None = None) -> None:
        if initial is not None:
            raise InitialInvalid(machine=self.name, initial=initial, reason="it begins empty; leave the value out")
        self._values: dict[str, object] = {}
        self._order = SortedList[str]()  # For scans; derived from the keys alone, so it is not part of the state.
        self._size = StateSize({})
        self._operations: dict[str, Callable[..., object]] = {
            "put": self._put,
            "get": self._get,
            "delete": self._delete,
            "cas": self._cas,
            "incr": self._incr,
        }

    def limit_state(self, limit_bytes: int) -> None:
        """From now on, refuse commands that would make the pairs larger than this (kv_size.py); 0: no limit."""
        self._size.limit = limit_bytes

    @property
    def keys(self) -> int:
        """How many keys have a value."""
        return len(self._values)

    @property
    def state_size(self) -> int:
        """The counted size of the pairs in bytes (kv_size.py)."""
        return self._size.total

    def check(self, command: object) -> None:
        """Refuse everything but a well-formed command whose key and values are within their limits."""
        if not isinstance(command, (list, tuple)) or not command:
            raise Refused("COMMAND_INVALID", f"a command is [operation, key, ...], not {short_repr(command)}")
        operation, operands = command[0], command[1:]
        lengths = _LENGTHS.get(operation) if type(operation) is str else None
        if lengths is None:
            known = ", ".join(_LENGTHS)
            raise Refused("OPERATION_UNKNOWN", f"operation is one of {known}, not {short_repr(operation)}")
        if len(command) not in lengths:
            counts = " or ".join(str(length) for length in lengths)
            raise Refused("COMMAND_INVALID", f"{operation} is an array of {counts} values, not {len(command)}")
        _check_key(operands[0])
        match operation:
            case "put":
                _check_new_value(operands[1])
            case "cas":
                for value in operands[1:]:
                    if value is not None:
                        _check_new_value(value)
            case "incr" if len(operands) > 1:
                _check_number(operands[1])
            case _:
                pass

    def check_batch(self, commands: Sequence[object]) -> list[RefusalRow]:
        """The refused ones as [[position, code, text], ...]. Common commands pass quickly; `check` decides the rest."""
        refused: list[RefusalRow] = []
        lengths, short = _LENGTHS, VALUE_BYTES - _HEAD_BYTES
        for position, command in enumerate(commands):
            if type(command) is list and 1 < len(command) <= 3:
                operation, key, operand = command[0], command[1], command[-1]
                if (
                    type(operation) is str
                    and len(command) in lengths.get(operation, ())
                    and type(key) is str
                    and 0 < len(key) <= KEY_BYTES
                    and key.isascii()
                ):
                    if len(command) == 2 or (type(operand) is int and INT_LOWEST <= operand <= INT_HIGHEST):
                        continue
                    if operation == "put" and type(operand) is str and len(operand) <= short and operand.isascii():
                        continue
            try:
                self.check(command)
            except Refused as refusal:
                refused.append([position, refusal.code, refusal.text])
        return refused

    def apply(self, command: Any, context: Context) -> Any:
        """The command's result. Raises Refused, changing nothing."""
        return self._operations[command[0]](*command[1:])

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[object]:
        """The result or the Refused of each command. The contexts are not used.

        Raises:
            CommandFailed: at a command that `check` would have refused; the commands before it are applied.
        """
        operations = self._operations
        results: list[object] = []
        append = results.append
        try:
            for command in commands:
                try:
                    append(operations[command[0]](*command[1:]))
                except Refused as refusal:
                    append(refusal)
        except Exception as error:
            raise CommandFailed(position=len(results), reason=reason_of(error)) from error
        return results

    def query(self, request: object) -> Any:
        """The value of a key, a page of a scan, or, for the request None, all values by key."""
        match request:
            case None if self.keys <= WHOLE_KEYS:
                return self._values
            case None:
                raise Refused("STATE_TOO_LONG", f"{self.keys} keys, above the limit of {WHOLE_KEYS}; scan them")
            case ["get", key]:
                return self._values.get(_check_key(key))
            case ["scan", prefix, *_] if len(request) <= 4:
                after, count = [*request[2:], *(None, None, None)[len(request) - 2 :]][:2]
                return self._scan(prefix, after, PAGE_KEYS if count is None else count)
            case ["size"]:
                return {"keys": self.keys, "bytes": self.state_size, "limit": self._size.limit or None}
            case _:
                known = '["get", key], ["scan", prefix, after, count], ["size"] and null'
                raise Refused("QUERY_UNKNOWN", f"the kv machine knows {known}, not {short_repr(request)}")

    def snapshot(self) -> Iterator[bytes]:
        """The pairs, in the order in which their keys were added; kv_snapshot.py has the format."""
        return write_pairs(self._values)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Restore the pairs of a snapshot. Raises SnapshotInvalid."""
        values = read_pairs(chunks, self._check_pair, self.keys_limit)
        size = StateSize(values, self._size.limit)
        self._values, self._order, self._size = values, SortedList(values), size

    def _check_pair(self, key: object, value: object) -> None:
        _check_key(key)
        _check_value(value)

    def _put(self, key: str, value: object) -> bool:
        values = self._values
        known = values.get(key)
        if known is None:
            self._add(key, value)
            return True
        if type(value) is not int or type(known) is not int:  # All ints count the same.
            self._size.replace(key, known, value)
        values[key] = value
        return False

    def _add(self, key: str, value: object) -> None:
        if len(self._values) >= self.keys_limit:
            raise Refused("KEYS_FULL", f"there are {self.keys_limit} keys, and there is room for no more")
        self._size.add(key, value)
        self._order.add(key)
        self._values[key] = value

    def _get(self, key: str) -> object:
        value = self._values.get(key)
        if type(value) is int or value is None or self._size.of_value(key, value) <= ANSWER_BYTES:
            return value
        raise Refused("ANSWER_TOO_LONG", f"a command answers values up to {ANSWER_BYTES} bytes; ask by query")

    def _delete(self, key: str) -> bool:
        known = self._values.pop(key, None)
        if known is None:
            return False
        self._size.remove(key, known)
        self._order.remove(key)
        return True

    def _cas(self, key: str, expected: object, value: object) -> bool:
        known = self._values.get(key)
        if not _same(known, expected):
            return False
        if value is None:
            self._delete(key)
        else:
            self._put(key, value)
        return True

    def _incr(self, key: str, number: int = 1) -> int:
        values = self._values
        known = values.get(key, _ABSENT)
        if type(known) is int:
            total = known + number
            if not INT_LOWEST <= total <= INT_HIGHEST:
                raise Refused("OVERFLOW", "the sum is not from -2^63 to 2^64-1")
            values[key] = total
            return total
        if known is not _ABSENT:
            raise Refused("NO_NUMBER", f"the value is a {type(known).__name__}, and only an int can be counted up")
        self._add(key, number)
        return number

    def _scan(self, prefix: object, after: object, count: object) -> dict[str, object]:
        beginning, last = _text_or_none(prefix), _text_or_none(after)
        if beginning is None or type(count) is not int or not 0 < count <= PAGE_KEYS:
            raise Refused("QUERY_UNKNOWN", f'["scan", prefix, after, count], and count from 1 to {PAGE_KEYS}')
        page: list[list[object]] = []
        size, more = 0, False
        for key in islice(self._beginning_with(beginning, last), count + 1):
            if len(page) == count or size >= PAGE_BYTES:
                more = True
                break
            pair = [key, self._values[key]]
            size += len(pack(pair))
            page.append(pair)
        return {"values": page, "next": page[-1][0] if more else None}

    def _beginning_with(self, prefix: str, after: str | None) -> Iterator[str]:
        """The keys that start with `prefix` and come after `after`, in order of code points, as in UTF-8."""
        if after is None or after < prefix:
            keys = self._order.irange(prefix)
        else:
            keys = self._order.irange(after, inclusive=(False, True))
        return takewhile(lambda key: key.startswith(prefix), keys)


def _same(one: object, other: object) -> bool:
    if type(one) is type(other) and type(one) in (int, str, bytes):
        return bool(one == other)
    return one is other or pack(one) == pack(other)


def _text_or_none(value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    raise Refused("QUERY_UNKNOWN", f"prefix and after are texts, not {short_repr(value)}")


def _check_key(key: object) -> str:
    """The key, if it is one."""
    if type(key) is str and 0 < len(key) <= KEY_BYTES and key.isascii():
        return key
    if type(key) is not str:
        raise Refused("KEY_INVALID", f"a key is text, not {short_repr(key)}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Refused("KEY_INVALID", f"a key is text that UTF-8 can encode, not {short_repr(key)}") from None
    if not 0 < size <= KEY_BYTES:
        raise Refused("KEY_INVALID", f"a key has 1 to {KEY_BYTES} bytes of UTF-8, not {size}")
    return key


def _check_value(value: Any) -> None:
    if value is None:
        raise Refused("VALUE_INVALID", "null is not a value; delete the key instead")
    kind = type(value)
    if kind is int and INT_LOWEST <= value <= INT_HIGHEST:
        return
    if (kind is bytes or (kind is str and value.isascii())) and len(value) + _HEAD_BYTES <= VALUE_BYTES:
        return
    try:
        size = len(pack(value))
    except PayloadInvalid as error:
        raise Refused("VALUE_INVALID", f"the value {error.reason}") from error
    if size > VALUE_BYTES:
        raise Refused("VALUE_INVALID", f"a value has at most {VALUE_BYTES} bytes as msgpack, not {size}")


def _check_new_value(value: object) -> None:
    """Check that the keys of maps are text. `apply` and `restore` do not: earlier versions accepted other keys."""
    _check_value(value)
    if type(value) in _CONTAINERS and not has_text_keys(value):
        raise Refused("VALUE_INVALID", "the value has a map with a key that is not text; use text keys")


def _check_number(number: object) -> None:
    if type(number) is not int or not INT_LOWEST <= number <= INT_HIGHEST:
        raise Refused(
            "OPERAND_INVALID", f"a key is incremented by an int from -2^63 to 2^64-1, not {short_repr(number)}"
        )
