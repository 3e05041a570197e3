"""msgpack, typed and strict. No other module imports the library, which has no types.

Packing uses the smallest encodings, `bin` for bytes and `str` for text. Unpacking takes exactly one value with nothing
after it, valid UTF-8, nested at most 32 containers deep, and refuses ext types unless the caller allows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .errors import PayloadInvalid

MAX_DEPTH = 32
RESERVED_EXT_TYPES = range(16)
"""Ext types reserved for quire; a client's value must not hold one."""

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"
"""What a log gives back: a record's value, a machine's result. Parameters that take any value are `object`."""

if TYPE_CHECKING:

    class ExtType(NamedTuple):
        """An application's own type of value: its code, and bytes."""

        code: int
        data: bytes

    @dataclass(frozen=True)
    class Timestamp:
        """A point in time, in msgpack's own form."""

        seconds: int
        nanoseconds: int = 0
        from_bytes: ClassVar[Callable[[bytes], Timestamp]]
        to_bytes: Callable[[], bytes] = field(init=False)
else:
    ExtType, Timestamp = msgpack.ExtType, msgpack.Timestamp

# By a value's first byte: the bytes after it; the bytes of its length, and of its ext type; the items that the byte
# counts, the bytes that count more of them, and the values of an item.
_SCALAR_BYTES = (
    dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], 0)
    | {0xA0 + length: length for length in range(32)}
    | {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
)
_BYTE_LENGTHS = {
    **{0xC4 + power: (1 << power, 0) for power in range(3)},
    **{0xC7 + power: (1 << power, 1) for power in range(3)},
    **{0xD9 + power: (1 << power, 0) for power in range(3)},
}
_EXT_LENGTH_BYTES = {0xC7: 1, 0xC8: 2, 0xC9: 4} | dict.fromkeys(range(0xD4, 0xD9), 0)
_COUNTED = (
    {0x80 + count: (count, 0, 2) for count in range(16)}
    | {0x90 + count: (count, 0, 1) for count in range(16)}
    | {0xDC: (0, 2, 1), 0xDD: (0, 4, 1), 0xDE: (0, 2, 2), 0xDF: (0, 4, 2)}
)

# Types that contain no other values: they need no walk.
_PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None)})
_CONTAINER_TYPES = (list, tuple, dict)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class _Unpacker(Protocol):
    """What a skimmer needs of the library's unpacker."""

    def unpack(self) -> object: ...

    def feed(self, buffer: bytes | memoryview, /) -> None: ...

    def read_array_header(self) -> int: ...

    def skip(self) -> object: ...

    def tell(self) -> int: ...


array_head: Callable[[int], bytes] = msgpack.Packer(autoreset=True).pack_array_header
"""Returns the smallest msgpack head of an array of so many items, which follow it."""


def array_items(packed: bytes, count: int) -> bytes:
    """The items of an array of so many that was packed here: what follows its head."""
    return packed[len(array_head(count)) :]


_packer: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_unpackb: Callable[..., object] = msgpack.unpackb
_new_unpacker: Callable[..., _Unpacker] = msgpack.Unpacker
_FAULTS = (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException)


def pack(value: object) -> bytes:
    """Return the msgpack bytes of `value`, with maps in their own order.

    Raises:
        PayloadInvalid: msgpack cannot hold a type, integer or string in it, or it is nested too deep.
    """
    try:
        return _packer(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadInvalid(f"cannot be packed: {error}") from error


def array_count(buffer: bytes, start: int) -> int:
    """How many items the array at `start` has; 0 if there is none, or if the bytes cannot hold that many."""
    head = buffer[start : start + 5]
    match head[:1]:
        case b"\xdc" if len(head) >= 3:
            count, length = int.from_bytes(head[1:3]), 3
        case b"\xdd" if len(head) == 5:
            count, length = int.from_bytes(head[1:]), 5
        case first if first and 0x90 <= first[0] <= 0x9F:
            count, length = first[0] & 0x0F, 1
        case _:
            return 0
    return count if count <= len(buffer) - start - length else 0


def check_containers(
    buffer: bytes | memoryview, most: int, most_values: int | None = None, entered: bytes = b""
) -> None:
    """Check that `buffer` holds one value with at most `most` arrays and maps, nested ones counted. Makes no objects.

    With `most_values`, it holds at most so many values of any kind. An ext type is a value without others in it, but
    for the one whose code is the byte `entered`: it holds one.

    msgpack allocates an array as long as its head declares before it reads the items, and a map for each byte 0x80. So
    an untrusted message is checked before it is unpacked.

    Raises:
        PayloadInvalid: it holds more, or is not exactly one value.
    """
    position, end, values, containers, total = 0, len(buffer), 1, 0, 1
    while values:
        if values > end - position:
            raise PayloadInvalid("ends before its values do")
        head = buffer[position]
        position += 1
        values -= 1
        length_bytes = _EXT_LENGTH_BYTES.get(head)
        if length_bytes is not None and buffer[position + length_bytes : position + length_bytes + 1] == entered:
            position += length_bytes + 1
            values, total = values + 1, total + 1
        elif (size := _SCALAR_BYTES.get(head)) is not None:
            position += size
        elif (lengths := _BYTE_LENGTHS.get(head)) is not None:
            length_bytes, type_bytes = lengths
            position += length_bytes + type_bytes + int.from_bytes(buffer[position : position + length_bytes])
        elif (counted := _COUNTED.get(head)) is not None:
            count, count_bytes, of_each = counted
            containers += 1
            if containers > most:
                raise PayloadInvalid(f"holds more than {most} arrays and maps")
            held = (count + int.from_bytes(buffer[position : position + count_bytes])) * of_each
            values, total = values + held, total + held
            if most_values is not None and total > most_values:
                raise PayloadInvalid(f"holds more than {most_values} values")
            position += count_bytes
        else:
            raise PayloadInvalid(f"holds the byte {head:#04x}, where a value begins")
    if position != end:
        raise PayloadInvalid("is not exactly one msgpack value")


def unpack(buffer: bytes | bytearray | memoryview, *, ext: bool = False) -> object:
    """Return the one value in `buffer`, checked for depth. With `ext`, it may hold unreserved ext types.

    Raises:
        PayloadInvalid: it is not exactly one value, is nested too deep, has invalid UTF-8 or a forbidden ext type.
    """
    value = unpack_trusted(buffer, _keep_free_ext if ext else _refuse_ext)
    check_value(value, timestamps=ext)
    return value


def unpack_trusted(
    buffer: bytes | bytearray | memoryview,
    ext_hook: Callable[[int, bytes], object],
    map_hook: Callable[[list[tuple[object, object]]], object] | None = None,
    list_hook: Callable[[list[object]], object] | None = None,
    *,
    use_list: bool = True,
) -> object:
    """Return the one value in `buffer` without a check of its depth: for bytes that were checked when appended.

    `map_hook` makes a map from its pairs; without it, the last pair of a key wins. `list_hook` gets each array.
    `use_list=False`: arrays are tuples. What a hook raises, other than ValueError and the like, is raised.

    Raises:
        PayloadInvalid: it is not exactly one value, or has invalid UTF-8.
    """
    try:
        return _unpackb(
            buffer,
            strict_map_key=False,
            ext_hook=ext_hook,
            object_pairs_hook=map_hook,
            list_hook=list_hook,
            use_list=use_list,
        )
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise PayloadInvalid(f"is not exactly one msgpack value: {type(error).__name__}: {error}") from error


class Skimmer:
    """Finds the positions of values in msgpack arrays without making objects of them. For one thread.

    Positions count all bytes fed to this skimmer: `feed` returns the position where its buffer begins.
    """

    def __init__(self, ext_hook: Callable[[int, bytes], object] | None = None, size: int = 0) -> None:
        """`ext_hook` makes the ext types of values that are unpacked. `size`: so many bytes will be fed, if known."""
        self._new = partial(
            _new_unpacker, max_buffer_size=0, read_size=size, strict_map_key=False, ext_hook=ext_hook or _refuse_ext
        )
        self._unpacker = self._new()

    def feed(self, buffer: bytes | memoryview) -> int:
        """Continue in `buffer`; return the position of its first byte.

        Raises:
            PayloadInvalid: the previous buffer was not skimmed to its end.
        """
        return self._guarded(self._fed, buffer)

    def array(self) -> int:
        """Enter the array that begins here; return the count in its head.

        Raises:
            PayloadInvalid: no array begins here.
        """
        return self._guarded(self._unpacker.read_array_header)

    def ends(self, count: int) -> list[int]:
        """Skip `count` values; return the positions where they end.

        Raises:
            PayloadInvalid: there are fewer values.
        """
        return self._guarded(self._passed, count)

    def value(self, skipped: int = 0) -> object:
        """Skip so many values and unpack the next one, without a check of its depth, as `unpack_trusted`.

        Raises:
            PayloadInvalid: there are fewer values, or it has invalid UTF-8.
        """
        return self._guarded(self._unpacked, skipped)

    @property
    def position(self) -> int:
        """Position where the next value begins."""
        return self._unpacker.tell()

    def _fed(self, buffer: bytes | memoryview) -> int:
        start = self.position
        self._unpacker.feed(buffer)
        return start

    def _unpacked(self, skipped: int) -> object:
        skip = self._unpacker.skip
        for _ in repeat(None, skipped):
            skip()
        return self._unpacker.unpack()

    def _passed(self, count: int) -> list[int]:
        skip, tell = self._unpacker.skip, self._unpacker.tell
        # `skip` returns None, so the condition holds for each: a loop without a line of bytecode for its body.
        return [tell() for _ in repeat(None, count) if not skip()]

    def _guarded(self, step: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        try:
            return step(*arguments)
        except _FAULTS as error:
            self._unpacker = self._new()
            raise PayloadInvalid(f"cannot be skimmed: {type(error).__name__}: {error}") from error


def check_value(value: object, *, timestamps: bool = True, depth: int = MAX_DEPTH) -> None:
    """Check that a client may store a value: nested at most `depth` containers deep, without reserved ext types.

    Raises:
        PayloadInvalid: it may not; the reason is in the error.
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


def _check_items(items: list[object] | tuple[object, ...], timestamps: bool, depth: int) -> None:
    if not all_plain(items):
        for item in items:
            check_value(item, timestamps=timestamps, depth=depth)


def all_plain(items: Iterable[object]) -> bool:
    """Return whether no item can contain other values: the common case, checked without a Python loop."""
    return _PLAIN_TYPES.issuperset(map(type, items))


def _refuse_ext(code: int, _data: bytes) -> object:
    raise PayloadInvalid(f"holds ext type {code}")


def _keep_free_ext(code: int, data: bytes) -> ExtType:
    if code in RESERVED_EXT_TYPES:
        raise PayloadInvalid(f"ext type {code} is reserved")
    return ExtType(code, data)
