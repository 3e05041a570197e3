"""`/admin/...`: an operator's calls."""

from typing import Any

from aiohttp import web

from ...compaction.retention import shown
from ...errors import Malformed
from ..admission.authorization import note_call
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
    if target is not None and target not in (members := node.addresses.all()):
        raise Malformed(f"target {target[:40]!r} is not one of the members ({', '.join(members)})")
    note_call(request, target or "")
    forwarded = await api.leader.forward(request, body, writes=False, repeats=False)
    if forwarded is not None:
        return forwarded
    leader = target if target == node.config.node else await node.leadership.transfer(target)
    return answer(request, {"leader": leader, "epoch": node.leadership.role.epoch})


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
    await components.accept_code()
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
