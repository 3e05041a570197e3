"""`GET /cluster`: the status of every member that this node reaches."""

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from ...node.views.status import node_status
from ..admission.admission import work_of
from ..api import API
from ..bodies import answer
from ..request import parameters_of
from .status import STATUS_ROWS

MEMBER_ROWS = 16
"""To encode the status of another member takes as long as so many rows."""


async def get_cluster(request: web.Request) -> web.Response:
    """{"node_id", "leader", "leaders", "snapshots", "nodes"}: this node, the leader that it hears, every member by id.

    `leaders` lists the epochs in which the members that answered have led, oldest first. `snapshots` has the indices at
    which several of them have a snapshot, and those at which these differ. A member is {"address", "status",
    "failure"}: its own `/status`, or null and the reason.
    """
    parameters_of(request)
    api = request.app[API]
    node = api.node
    me, leader = node.config.node, node.leadership.leader_id
    addresses = node.addresses.all()
    others = await api.members.ask_all(request)
    await work_of(request).turn(STATUS_ROWS + len(others) * MEMBER_ROWS)
    statuses = {me: (node_status(node), None), **others}
    nodes: dict[str, Any] = {}
    for node_id, address in addresses.items():
        status, failure = statuses[node_id]
        nodes[node_id] = {"address": address, "status": status, "failure": failure}
    answered = [status for status, _ in statuses.values() if status]
    document = {
        "node_id": me,
        "leader": leader,
        "leaders": leaders_of(answered),
        "snapshots": compare_snapshots(answered),
        "nodes": nodes,
    }
    return answer(request, document)


def compare_snapshots(statuses: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    """{"compared", "differ"}: the indices at which several nodes have a snapshot, and those at which they differ."""
    sums: dict[int, list[str]] = {}
    for status in statuses:
        for kept in status.get("snapshots", {}).get("kept", ()):
            sums.setdefault(kept["index"], []).append(kept["sha256"])
    compared = sorted(index for index, found in sums.items() if len(found) > 1)
    return {"compared": compared, "differ": [index for index in compared if len(set(sums[index])) > 1]}


def leaders_of(statuses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """{"epoch", "leader", "at", "reason"} of each epoch, from the node that led it: only that one knows the reason."""
    own = [
        {name: change[name] for name in ("epoch", "leader", "at", "reason")}
        for status in statuses
        for change in status.get("leaders", ())
        if change["role"] == "leader"
    ]
    return sorted(own, key=lambda change: change["epoch"])
