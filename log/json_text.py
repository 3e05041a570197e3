"""Values as JSON text.

A value without a JSON form becomes a map with one key: bytes {"$bin": base64}, ext types {"$ext": [type, base64]}.
Keys that are not strings become strings. A program that must tell all of these apart asks for msgpack.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from .packing import ExtType, Timestamp


def to_json(value: Any) -> bytes:
    """Return the value as JSON.

    Raises:
        TypeError: it holds a type that msgpack cannot hold either.
    """
    try:
        return orjson.dumps(value, default=_with_json_form)
    except TypeError:
        return orjson.dumps(_with_string_keys(value), default=_with_json_form)


def to_json_each(values: Sequence[Any]) -> list[bytes]:
    """Return each value as JSON; fastest if JSON has a form for everything in them.

    Raises:
        TypeError: as `to_json`.
    """
    try:
        return list(map(orjson.dumps, values))
    except TypeError:
        return list(map(to_json, values))


def _with_json_form(value: Any) -> Any:
    """Return a form that orjson can write of a value that it cannot."""
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
