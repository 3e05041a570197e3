"""Request bodies: of which type they are, and the commands, records or query in them."""

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from quire.log import pack

from ..errors import LimitExceeded, Malformed
from ..values import DEPTH_LIMIT, decode_json, decode_msgpack, decode_ndjson, not_empty
from .keys import INFLOW
from .problems import UnsupportedMedia

JSON = "application/json"
NDJSON = "application/x-ndjson"
MSGPACK = "application/msgpack"
OCTETS = "application/octet-stream"
_CHARSETS = frozenset({None, "utf-8", "utf8"})


async def read_body(request: web.Request, limit: int, what: str = "the request body") -> bytes:
    """The whole body; raises as `Inflow.read`."""
    return await request.app[INFLOW].read(request, limit, what)


def content_type_of(request: web.Request, supported: Iterable[str]) -> str:
    """The body's content type, one of `supported`. Raises UnsupportedMedia."""
    if request.content_type not in supported or (request.charset or "utf-8").lower() not in _CHARSETS:
        given = request.headers.get("Content-Type", "none")
        raise UnsupportedMedia(f"content type {given} is not supported here; send one of {', '.join(supported)}")
    return request.content_type


def decode_commands(content_type: str, body: bytes) -> list[Any]:
    """The commands of a `POST /commands`: a map with the one key `commands`, or NDJSON. Raises Malformed."""
    if content_type == NDJSON:
        return decode_ndjson(body)
    document = decode_json(body, DEPTH_LIMIT + 2) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT + 2)
    if not isinstance(document, dict) or list(document) != ["commands"] or not isinstance(document["commands"], list):
        raise Malformed('the body must be {"commands": [command, ...]} and nothing else')
    return not_empty(document["commands"], "command")


def decode_query(content_type: str, body: bytes) -> Any:
    """What a `POST /query` asks of the machine: the one key `request` of a map. Raises Malformed."""
    document = decode_json(body, DEPTH_LIMIT + 1) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT + 1)
    if not isinstance(document, dict) or list(document) != ["request"]:
        raise Malformed('the body must be {"request": ...} and nothing else')
    return document["request"]


def decode_records(content_type: str, body: bytes) -> list[Any]:
    """The values of a `POST /records` whose body is not raw bytes. Raises Malformed."""
    if content_type == NDJSON:
        return decode_ndjson(body)
    if content_type == JSON:
        return [decode_json(body, DEPTH_LIMIT)]
    values = decode_msgpack(body, DEPTH_LIMIT + 1)
    if not isinstance(values, list):
        raise Malformed("the body must be a msgpack array of records")
    return not_empty(values, "record")


def pack_records(values: list[Any], limit: int) -> bytes:
    """The payload of a frame that holds the values. Raises LimitExceeded."""
    payload = pack(values)
    if len(payload) > limit:
        raise LimitExceeded("the batch as msgpack", len(payload), limit)
    return payload
