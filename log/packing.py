"""msgpack, typed and strict: the one place that imports a library without types.

What is packed has the smallest encodings, `bin` for bytes and `str` for text. What is unpacked is exactly one value,
nothing behind it, at most 32 containers deep, valid UTF-8, without ext types unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .errors import PayloadInvalid

MAX_DEPTH = 32
RESERVED_EXT_TYPES = range(16)
"""Ext types that quire keeps for itself; a client's value must not hold one."""

ExtType: Any = msgpack.ExtType
Timestamp: Any = msgpack.Timestamp

# Types that hold nothing further, so that a value of them needs no walk.
_PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None)})
_CONTAINER_TYPES = (list, tuple, dict)

_packer: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_array_head: Callable[[int], bytes] = msgpack.Packer(autoreset=True).pack_array_header
_unpackb: Callable[..., Any] = msgpack.unpackb
_Unpacker: Callable[..., Any] = msgpack.Unpacker
_FAULTS = (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException)


def pack(value: Any) -> bytes:
    """Return the msgpack bytes of `value`, maps in the order given.

    Raises:
        PayloadInvalid: a type, an integer or a string that msgpack does not hold, or too deep a nesting.
    """
    try:
        return _packer(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadInvalid(f"cannot be packed: {error}") from error


def array_head(count: int) -> bytes:
    """The smallest head of an array of `count`, whose items follow."""
    return _array_head(count)


def unpack(buffer: bytes | bytearray | memoryview, *, ext: bool = False) -> Any:
    """Return the one value in `buffer`, checked for depth; with `ext`, unreserved ext types may stand in it.

    Raises:
        PayloadInvalid: not exactly one value, too deep, invalid UTF-8, an ext type or a timestamp that may not be.
    """
    value = unpack_trusted(buffer, _keep_free_ext if ext else _refuse_ext)
    check_value(value, timestamps=ext)
    return value


def unpack_trusted(
    buffer: bytes | bytearray | memoryview,
    ext_hook: Callable[[int, bytes], Any],
    map_hook: Callable[[list[tuple[Any, Any]]], Any] | None = None,
    *,
    use_list: bool = True,
) -> Any:
    """Return the one value in `buffer` without looking at its depth: for bytes that were checked when appended.

    `map_hook` makes a map of its pairs; without it the last pair of a key wins. Without `use_list` arrays are tuples.

    Raises:
        PayloadInvalid: not exactly one value, or invalid UTF-8.
    """
    try:
        return _unpackb(buffer, strict_map_key=False, ext_hook=ext_hook, object_pairs_hook=map_hook, use_list=use_list)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise PayloadInvalid(f"is not exactly one msgpack value: {type(error).__name__}: {error}") from error


class Skimmer:
    """Finds where values stand in msgpack arrays, without making an object of any of them. One thread.

    Positions are counted over all that one skimmer was fed: `feed` returns where its buffer begins.
    """

    def __init__(self) -> None:
        self._unpacker = _Unpacker(max_buffer_size=0)

    def feed(self, buffer: bytes | memoryview) -> int:
        """Go on in `buffer`, behind all that was fed before; return the position of its first byte.

        Raises:
            PayloadInvalid: the buffer before was not skimmed to its end.
        """
        start: int = self._guarded(self._fed, buffer)
        return start

    def array(self) -> int:
        """Enter the array that begins here; return how many values it says it has.

        Raises:
            PayloadInvalid: no array begins here.
        """
        count: int = self._guarded(self._unpacker.read_array_header)
        return count

    def ends(self, count: int) -> list[int]:
        """Pass `count` values; return the positions where they end.

        Raises:
            PayloadInvalid: there are not so many.
        """
        ends: list[int] = self._guarded(self._passed, count)
        return ends

    @property
    def position(self) -> int:
        """Where the next value begins."""
        position: int = self._unpacker.tell()
        return position

    def _fed(self, buffer: bytes | memoryview) -> int:
        start = self.position
        self._unpacker.feed(buffer)
        return start

    def _passed(self, count: int) -> list[int]:
        skip, tell = self._unpacker.skip, self._unpacker.tell
        # `skip` returns None: this is the loop at C's speed.
        return [tell() for _ in repeat(None, count) if not skip()]

    def _guarded(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except _FAULTS as error:
            self._unpacker = _Unpacker(max_buffer_size=0)
            raise PayloadInvalid(f"cannot be skimmed: {type(error).__name__}: {error}") from error


def check_value(value: Any, *, timestamps: bool = True, depth: int = MAX_DEPTH) -> None:
    """Refuse a value that a client may not store: deeper than `depth` containers, or holding a reserved ext type.

    Raises:
        PayloadInvalid: what was found.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return
    if isinstance(value, ExtType):
        if value.code in RESERVED_EXT_TYPES:
            raise PayloadInvalid(f"ext type {value.code} is reserved")
    elif isinstance(value, Timestamp):
        if not timestamps:
            raise PayloadInvalid("holds a timestamp")
    elif isinstance(value, _CONTAINER_TYPES):
        if depth == 0:
            raise PayloadInvalid(f"is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            _check_items(tuple(value), timestamps, depth - 1)
            _check_items(tuple(value.values()), timestamps, depth - 1)
        else:
            _check_items(value, timestamps, depth - 1)


def _check_items(items: list[Any] | tuple[Any, ...], timestamps: bool, depth: int) -> None:
    if not all_plain(items):
        for item in items:
            check_value(item, timestamps=timestamps, depth=depth)


def all_plain(items: Any) -> bool:
    """Return whether every item is of a type that holds nothing further; the common case, checked at C's speed."""
    return _PLAIN_TYPES.issuperset(map(type, items))


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise PayloadInvalid(f"holds ext type {code}")


def _keep_free_ext(code: int, data: bytes) -> Any:
    if code in RESERVED_EXT_TYPES:
        raise PayloadInvalid(f"ext type {code} is reserved")
    return ExtType(code, data)
