"""Values as JSON text.

JSON shows what it has no word for as a map with one key: bytes are {"$bin": base64}, ext types
{"$ext": [type, base64]}; keys that are no strings are written as strings. A program that must tell everything apart
asks for msgpack.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from .packing import ExtType, Timestamp


def to_json(value: Any) -> bytes:
    """Return the value as JSON, as the module's text says.

    Raises:
        TypeError: a type that msgpack does not hold either.
    """
    try:
        return orjson.dumps(value, default=_in_words)
    except TypeError:
        return orjson.dumps(_with_string_keys(value), default=_in_words)


def to_json_each(values: Sequence[Any]) -> list[bytes]:
    """Return each of many values as JSON; fast where JSON has a word for all that is in them.

    Raises:
        TypeError: as `to_json`.
    """
    try:
        return list(map(orjson.dumps, values))
    except TypeError:
        return list(map(to_json, values))


def _in_words(value: Any) -> Any:
    """What orjson cannot write."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bin": b64encode(value).decode()}
    if isinstance(value, ExtType):
        return {"$ext": [value.code, b64encode(value.data).decode()]}
    if isinstance(value, Timestamp):
        return {"$ext": [-1, b64encode(value.to_bytes()).decode()]}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _with_string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _with_string_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_string_keys(inner) for inner in value]
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else to_json(key).decode()
