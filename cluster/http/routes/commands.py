"""`POST /commands`: a batch of commands is one frame; the answer holds their results."""

from typing import Any

from aiohttp import web

from ..decoding import JSON, MSGPACK, NDJSON, content_type_of, decode_commands, read_body
from ..encoding import answer
from ..forwarding import forward
from ..keys import NODE
from ..parameters import parameters_of
from .sessions import place_of
from .writing import write_values

BODIES = (JSON, MSGPACK, NDJSON)


async def post_commands(request: web.Request) -> web.StreamResponse:
    """{"index", "epoch", "results"} of commands that a majority holds and this node has applied.

    Where `apply` refused some, their results are null and `refused` lists [place, code, text].
    """
    node = request.app[NODE]
    parameters_of(request)
    place = place_of(request)
    content_type = content_type_of(request, BODIES)
    limit = node.config.max_request_bytes
    body = await read_body(request, limit)
    forwarded = await forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    reply = await write_values(request.app, decode_commands(content_type, body), limit, applied=True, place=place)
    document: dict[str, Any] = {"index": reply.index, "epoch": reply.epoch, "results": reply.results}
    if reply.refused:
        document["refused"] = reply.refused
    return answer(request, document)
