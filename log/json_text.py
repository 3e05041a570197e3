"""Values as JSON text, and back.

A value without a JSON form becomes a map whose only key begins with `$`:

    {"$bin": base64}                bytes
    {"$ext": [type, base64]}        ext types; a timestamp is type -1
    {"$map": [[key, value], ...]}   a map with a key that is not text, or whose only key begins with `$`
    {"$float": "nan"}               a float that is not finite: "nan", "inf" or "-inf"

So a map whose only key begins with `$` is always one of these, and nothing else looks like one. `from_json` returns the
original value, with the same msgpack bytes; it refuses floats that are not finite, since a record must not hold one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TypeGuard

import orjson

from .errors import PayloadInvalid
from .packing import ExtType, Timestamp, all_plain

TIMESTAMP_TYPE = -1
_WRITTEN_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def to_json(value: object) -> bytes:
    """Return the value as JSON.

    Raises:
        TypeError: it holds a type that msgpack cannot hold either.
    """
    try:
        text = orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_formed(value))
    return orjson.dumps(_formed(value)) if _is_in_doubt(text) else text


def to_json_each(values: Sequence[object]) -> list[bytes]:
    """Return each value as JSON; fastest if JSON has a form for everything in them.

    Raises:
        TypeError: as `to_json`.
    """
    try:
        texts = list(map(orjson.dumps, values))
    except TypeError:
        return list(map(to_json, values))
    return list(map(to_json, values)) if _is_in_doubt(b"".join(texts)) else texts


def to_exact_json(value: object) -> bytes:
    """Return the value as JSON from which `from_json` can make it again.

    Raises:
        PayloadInvalid: it holds a float that is not finite.
        TypeError: as `to_json`.
    """
    text = to_json(value)
    if b'{"$float":' in text and not _is_finite(value):
        raise PayloadInvalid("holds a float that is not finite")
    return text


def from_json(document: object) -> object:
    """Return the value for which `to_json` wrote this document, parsed.

    Raises:
        PayloadInvalid: a map whose only key begins with `$` is none of these forms, or a float that is not finite.
    """
    if type(document) is list:
        return document if _is_plain(document) else [from_json(inner) for inner in document]
    if type(document) is not dict:
        return document
    if len(document) == 1:
        [(name, content)] = document.items()
        if name.startswith("$"):
            return _read_form(name, content)
    if _is_plain(document.values()):
        return document
    return {key: from_json(inner) for key, inner in document.items()}


def has_text_keys(value: object) -> bool:
    """Return whether every key of every map in the value is text."""
    try:
        orjson.dumps(value)  # It refuses other keys. This takes a tenth of the time of a walk.
    except TypeError:
        return _has_text_keys(value)
    return True


def _is_in_doubt(text: bytes) -> bool:
    """Whether orjson may have written a map that needs a form, or null for a float.

    Within a string a quote follows a backslash, so `{"$` is always the beginning of a map.
    """
    return b'{"$' in text or b"null" in text


def _is_plain(items: Iterable[object]) -> bool:
    return _WRITTEN_AS_THEY_ARE.issuperset(map(type, items))


def _formed(value: object) -> object:
    """The value, with everything that has no JSON form replaced. orjson handles or refuses the rest."""
    if isinstance(value, dict):
        if _needs_pairs(value):
            return {"$map": [[_formed(key), _formed(inner)] for key, inner in value.items()]}
        return value if _is_plain(value.values()) else {key: _formed(inner) for key, inner in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return value if _is_plain(value) else [_formed(inner) for inner in value]
    if isinstance(value, float):
        return value if isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bin": b64encode(value).decode()}
    if isinstance(value, ExtType):
        return {"$ext": [value.code, b64encode(value.data).decode()]}
    if isinstance(value, Timestamp):
        return {"$ext": [TIMESTAMP_TYPE, b64encode(value.to_bytes()).decode()]}
    return value


def _needs_pairs(value: dict[object, object]) -> bool:
    if len(value) == 1:
        [key] = value
        return not isinstance(key, str) or key.startswith("$")
    return not all(isinstance(key, str) for key in value)


def _is_finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(key) and _is_finite(inner) for key, inner in value.items())
    if isinstance(value, list) or type(value) is tuple:
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def _has_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and _has_text_keys(list(value.values()))
    return not isinstance(value, list | tuple) or all_plain(value) or all(map(_has_text_keys, value))


def _read_form(name: str, content: object) -> object:
    match name, content:
        case "$bin", str():
            return _bytes_of(content)
        case "$ext", [int() as code, str() as data] if type(code) is int:
            return _ext_of(code, _bytes_of(data))
        case "$map", [*pairs] if _are_pairs(pairs):
            return _map_of([(_key(from_json(key)), from_json(inner)) for key, inner in pairs])
        case "$float", _:
            raise PayloadInvalid("holds a float that is not finite")
        case _:
            reason = (
                f'has {{"{name:.40}": ...}}, which is none of the forms {{"$bin": base64}}, {{"$ext": [type, base64]}}'
            )
            raise PayloadInvalid(f'{reason} and {{"$map": [[key, value], ...]}}')


def _are_pairs(items: list[object]) -> TypeGuard[list[list[object]]]:
    return all(type(item) is list and len(item) == 2 for item in items)


def _bytes_of(text: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except ValueError as error:
        raise PayloadInvalid(f"has bytes that are not base64: {error}") from None
    if b64encode(data).decode() != text:
        raise PayloadInvalid("has bytes that are not base64 as it is written")
    return data


def _ext_of(code: int, data: bytes) -> object:
    if code == TIMESTAMP_TYPE:
        try:
            stamp = Timestamp.from_bytes(data)
        except ValueError as error:
            raise PayloadInvalid(f"has an invalid timestamp: {error}") from None
        return stamp
    if not 0 <= code < 128:
        raise PayloadInvalid(f"has ext type {code}, which msgpack does not have")
    return ExtType(code, data)


def _map_of(pairs: list[tuple[object, object]]) -> dict[object, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise PayloadInvalid("has a map with the same key twice")
    return made


def _key(value: object) -> object:
    """The key of a map: an array becomes a tuple, and a map cannot be a key."""
    if isinstance(value, dict):
        raise PayloadInvalid("has a map as the key of a map")
    return tuple(map(_key, value)) if isinstance(value, list) else value
