"""Answers as JSON or msgpack.

msgpack is exact. JSON shows what it has no word for as a map with one key: bytes are {"$bin": base64}, ext types
{"$ext": [type, base64]}; keys that are no strings are written as strings. A program that must tell everything apart
asks for msgpack.
"""

from base64 import b64encode
from typing import Any

import orjson
from aiohttp import web

from quire.log import pack
from quire.log.packing import ExtType, Timestamp

from .decoding import JSON, MSGPACK

RAW_FRAMES = "application/vnd.quire.frames"


def accepted(request: web.Request, offered: tuple[str, ...]) -> str:
    """The first of the offered types that the Accept header names; the first offered where it names none of them."""
    named = [part.partition(";")[0].strip() for part in request.headers.get("Accept", "").split(",")]
    return next((content_type for content_type in named if content_type in offered), offered[0])


def answer(request: web.Request, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    """The value as JSON, or as msgpack if the request accepts that."""
    content_type = accepted(request, (JSON, MSGPACK))
    body = to_json(value) if content_type == JSON else pack(value)
    return web.Response(body=body, content_type=content_type, headers=headers)


def to_json(value: Any) -> bytes:
    """The value as JSON, as the module's text says."""
    try:
        return orjson.dumps(value, default=_in_words)
    except TypeError:
        return orjson.dumps(_with_string_keys(value), default=_in_words)


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
