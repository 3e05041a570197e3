"""Bodies: the commands, records or query of a request, and responses as JSON or msgpack.

A body must be exactly what its content type says, or it is refused. Responses in msgpack are exact;
`quire.log.json_text` defines how bytes and other values without a JSON type look in JSON.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from quire.log import pack
from quire.log.json_text import to_json
from quire.log.packing import array_count, array_head, array_items

from ..errors import LimitExceeded, Malformed
from ..values import DEPTH_LIMIT, decode_json, decode_msgpack, decode_ndjson, not_empty
from .admission.admission import ADMISSION
from .admission.turns import PIECE_ROWS, Work
from .problems import UnsupportedMedia

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
MSGPACK = "application/msgpack"
OCTETS = "application/octet-stream"
RAW_FRAMES = "application/vnd.quire.frames"

_CHARSETS = frozenset({None, "utf-8", "utf8"})
_DOCUMENTS = (JSON, MSGPACK)
_MAP_HEAD = 0x80  # Of a msgpack map with up to 15 keys: their number is added.
_COMMANDS = b"\x81" + pack("commands")  # The first bytes of a map with only that key.


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises as `RequestBodyLimit.read`."""
    admission = request.app[ADMISSION]
    return await admission.request_bodies.read(request, admission.origin_of(request), limit, "the request body")


def content_type_of(request: web.Request, supported: Iterable[str]) -> str:
    """The body's content type, one of `supported`. Raises UnsupportedMedia."""
    if request.content_type not in supported or (request.charset or "utf-8").lower() not in _CHARSETS:
        given = request.headers.get("Content-Type", "none")
        raise UnsupportedMedia(f"content type {given} is not supported here; send one of {', '.join(supported)}")
    return request.content_type


def decode_document(request: web.Request, body: bytes) -> Any:
    """The one value of a body that is JSON or msgpack. Raises Malformed, UnsupportedMedia."""
    json = content_type_of(request, _DOCUMENTS) == JSON
    return decode_json(body, DEPTH_LIMIT) if json else decode_msgpack(body, DEPTH_LIMIT)


def decode_commands(content_type: str, body: bytes, most: int) -> list[Any]:
    """The commands of a `POST /commands`: a map with the one key `commands`, or NDJSON; at most `most`.

    Raises:
        Malformed: it is something else.
        LimitExceeded: there are more.
    """
    if content_type == NDJSON:
        return _lines(body, most, "commands")
    if content_type == MSGPACK and body.startswith(_COMMANDS):
        _refuse_more(array_count(body, len(_COMMANDS)), most, "commands")
    document = decode_json(body, DEPTH_LIMIT + 2) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT + 2)
    if not isinstance(document, dict) or list(document) != ["commands"] or not isinstance(document["commands"], list):
        raise Malformed('the body must be {"commands": [command, ...]} and nothing else')
    return _at_most(not_empty(document["commands"], "command"), most, "commands")


def decode_query(content_type: str, body: bytes) -> Any:
    """The `request` of a `POST /query`, whose body is a map with that one key. Raises Malformed."""
    document = decode_json(body, DEPTH_LIMIT + 1) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT + 1)
    if not isinstance(document, dict) or list(document) != ["request"]:
        raise Malformed('the body must be {"request": ...} and nothing else')
    return document["request"]


def decode_records(content_type: str, body: bytes, most: int) -> list[Any]:
    """The values of a `POST /records` whose body is not raw bytes. Raises as `decode_commands`."""
    if content_type == NDJSON:
        return _lines(body, most, "records")
    if content_type == JSON:
        return [decode_json(body, DEPTH_LIMIT)]
    _refuse_more(array_count(body, 0), most, "records")
    values = decode_msgpack(body, DEPTH_LIMIT + 1)
    if not isinstance(values, list):
        raise Malformed("the body must be a msgpack array of records")
    return _at_most(not_empty(values, "record"), most, "records")


def _lines(body: bytes, most: int, what: str) -> list[Any]:
    """The values of NDJSON. Raises Malformed, LimitExceeded."""
    _refuse_more(body.count(b"\n"), most, what)
    return _at_most(decode_ndjson(body), most, what)


def _at_most(values: list[Any], most: int, what: str) -> list[Any]:
    _refuse_more(len(values), most, what)
    return values


def _refuse_more(count: int, most: int, what: str) -> None:
    """Raise LimitExceeded above `most`; called before decoding where the count is known, so a refusal is cheap."""
    if count > most:
        raise LimitExceeded(f"the number of {what}", count, most)


def pack_records(values: list[Any], limit: int) -> bytes:
    """The payload of a frame that holds the values. Raises LimitExceeded."""
    payload = pack(values)
    if len(payload) > limit:
        raise LimitExceeded("the batch as msgpack", len(payload), limit)
    return payload


def accepted(request: web.Request, offered: tuple[str, ...]) -> str:
    """The first of the offered types that the Accept header names; the first offered if it names none of them."""
    named = [part.partition(";")[0].strip() for part in request.headers.get("Accept", "").split(",")]
    return next((content_type for content_type in named if content_type in offered), offered[0])


def answer_type_of(request: web.Request) -> str:
    """JSON or MSGPACK: what the request accepts for a document."""
    return accepted(request, _DOCUMENTS)


async def answer_rows(
    request: web.Request,
    work: Work,
    name: str,
    found: Sequence[T],
    rows_of: Callable[[Sequence[T], Callable[[], Awaitable[None]]], Awaitable[list[dict[str, object]]]],
    **rest: object,
) -> web.Response:
    """A response that holds {name: rows, **rest}. Its rows are made and encoded in turns, PIECE_ROWS in one piece.

    `rows_of` gets a piece of `found` and its `turn`, which it awaits last, right before it makes the rows.
    """
    json, pieces = answer_type_of(request) == JSON, list[bytes]()
    for first in range(0, len(found), PIECE_ROWS):
        chosen = found[first : first + PIECE_ROWS]
        rows = await rows_of(chosen, partial(work.turn, len(chosen)))
        pieces.append(to_json(rows)[1:-1] if json else array_items(pack(rows), len(rows)))
    if json:
        body = b'{"%s":[%s],%s' % (name.encode(), b",".join(pieces), to_json(rest)[1:])
    else:
        head = bytes([_MAP_HEAD + 1 + len(rest)]) + pack(name) + array_head(len(found))
        body = b"".join([head, *pieces, pack(rest)[1:]])
    return web.Response(body=body, content_type=answer_type_of(request))


def size_of(response: web.Response) -> int:
    """The bytes of a response's body."""
    return len(response.body) if isinstance(response.body, bytes) else 0


def answer(request: web.Request, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    """A response that holds the value as JSON, or as msgpack if the request accepts that."""
    content_type = answer_type_of(request)
    body = to_json(value) if content_type == JSON else pack(value)
    return web.Response(body=body, content_type=content_type, headers=headers)
