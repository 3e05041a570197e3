"""The document of `GET /members`: the log's members, and the other connected nodes, as the leader sees them."""

from collections.abc import Mapping

from quire.log import wall_clock
from quire.replication import Replica
from quire.replication.core import Member, Role, Status
from quire.replication.core.members import NO_DISK

from ...errors import NoLeader
from ..components import NodeView
from ..writing import Waiter

OF_STATUS = ("version", "drained", "ready", "started_at")
NOT_CONNECTED = "it is not connected: start it with --join"


def members_document(node: NodeView, statuses: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """The document; `statuses` are the members' own, by node id, of those that answered.

    Raises:
        NoLeader, StateUnavailable: this node does not lead.
    """
    replica = node.components.replica
    status = replica.core.status()
    if (leader := status.leader) is None:
        raise NoLeader
    others = [
        Member(node_id, disk_id, node.addresses.of(node_id) or "", Role.OBSERVER)
        for node_id, disk_id in status.links.items()
        if not status.members.names(node_id, disk_id)
        and not any(row.node_id == node_id and row.disk_id == NO_DISK for row in status.members.members)
    ]
    clock, members = wall_clock(), status.members
    rows = [
        {
            "node_id": member.node_id,
            "disk_id": member.disk_id.hex(),
            "address": member.address,
            "role": str(member.role),
            "heard": (member.node_id, member.disk_id) in leader.heard,
            "lag": _lag(replica, status, member, clock),
            "waits_for": _waits_for(replica, status, member) if member.role is Role.JOINING else None,
            **{name: statuses.get(member.node_id, {}).get(name) for name in OF_STATUS},
        }
        for member in sorted((*members.members, *others), key=lambda member: (member.node_id, member.role))
    ]
    follow = {stream.node_id for stream in leader.streams if not stream.held_for} | {node.config.node}
    useful = sum(
        (voter.node_id, voter.disk_id) in leader.heard and voter.node_id in follow for voter in members.voters()
    )
    return {
        "leader": node.config.node,
        "epoch": node.leadership.role.epoch,
        "members_index": status.members_index,
        "commit_index": status.commit_index,
        "change": (status.members_index or 0) >= status.commit_index,
        "may_fail": max(0, useful - members.majority()),
        "members": rows,
        "removed": [
            {"node_id": gone.node_id, "disk_id": gone.disk_id.hex(), "index": gone.index} for gone in members.removed
        ],
    }


def _waits_for(replica: Replica[Waiter], status: Status, member: Member) -> str:
    """What keeps a node that joins from being a voter."""
    disk_id = status.links.get(member.node_id)
    if disk_id is None:
        return replica.network.reports.failures.get(member.node_id) or NOT_CONNECTED
    if member.disk_id != NO_DISK and disk_id != member.disk_id:
        return "it is connected with another disk: remove it and add it again, or `quire members promote` it"
    if status.leader is None or all(stream.node_id != member.node_id for stream in status.leader.streams):
        return "it does not follow the leader's log yet"
    waiting = [row.node_id for row in status.members.members if row.role is Role.JOINING and not status.is_linked(row)]
    if waiting:
        return f"all that join must be level, and {', '.join(waiting)} is not connected"
    rot = status.alarms.get("rot")
    return "it catches up" if rot is None else f"it catches up, unless it needs what this leader cannot read: {rot}"


def _lag(replica: Replica[Waiter], status: Status, member: Member, clock: int) -> dict[str, object] | None:
    """A member's lag, if known. A position is reported under a node id, so it belongs to the connected disk."""
    if status.is_me(member):
        return replica.lags.own(clock)._asdict()
    position = replica.lags.positions.get(member.node_id)
    return replica.lags.of(position, clock)._asdict() if position is not None and status.is_linked(member) else None
