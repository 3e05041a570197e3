"""`/members`: who belongs to the cluster, and an operator's changes of it (rule 15)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

from aiohttp import web

from quire.replication import NEW_NODE_ID, NODE_ID_FORM
from quire.replication.address import is_address
from quire.replication.core import MAX_MEMBERS, NodeRole, Role

from ...errors import Malformed, NodeUnknown, NoLeader, NotLeader
from ...node.components import NodeView
from ...node.membership import Changes, OwnRowLeft
from ...node.views.members import members_document
from ...node.views.status import node_status
from ..admission.admission import work_of
from ..admission.authorization import note_call
from ..api import API
from ..bodies import answer, decode_document, read_body
from ..problems import ANSWERS, TYPE_PREFIX
from ..request import parameters_of
from .status import STATUS_ROWS

BODY_BYTES = 1 << 14
LEADERS_ASKED = 3
"""The leader that hands over, the next one, and one more, should that lose its leadership at once."""
LOOK_S = 0.02
NOT_LEADER = f'"{TYPE_PREFIX}{ANSWERS[NotLeader].name}"'.encode()
BODY = '{"members": {"n4": "HOST:PORT"}, "role": "voter" or "observer"}'
PATCHES = '{"role": "voter" or "observer"}, {"address": "HOST:PORT"} or {"drained": true or false}'


async def get_members(request: web.Request) -> web.StreamResponse:
    """The leader's {"leader", "epoch", "members_index", "commit_index", "change", "may_fail", "members", "removed"}.

    A row is {"node_id", "disk_id", "address", "role", "heard", "lag", "waits_for", "version", "drained", "ready",
    "started_at"}, for each member in the log and for each other connected node. `lag` is null for a disk about which
    the leader knows nothing; the last four are null for a node that does not answer. `waits_for` says what keeps a node
    that joins from being a voter. `change` is true while the last record of members is not committed. So many of the
    voters may fail now: `may_fail`.
    """
    api = request.app[API]
    node = api.node
    parameters_of(request)
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    others = await api.members.ask_all(request)
    await work_of(request).turn(STATUS_ROWS)
    found = {node_id: status for node_id, (status, _) in others.items() if status is not None}
    return answer(request, members_document(node, {node.config.node: node_status(node), **found}))


async def post_members(request: web.Request) -> web.StreamResponse:
    """{"members", "changes"} after nodes were added: the index of the record, or none if all of them are members.

    They join when they are started with `--join`, and become voters once all that join are level; observers stay
    observers. Nobody has to wait for it.
    """
    parameters_of(request)
    body = await read_body(request, BODY_BYTES)
    addresses, observers = _new_members(decode_document(request, body))
    note_call(request, ", ".join(addresses), "observers" if observers else "voters")
    done = await _on_leader(request, body, lambda changes: changes.add(addresses, observers=observers))
    return done if isinstance(done, web.StreamResponse) else answer(request, {"members": addresses, "changes": done})


async def patch_member(request: web.Request) -> web.StreamResponse:
    """{"node_id", "changes"} after a member was made a voter or an observer, or got another address.

    {"node_id", "drained"} after it was told to let others lead, or no longer to. A node that came back with another
    disk is made a voter by two records: the old disk's vote is removed first. An interrupted request can be repeated.
    """
    api = request.app[API]
    node = api.node
    parameters_of(request)
    node_id, body = request.match_info["node"], await read_body(request, BODY_BYTES)
    document = decode_document(request, body)
    if type(document) is not dict or len(document) != 1:
        raise Malformed(f"the body is {PATCHES}")
    if node.addresses.of(node_id) is None:
        raise NodeUnknown(node_id, list(node.addresses.all()))
    match document:
        case {"drained": bool(drained)}:
            note_call(request, node_id, "drain" if drained else "end of the drain")
            if node_id != node.config.node:
                return await api.members.pass_on(request, node_id, body)
            node.leadership.drain(drained=drained)
            return answer(request, {"node_id": node_id, "drained": drained})
        case {"role": "voter"}:
            note_call(request, node_id, "voter")
            return await _changed(request, node_id, body, lambda changes: changes.promote(node_id))
        case {"role": "observer"}:
            note_call(request, node_id, "observer")
            return await _changed(request, node_id, body, lambda changes: changes.demote(node_id))
        case {"address": str(address)} if is_address(address):
            note_call(request, node_id, f"address {address}")
            return await _changed(request, node_id, body, lambda changes: changes.move(node_id, address))
        case _:
            raise Malformed(f"the body is {PATCHES}")


async def delete_member(request: web.Request) -> web.StreamResponse:
    """{"node_id", "changes"} after a node was removed; no change if it was already. Its data_dir cannot come back.

    A leader hands over before it is removed: then the next one answers.
    """
    parameters_of(request)
    node_id, body = request.match_info["node"], await read_body(request, 0)
    return await _changed(request, node_id, body, lambda changes: changes.remove(node_id))


async def _changed(
    request: web.Request, node_id: str, body: bytes, change: Callable[[Changes], Awaitable[list[int]]]
) -> web.StreamResponse:
    done = await _on_leader(request, body, change)
    return done if isinstance(done, web.StreamResponse) else answer(request, {"node_id": node_id, "changes": done})


async def _on_leader(
    request: web.Request, body: bytes, change: Callable[[Changes], Awaitable[list[int]]]
) -> web.StreamResponse | list[int]:
    """The records of a change if this node leads; else the leader's answer.

    A leader whose own row is changed hands over first. If a node has forwarded the request to it, that node forwards it
    again to the next leader, or makes the change if it is the one: a request is forwarded only once.
    """
    api = request.app[API]
    node = api.node
    for _ in range(LEADERS_ASKED):
        led_by = node.leadership.leader_id
        if node.leadership.role.role is NodeRole.LEADER:
            try:
                return await change(node.components.changes)
            except OwnRowLeft:
                await node.leadership.transfer(None)
                continue
        forwarded = await api.leader.forward(request, body, writes=True)
        if forwarded is None:
            continue
        if not _is_from_no_leader(forwarded):
            return forwarded
        await _await_another_leader(node, led_by)
    raise NoLeader


def _is_from_no_leader(forwarded: web.Response) -> bool:
    """Whether the node that was asked does not lead, or leads no longer; it changed nothing then."""
    content = forwarded.body
    return forwarded.status == HTTPStatus.SERVICE_UNAVAILABLE and isinstance(content, bytes) and NOT_LEADER in content


async def _await_another_leader(node: NodeView, led_by: str | None) -> None:
    """Wait until another leader is heard, at most an election timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(node.config.election_timeout_ms / 1000):
            while node.leadership.leader_id in (None, led_by):  # noqa: ASYNC110  # Roles change without an event.
                await asyncio.sleep(LOOK_S)


def _new_members(document: object) -> tuple[dict[str, str], bool]:
    """The addresses of new members, and whether they are observers. Raises Malformed."""
    if type(document) is not dict or document.keys() - {"members", "role"}:
        raise Malformed(f"the body is {BODY}")
    members, role = document.get("members"), document.get("role", str(Role.VOTER))
    if type(members) is not dict or not 0 < len(members) <= MAX_MEMBERS or role not in (Role.VOTER, Role.OBSERVER):
        raise Malformed(f"the body is {BODY}")
    for node_id, address in members.items():
        if type(node_id) is not str or not NEW_NODE_ID.fullmatch(node_id):
            raise Malformed(f"{str(node_id)[:40]!r} is not a node id; use {NODE_ID_FORM}")
        if not is_address(address):
            raise Malformed(f"{str(address)[:60]!r} is not HOST:PORT")
    return dict(members), role == Role.OBSERVER
