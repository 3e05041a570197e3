"""`/admin/...`: an operator's calls."""

from typing import Any

from aiohttp import web

from quire.replication.core import NodeRole

from ...compaction.retention import shown
from ...errors import Malformed, NodeUnknown
from ...node.views.status import members_document
from ..api import API
from ..bodies import answer, decode_document, read_body
from ..request import parameters_of

BODY_BYTES = 4096
NAMES: dict[type[Any], str] = {str: "node_id", bool: "true or false"}


async def post_transfer(request: web.Request) -> web.StreamResponse:
    """{"leader", "epoch"} after a transfer of leadership to the body's `target`, or to the voter that lags least.

    No write is lost or gets an unknown outcome. If the target already leads, the answer comes at once.
    """
    api = request.app[API]
    node = api.node
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    target: str | None = _field_of(request, body, "target", str)
    if target is not None and target not in node.config.members:
        raise Malformed(f"target {target[:40]!r} is not one of the members ({', '.join(node.config.members)})")
    forwarded = await api.leader.forward(request, body, writes=False)
    if forwarded is not None:
        return forwarded
    leader = target if target == node.config.node else await node.leadership.transfer(target)
    return answer(request, {"leader": leader, "epoch": node.leadership.role.epoch})


async def get_members(request: web.Request) -> web.StreamResponse:
    """{"leader", "epoch", "members_index", "commit_index", "members"}, from the leader.

    A row is {"node_id", "disk_id", "address", "role", "heard", "lag"}, for each member in the log and for each other
    connected node. `lag` is null for a disk about which the leader knows nothing.
    """
    api = request.app[API]
    node = api.node
    parameters_of(request)
    forwarded = await api.leader.forward(request, None, writes=False)
    return forwarded if forwarded is not None else answer(request, members_document(node))


async def post_members(request: web.Request) -> web.StreamResponse:
    """{"node_id", "changes"}: the indices of the records that make the body's `promote` a voter; none if it is one.

    If the node came back with another disk, the old disk's vote is removed first, then the new disk's is added. An
    interrupted request can be repeated: it continues where the last one stopped.
    """
    api = request.app[API]
    node = api.node
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    promoted: str | None = _field_of(request, body, "promote", str)
    if promoted is None:
        raise Malformed('the body is {"promote": node_id}')
    if promoted not in node.config.members:
        raise NodeUnknown(promoted, list(node.config.members))
    if (
        node.leadership.role.role is not NodeRole.LEADER
    ):  # A leader that does not serve yet refuses by itself, with a reason.
        forwarded = await api.leader.forward(request, body, writes=True)
        if forwarded is not None:
            return forwarded
    return answer(request, {"node_id": promoted, "changes": await node.components.promotions.promote(promoted)})


async def post_snapshot(request: web.Request) -> web.StreamResponse:
    """{"node_id", "index", "bytes", "sha256"} of a new snapshot of all that this node had applied."""
    node = request.app[API].node
    parameters_of(request)
    await read_body(request, 0)
    manifest = await node.components.compaction.snapshotting.take()
    taken = {"index": manifest.index, "bytes": manifest.size, "sha256": manifest.sha256.hex()}
    return answer(request, {"node_id": node.config.node, **taken})


async def post_expire(request: web.Request) -> web.StreamResponse:
    """{"node_id", "segments", "to_index", "bytes"} that expired from this node's log, or would: `{"dry_run": true}`."""
    node = request.app[API].node
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    gone = await node.components.compaction.expire(dry_run=bool(_field_of(request, body, "dry_run", bool)))
    return answer(request, {"node_id": node.config.node, **shown(gone)})


async def post_accept_code(request: web.Request) -> web.StreamResponse:
    """{"node_id", "code", "accepted_code"} after this node has accepted the code of its machine and of the members'.

    Fingerprints in hex; `code` is null if this node's is unknown.
    """
    node = request.app[API].node
    parameters_of(request)
    await read_body(request, 0)
    components = node.components
    await components.code.accept(components.codes())
    running, accepted = components.code.running.hex() or None, [code.hex() for code in components.code.accepted]
    return answer(request, {"node_id": node.config.node, "code": running, "accepted_code": accepted})


def _field_of(request: web.Request, body: bytes, name: str, kind: type[Any]) -> Any:
    """The only key that the body may have; None without it. Raises Malformed."""
    if not body:
        return None
    document = decode_document(request, body)
    if type(document) is not dict or document.keys() - {name} or type(document.get(name)) not in (kind, type(None)):
        raise Malformed(f'the body is {{"{name}": {NAMES[kind]}}}, or nothing')
    return document.get(name)
