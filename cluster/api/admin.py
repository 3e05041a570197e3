"""`/admin/...`: what an operator asks of the cluster."""

from typing import Any

from aiohttp import web

from ..errors import Malformed
from .decoding import DEPTH_LIMIT, JSON, MSGPACK, content_type_of, decode_json, decode_msgpack, read_body
from .encoding import answer
from .forwarding import forward
from .keys import NODE
from .parameters import parameters_of

BODY_BYTES = 4096


async def post_transfer(request: web.Request) -> web.StreamResponse:
    """{"leader", "epoch"} once leadership was handed over: to the body's `target`, or to the voter that has most.

    No write is lost or left unknown by it. A target that leads already is answered at once.
    """
    node = request.app[NODE]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    target = _target_of(request, body)
    if target is not None and target not in node.config.members:
        raise Malformed(f"target {target[:40]!r} is not one of the members ({', '.join(node.config.members)})")
    forwarded = await forward(request, body, writes=False)
    if forwarded is not None:
        return forwarded
    leader = target if target == node.node_id else await node.leadership.transfer(target)
    return answer(request, {"leader": leader, "epoch": node.role.epoch})


def _target_of(request: web.Request, body: bytes) -> str | None:
    if not body:
        return None
    content_type = content_type_of(request, (JSON, MSGPACK))
    document: Any = decode_json(body, DEPTH_LIMIT) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT)
    if (
        type(document) is not dict
        or document.keys() - {"target"}
        or type(document.get("target")) not in (str, type(None))
    ):
        raise Malformed('the body is {"target": node_id}, or nothing')
    target: str | None = document.get("target")
    return target
