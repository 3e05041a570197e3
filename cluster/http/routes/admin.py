"""`/admin/...`: what an operator asks of the cluster."""

from typing import Any

from aiohttp import web

from ...compaction.retention import shown
from ...errors import Malformed, NodeUnknown
from ...node.membership import members_document
from ...values import DEPTH_LIMIT, decode_json, decode_msgpack
from ..decoding import JSON, MSGPACK, content_type_of, read_body
from ..encoding import answer
from ..forwarding import forward
from ..keys import NODE
from ..parameters import parameters_of

BODY_BYTES = 4096
NAMES: dict[type[Any], str] = {str: "node_id", bool: "true or false"}


async def post_transfer(request: web.Request) -> web.StreamResponse:
    """{"leader", "epoch"} once leadership was handed over: to the body's `target`, or to the voter that has most.

    No write is lost or left unknown by it. A target that leads already is answered at once.
    """
    node = request.app[NODE]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    target: str | None = _field_of(request, body, "target", str)
    if target is not None and target not in node.config.members:
        raise Malformed(f"target {target[:40]!r} is not one of the members ({', '.join(node.config.members)})")
    forwarded = await forward(request, body, writes=False)
    if forwarded is not None:
        return forwarded
    leader = target if target == node.node_id else await node.leadership.transfer(target)
    return answer(request, {"leader": leader, "epoch": node.role.epoch})


async def get_members(request: web.Request) -> web.StreamResponse:
    """{"leader", "epoch", "members_index", "commit_index", "members"} as the leader has them.

    A row is {"node_id", "disk_id", "address", "role", "heard", "lag"}, for each member of the log and for each other
    node that is connected; `lag` is null of a disk of which the leader knows nothing.
    """
    node = request.app[NODE]
    parameters_of(request)
    forwarded = await forward(request, None, writes=False)
    return forwarded if forwarded is not None else answer(request, members_document(node))


async def post_members(request: web.Request) -> web.StreamResponse:
    """{"node_id", "changes"}: the indices of the records that make the body's `promote` a voter; none if it is one.

    Of a node that came back with another disk the old one's vote is removed first, and then the new one added. Asked
    again after whatever interrupted it, it goes on.
    """
    node = request.app[NODE]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    promoted: str | None = _field_of(request, body, "promote", str)
    if promoted is None:
        raise Malformed('the body is {"promote": node_id}')
    if promoted not in node.config.members:
        raise NodeUnknown(promoted, list(node.config.members))
    if node.role.role != "leader":  # One that does not serve yet says so itself.
        forwarded = await forward(request, body, writes=True)
        if forwarded is not None:
            return forwarded
    return answer(request, {"node_id": promoted, "changes": await node.promote(promoted)})


async def post_snapshot(request: web.Request) -> web.StreamResponse:
    """{"node_id", "index", "bytes", "sha256"} of a snapshot of all that this node had applied when it was asked."""
    node = request.app[NODE]
    parameters_of(request)
    await read_body(request, 0)
    manifest = await node.components.compaction.snapshotting.take()
    taken = {"index": manifest.index, "bytes": manifest.size, "sha256": manifest.sha256.hex()}
    return answer(request, {"node_id": node.node_id, **taken})


async def post_expire(request: web.Request) -> web.StreamResponse:
    """{"node_id", "segments", "to_index", "bytes"}: what went of this node's log, or would with `{"dry_run": true}`."""
    node = request.app[NODE]
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    gone = node.components.compaction.expire(dry_run=bool(_field_of(request, body, "dry_run", bool)))
    return answer(request, {"node_id": node.node_id, **shown(gone)})


def _field_of(request: web.Request, body: bytes, name: str, kind: type[Any]) -> Any:
    """The one thing that a body may say, None where it does not. Raises Malformed."""
    if not body:
        return None
    content_type = content_type_of(request, (JSON, MSGPACK))
    document: Any = decode_json(body, DEPTH_LIMIT) if content_type == JSON else decode_msgpack(body, DEPTH_LIMIT)
    if type(document) is not dict or document.keys() - {name} or type(document.get(name)) not in (kind, type(None)):
        raise Malformed(f'the body is {{"{name}": {NAMES[kind]}}}, or nothing')
    return document.get(name)
