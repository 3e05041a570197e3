"""Answers as JSON or msgpack. msgpack is exact; what JSON makes of bytes and their like, `quire.log.json_text` says."""

from typing import Any

from aiohttp import web

from quire.log import pack
from quire.log.json_text import to_json

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
