"""Values from JSON and msgpack, read strictly: a value that the log cannot hold exactly is refused, not changed.

orjson is fast, but it turns an integer beyond 64 bits into a float: `_has_wide_digits` finds candidates at a tenth of
the cost of parsing. And of two equal keys in a map it keeps the last: then the text has more colons than the value has
keys. Where a string might contain such digits or colons, `outside_strings` leaves the strings out, in one or two passes
over the bytes for any input. msgpack has values that JSON lacks (ext types, floats that are not finite, keys of any
type), so its values are checked one by one, level by level of nesting.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from math import isfinite
from typing import Any, TypeVar

import orjson

from quire.log import PayloadInvalid
from quire.log.packing import RESERVED_EXT_TYPES, ExtType, unpack_trusted

from .errors import LimitExceeded, Malformed

CONTAINERS_LIMIT = 32_000  # Lists, maps and ext types: they cost ten times as much as other values of their size.
DEPTH_LIMIT = 32  # Containers that may be nested in a record's value, itself included.
INTEGER_LOWEST, INTEGER_HIGHEST = -(2**63), 2**64 - 1

# A 64-bit integer has 20 characters at most, and one of 18 digits always fits.
_DIGITS = bytes(0x30 if chr(byte).isdecimal() and byte < 0x80 else 0x20 for byte in range(256))
_WIDE = b"0" * 19
_WIDE_INTEGER = re.compile(rb"(?<![-+.0-9Ee])-?[0-9]{19,}(?![.0-9Ee])")
_CONTAINERS = frozenset([*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), *range(0xDC, 0xE0)])  # Heads.
_FLOATS = frozenset({0xCA, 0xCB})
_SCALAR_HEADS = bytes(byte for byte in range(256) if byte not in _CONTAINERS | _FLOATS)
_NO_CONTAINER = bytes(byte for byte in range(256) if byte not in _CONTAINERS)
_SCALARS = frozenset({str, int, bool, bytes, type(None)})
_COMPOUND = frozenset({list, dict, float})
_LIST = frozenset({list})
LONG_BYTES = 16 << 10
LONG_LIST = 256
REPEATED = "has a map with the same key twice"


Each = TypeVar("Each")


class MalformedLine(Malformed):
    """One line of an NDJSON body is wrong; lines are counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} {reason}")
        self.line = line


def decode_ndjson(
    body: bytes, *, depth_limit: int = DEPTH_LIMIT, containers_limit: int = CONTAINERS_LIMIT
) -> list[object]:
    """One value for each line; a final line break is allowed, an empty line is not.

    Raises:
        Malformed, MalformedLine: a line is wrong.
        LimitExceeded: it has more than `containers_limit` lists, maps and ext types.
    """
    _refuse_many_containers(body, containers_limit)
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        values = list(map(orjson.loads, lines))
    except orjson.JSONDecodeError as error:
        raise _bad_line(lines, error) from None
    keys = refuse_unstorable(values, depth_limit + 1)
    if _repeats_a_key(body, keys):
        for number, (line, value) in enumerate(zip(lines, values, strict=True), 1):
            if _repeats_a_key(line, refuse_unstorable([value], depth_limit + 1)):
                raise MalformedLine(number, REPEATED)
    if _has_wide_digits(body):
        for number, line in enumerate(lines, 1):
            if wide := _wide_integer(line):
                raise MalformedLine(number, wide)
    return not_empty(values, "line")


def decode_json(body: bytes, depth_limit: int, containers_limit: int = CONTAINERS_LIMIT) -> object:
    """One JSON value, nested at most `depth_limit` containers deep. Raises as `decode_ndjson`."""
    _refuse_many_containers(body, containers_limit)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    # An array of scalars needs no further check: orjson refuses floats that are not finite.
    if b":" in body or body.count(b"[") + body.count(b"{") > depth_limit:
        keys = refuse_unstorable([value], depth_limit + 1)
        if _repeats_a_key(body, keys):
            raise Malformed(f"the body {REPEATED}")
    if _has_wide_digits(body) and (wide := _wide_integer(body)):
        raise Malformed(f"the body {wide}")
    return value


def decode_msgpack(body: bytes, depth_limit: int) -> object:
    """One msgpack value, nested at most `depth_limit` containers deep. Raises as `decode_ndjson`."""
    value = unpack_msgpack(body)
    if not _is_scalars(body, depth_limit):
        refuse_unstorable([value], depth_limit + 1)
    return value


def unpack_msgpack(body: bytes) -> object:
    """One msgpack value, which the caller must check with `refuse_unstorable`. Raises as `decode_ndjson`."""
    try:
        if len(body) <= CONTAINERS_LIMIT or len(body.translate(None, _NO_CONTAINER)) <= CONTAINERS_LIMIT:
            return unpack_trusted(body, _ext_type, _map_of)
        counting = _Counting(CONTAINERS_LIMIT)  # Text may have such bytes as well.
        return unpack_trusted(body, counting.ext_type, counting.map_of, counting.list_of)
    except PayloadInvalid as error:
        raise Malformed(f"the body {error.reason}") from None


def has_more_containers(packed: bytes, limit: int) -> bool:
    """Whether well-formed msgpack has more lists, maps and ext types, itself included, than `limit`."""
    if len(packed) <= limit or len(packed.translate(None, _NO_CONTAINER)) <= limit:
        return False
    counting = _Counting(limit)
    try:
        unpack_trusted(packed, counting.ext_type, counting.map_of, counting.list_of)
    except LimitExceeded:
        return True
    return False


def _is_scalars(body: bytes, depth_limit: int) -> bool:
    """Whether long msgpack has at most this many containers and no floats, so that it needs no further check."""
    if len(body) <= LONG_BYTES:
        return False
    heads = body.translate(None, _SCALAR_HEADS)  # And bytes of texts and numbers that look like them.
    return len(heads) <= depth_limit and _FLOATS.isdisjoint(heads)


class _Counting:
    """Counts containers as they are created. Slower, so it is used only for suspicious bodies."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def list_of(self, values: list[object]) -> list[object]:
        self._one_more()
        return values

    def map_of(self, pairs: list[tuple[object, object]]) -> dict[object, object]:
        self._one_more()
        return _map_of(pairs)

    def ext_type(self, code: int, data: bytes) -> object:
        self._one_more()
        return _ext_type(code, data)

    def _one_more(self) -> None:
        self._count += 1
        if self._count > self._limit:
            raise _too_many(self._count, self._limit)


def _refuse_many_containers(text: bytes, limit: int = CONTAINERS_LIMIT) -> None:
    if text.count(b"[") + text.count(b"{") > limit:
        bare = outside_strings(text)
        if (count := bare.count(b"[") + bare.count(b"{")) > limit:
            raise _too_many(count, limit)


def outside_strings(text: bytes) -> bytes:
    """The parts of a JSON text outside of strings. Takes time proportional to its length, even if it is not JSON."""
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _too_many(count: int, limit: int) -> LimitExceeded:
    return LimitExceeded("the number of lists, maps and ext types in the body", count, limit)


def not_empty(values: list[Each], what: str) -> list[Each]:
    """The values, unchanged. Raises Malformed if there are none."""
    if not values:
        raise Malformed(f"there is no {what} in the body; send at least one")
    return values


def _bad_line(lines: list[bytes], first: orjson.JSONDecodeError) -> Malformed:
    for number, line in enumerate(lines, 1):
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return MalformedLine(number, f"is not JSON: {error}" if line.strip() else "is empty")
    return Malformed(f"a line is not JSON: {first}")


def _has_wide_digits(body: bytes) -> bool:
    """Whether there are 19 digits in a row, so that an integer might not fit 64 bits."""
    return _WIDE in body.translate(_DIGITS)


def _wide_integer(text: bytes) -> str:
    """What is wrong with an integer in `text`, which must be valid JSON; empty if all of them fit 64 bits."""
    found = _WIDE_INTEGER.findall(outside_strings(text))
    if not found or (max(map(len, found)) <= 20 and _fits(min(map(int, found))) and _fits(max(map(int, found)))):
        return ""
    first = next(digits for digits in found if len(digits) > 20 or not _fits(int(digits)))
    return f"holds the integer {first[:24].decode()}, which does not fit 64 bits; send it as a string"


def _fits(number: int) -> bool:
    return INTEGER_LOWEST <= number <= INTEGER_HIGHEST


def _repeats_a_key(text: bytes, keys: int) -> bool:
    """Whether a map in `text`, which must be valid JSON, has a key twice; `keys` is their number after parsing."""
    return text.count(b":") != keys and outside_strings(text).count(b":") != keys


def _map_of(pairs: list[tuple[object, object]]) -> dict[object, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Malformed(f"the body {REPEATED}")
    return made


def _ext_type(code: int, data: bytes) -> object:
    if code in RESERVED_EXT_TYPES:
        raise Malformed(f"msgpack ext type {code} is reserved; types 0 to 15 cannot be sent")
    return ExtType(code, data)


def refuse_unstorable(values: Sequence[object], depth_limit: int) -> int:
    """Refuse nesting that is too deep, and floats that are not finite; return the number of keys in all maps.

    `values` itself counts as one level. Raises Malformed.
    """
    if _holds_flat_lists(values):
        return 0
    keys = 0
    level: list[Any] = [values]
    for _ in range(depth_limit):
        below = [child for container in level for child in _children(container) if child.__class__ not in _SCALARS]
        level = [child for child in below if child.__class__ is not float or _refuse_not_finite(child)]
        if not level:
            return keys
        keys += sum(len(child) for child in level if child.__class__ is dict)
    if any(value.__class__ in (list, dict) for value in level):
        raise Malformed(f"the body nests too deep; a record may nest {DEPTH_LIMIT} containers")
    return keys


def _holds_flat_lists(values: Sequence[Any]) -> bool:
    """Whether these are lists of scalars, as most machines' commands are; this test takes a third of the time."""
    return _LIST.issuperset(map(type, values)) and _SCALARS.issuperset(map(type, chain.from_iterable(values)))


def _children(container: Any) -> Iterable[Any]:
    if container.__class__ is list:
        if len(container) > LONG_LIST:  # Two thirds of the time of looking at each.
            return compress(container, map(_COMPOUND.__contains__, map(type, container)))
        return container
    return chain(container.keys(), container.values()) if container.__class__ is dict else ()


def _refuse_not_finite(value: float) -> bool:
    """False for a finite float, which needs no further check. Raises Malformed for any other."""
    if not isfinite(value):
        raise Malformed(f"the float {value} is not finite; a record holds finite numbers only")
    return False
