"""Valid messages with one thing changed: every field of every message, by what its value is.

A message is the row that its codec packs, or a map. The functions walk over it, so a new field of a message has its
changes without a word here; what must be added for a new message is a valid example (`peers`).
"""

import random
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from quire.log import pack
from quire.log.packing import ExtType

MAX_U64 = 2**64 - 1
NUMBERS = (0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, MAX_U64, -1)
OTHERS: tuple[Any, ...] = (None, True, 1.5, float("nan"), float("inf"), "", "1", b"", b"1", [], [1], {}, {1: 1})
"""A value of each type, tried in the place of each field."""
TEXTS = ("", "n2", "no-such-node", "n" * 24, "n" * 25, "N1", "a\nb\x1b[2J\u202e", "é", "x" * 1_000, "x" * 1_001)
DEEP = (30, 33)
UNKNOWN_TYPE = 99
FIRST_ROWS = 3

Path = tuple[int, ...]


class Changed(NamedTuple):
    """A message of which one thing differs from a valid one: what, how, and the bytes."""

    where: str
    how: str
    data: bytes


class Raw(NamedTuple):
    """Packed bytes that take the place of a value."""

    data: bytes


LONG_LISTS = [
    (f"a list of {length}", Raw(pack([[number, number] for number in range(1, length + 1)])))
    for length in (10_000, 10_001)
]
"""As many pairs as an opening may name epochs, and one more."""


def pack_raw(value: Any) -> bytes:
    """As `pack`, with the places of a list that are `Raw` as they are."""
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, dict) and any(isinstance(each, Raw | list) for each in value.values()):
        return bytes([0x80 | len(value)]) + b"".join(pack(name) + pack_raw(each) for name, each in value.items())
    if isinstance(value, list) and any(isinstance(each, Raw | list) for each in value):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + len(value).to_bytes(2, "big")
        return head + b"".join(map(pack_raw, value))
    return pack(value)


def changes_of_row(row: list[Any], names: Any, chance: random.Random) -> Iterator[Changed]:
    """Each change of each field of a packed row, of its type (its first place), and of its bytes."""
    yield from (Changed("type", f"{value!r:.20}", pack_raw([value, *row[1:]])) for value in (UNKNOWN_TYPE, *OTHERS))
    for name, path in fields(row, names):
        for how, changed in changes_at(row, path, chance):
            yield Changed(name, how, pack_raw(changed))
    yield from (Changed("bytes", how, data) for how, data in changes_of_bytes(pack(row), chance))


def changes_of_values(row: list[Any], names: Sequence[str], chance: random.Random) -> Iterator[Changed]:
    """Each change of each place of a row that has no type, and of its bytes."""
    for place, name in enumerate(names):
        for how, changed in changes_at(row, (place,), chance):
            yield Changed(name, how, pack_raw(changed))
    yield from (Changed("whole", _shown(other), pack_raw(other)) for other in OTHERS)
    yield from (Changed("bytes", how, data) for how, data in changes_of_bytes(pack(row), chance))


def changes_of_map(value: dict[str, Any], chance: random.Random) -> Iterator[Changed]:
    """Each change of each value of a map of up to 15, of its keys, and of its bytes."""
    for key, given in value.items():
        for name, path in _fields_of(given, (0,), key, []):
            for how, changed in changes_at([given], path, chance):
                rest = {other: each for other, each in value.items() if other != key}
                if len(changed) < 2:
                    yield Changed(name, how, pack_raw(rest | dict.fromkeys([key][: len(changed)], *changed)))
    yield Changed("keys", "one more", pack_raw({**value, "unheard-of": 1}))
    for other in OTHERS:
        yield Changed("whole", _shown(other), pack_raw(other))
    yield from (Changed("bytes", how, data) for how, data in changes_of_bytes(pack(value), chance))


def fields(row: list[Any], names: Any) -> Iterator[tuple[str, Path]]:
    """(name, path) of each field of a row, of its first rows' fields, too. `names` are the names of its places after
    the type, each with those of its own places.
    """
    for place, (name, inner) in enumerate(names, start=1):
        if place < len(row):
            yield from _fields_of(row[place], (place,), name, inner)


def _fields_of(value: Any, path: Path, name: str, names: Any) -> Iterator[tuple[str, Path]]:
    yield name, path
    if isinstance(value, list):
        known = dict(enumerate(names))
        for place, each in enumerate(value[:FIRST_ROWS]):
            below, inner = known.get(place, (str(place), []))
            yield from _fields_of(each, (*path, place), f"{name}.{below}", inner)


def changes_at(row: list[Any], path: Path, chance: random.Random) -> Iterator[tuple[str, list[Any]]]:
    """(how, row) of each change of the field at a path."""
    value = _at(row, path)
    for how, other in _other_values(value, chance):
        yield how, _with(row, path, [other])
    yield "missing", _with(row, path, [])
    yield "doubled", _with(row, path, [value, value])


def _other_values(value: Any, chance: random.Random) -> Iterator[tuple[str, Any]]:
    alike: list[Any] = []
    match value:
        case bool():
            alike = [not value]
        case int():
            near = [value - 1, value + 1, value + 2**32, value + 2**32 + 1, 2 * value]
            alike = [number for number in (*NUMBERS, *near) if -(2**63) <= number <= MAX_U64]
        case str():
            alike = list(TEXTS)
        case bytes():
            alike = [value[:-1], value + b"\0", value * 2, bytes(len(value)), _flipped(value, chance)]
        case list() if value:
            alike = [value[:-1], value[::-1], [*value, value[-1]]]
        case _:
            pass
    yield from ((_shown(other), other) for other in alike if other != value or type(other) is not type(value))
    for other in OTHERS:
        if type(other) is not type(value) or other != value:
            yield _shown(other), other
    yield from LONG_LISTS
    yield "half a surrogate", Raw(b"\xa3\xed\xa0\x80")
    yield "no UTF-8", Raw(b"\xa1\xff")
    yield "ext type", Raw(pack(ExtType(99, b"x")))
    yield "a map with a key twice", Raw(b"\x82\x01\x01\x01\x01")
    yield from ((f"lists {depth} deep", Raw(b"\x91" * depth + b"\x90")) for depth in DEEP)
    yield "a list of 2^32 - 1", Raw(b"\xdd\xff\xff\xff\xff")


def changes_of_bytes(data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """(how, bytes) of what a disturbed connection makes of a message."""
    yield "nothing", b""
    yield "cut by one", data[:-1]
    yield "cut", data[: chance.randrange(len(data))]
    yield "one more", data + b"\0"
    yield "doubled", data * 2
    for _ in range(8):
        yield "flipped", _flipped(data, chance)


def _flipped(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\1"
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _at(row: list[Any], path: Path) -> Any:
    return _at(row[path[0]], path[1:]) if path else row


def _with(row: list[Any], path: Path, values: list[Any]) -> list[Any]:
    """The row with these values in the place of one."""
    place, rest = path[0], path[1:]
    inner = [_with(row[place], rest, values)] if rest else values
    return [*row[:place], *inner, *row[place + 1 :]]


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)}"
