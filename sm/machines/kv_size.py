"""The counted size of a kv machine's pairs, and its limit.

    a pair      the msgpack bytes of its key and of its value, and ENTRY_BYTES; a value that is an int counts INT_BYTES

The size depends on the pairs alone: it is the same after a restore as after the commands that led there. It is not in
snapshots. Incrementing a key never changes it, so counters keep working when the state is full.
"""

from collections.abc import Mapping
from typing import Any

from quire.log import pack

from ..machine import Refused

ENTRY_BYTES = 128  # What Python needs for a pair besides the bytes of a short key and value: 120 to 150 bytes.
INT_BYTES = 9  # The longest int as msgpack.

_NO_LIMIT = 1 << 63


class StateSize:
    """The counted size of all pairs. Call a method before its pair changes; if it raises Refused, nothing changed."""

    __slots__ = ("_limit", "_packed", "total")

    def __init__(self, values: Mapping[str, object], limit: int = 0) -> None:
        """Count the pairs of `values`; `limit` 0 means no limit."""
        self.total = 0
        self._limit = _NO_LIMIT
        self._packed: dict[
            str, int
        ] = {}  # By key: sizes of values that are expensive to compute, so that each is computed once.
        for key, value in values.items():
            self.add(key, value)
        self.limit = limit

    @property
    def limit(self) -> int:
        """The maximum size of the pairs; 0 if there is no limit."""
        return 0 if self._limit == _NO_LIMIT else self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit or _NO_LIMIT

    def add(self, key: str, value: object) -> None:
        """Count a new pair. Raises Refused, STATE_FULL."""
        plain = _plain_bytes(value)
        size = plain or len(pack(value))
        grown = ENTRY_BYTES + (_plain_bytes(key) or len(pack(key))) + size
        if self.total + grown > self._limit:
            raise self._full()
        self.total += grown
        if not plain:
            self._packed[key] = size

    def replace(self, key: str, known: object, value: object) -> None:
        """Count a key's new value instead of the old one. Raises Refused, STATE_FULL, only if it is larger."""
        plain = _plain_bytes(value)
        size = plain or len(pack(value))
        before = _plain_bytes(known)
        grown = size - (before or self._packed[key])
        if grown > 0 and self.total + grown > self._limit:
            raise self._full()
        self.total += grown
        if not plain:
            self._packed[key] = size
        elif not before:
            del self._packed[key]

    def remove(self, key: str, known: object) -> None:
        """Stop counting a pair."""
        size = _plain_bytes(known) or self._packed.pop(key)
        self.total -= ENTRY_BYTES + (_plain_bytes(key) or len(pack(key))) + size

    def of_value(self, key: str, value: object) -> int:
        """The msgpack bytes of a key's value; of an int, INT_BYTES."""
        return _plain_bytes(value) or self._packed[key]

    def _full(self) -> Refused:
        return Refused("STATE_FULL", f"keys and values have {self._limit} bytes, and this needs more; delete some")


def _plain_bytes(value: Any) -> int:
    """The counted size of a value if it is known from type and length, else 0."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            return 0
        length = len(value)
        return length + (1 if length < 32 else 2 if length < 256 else 3 if length < 65_536 else 5)
    if kind is int or kind is float:
        return INT_BYTES
    if kind is bytes:
        length = len(value)
        return length + (2 if length < 256 else 3 if length < 65_536 else 5)
    return 1 if kind is bool else 0
