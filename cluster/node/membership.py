"""The members as the leader knows them, and promotions (rule 15): one change of members after another, until the node
is a voter in the log.

The next change is derived from the leader's log alone. No state is kept between two changes: after an interruption,
repeat the request.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, assert_never

from quire.log import wall_clock
from quire.replication import Replica
from quire.replication.core import Member, Role, Status, changing

from ..errors import (
    ChangeUnderWay,
    ClusterError,
    DiskFullError,
    LeaderNotServing,
    MembersFull,
    NodeBehind,
    NodeNotConnected,
    NoLeader,
    OutcomeUnknown,
    VotersUnheard,
)
from .pending import Waiter

if TYPE_CHECKING:
    from .node import Node

MAX_CHANGES = 2
"""The changes of one promotion: one removes the old disk's vote, one adds the new disk's."""


class Promotions:
    """The promotions in progress on this leader. All methods are called on the event loop."""

    def __init__(self) -> None:
        self._asks = count(1)
        self._waiting: dict[int, asyncio.Future[changing.Outcome]] = {}

    async def promote(
        self, replica: Replica[Waiter], node_id: str, address: str, not_leader: Callable[[], ClusterError | None]
    ) -> list[int]:
        """Return the indices of the changes that were made. Raises as `Node.promote`."""
        changes: list[int] = []
        for _ in range(MAX_CHANGES):
            match await self._ask(replica, node_id, address):
                case changing.Changed(index):
                    changes.append(index)
                    if replica.status().members.of_node(node_id) is not None:
                        break
                case changing.AlreadyVoter():
                    break
                case outcome:
                    error = error_of(outcome, node_id, not_leader)
                    if not changes:
                        raise error
                    raise OutcomeUnknown(f"the old disk's vote was removed by record {changes[0]}, and then: {error}")
        return changes

    async def _ask(self, replica: Replica[Waiter], node_id: str, address: str) -> changing.Outcome:
        ask_id = next(self._asks)
        answer: asyncio.Future[changing.Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[ask_id] = answer
        try:
            replica.promote(ask_id, node_id, address)
            return await answer
        finally:
            del self._waiting[ask_id]

    def ended(self, ask_id: int, outcome: changing.Outcome) -> None:
        """One change ended."""
        answer = self._waiting.get(ask_id)
        if answer is not None and not answer.done():
            answer.set_result(outcome)


def error_of(
    outcome: changing.Refused | changing.Full | changing.Lost,
    node_id: str,
    not_leader: Callable[[], ClusterError | None],
) -> ClusterError:
    """The error for a change that was not made, with its values."""
    match outcome:
        case changing.NotLeading():
            return not_leader() or NoLeader()
        case changing.NotServing(start_index, commit_index):
            return LeaderNotServing(start_index, commit_index)
        case changing.ChangeUnderWay(members_index, commit_index):
            return ChangeUnderWay(f"the change of members at index {members_index} is not committed yet", commit_index)
        case changing.TransferUnderWay(target):
            return ChangeUnderWay(f"the leader is handing over to {target}", None)
        case changing.NotConnected(connected, lacking):
            return NodeNotConnected(node_id, list(connected), list(lacking))
        case changing.NotFollowing():
            return NodeBehind(node_id, None, None)
        case changing.Behind(lag_bytes, limit_bytes):
            return NodeBehind(node_id, lag_bytes, limit_bytes)
        case changing.Unheard(node_ids, heard, majority):
            return VotersUnheard(list(node_ids), heard, majority)
        case changing.TooMany(number, limit):
            return MembersFull(number, limit)
        case changing.Full():
            return DiskFullError()
        case changing.Lost():
            return OutcomeUnknown("this node lost its leadership before the change was committed; repeat the request")
        case _:
            assert_never(outcome)


def members_document(node: "Node") -> dict[str, Any]:
    """The document of `GET /admin/members`: the log's members, and the other connected nodes, as this leader sees them.

    Raises:
        NoLeader, NotLeader, StateUnavailable: this node does not lead.
    """
    replica = node.components.replica
    status = replica.status()
    if (leader := status.leader) is None:
        raise NoLeader
    others = [
        Member(node_id, disk_id, node.config.members.get(node_id, ""), Role.OBSERVER)
        for node_id, disk_id in status.links.items()
        if all((member.node_id, member.disk_id) != (node_id, disk_id) for member in status.members.members)
    ]
    clock = wall_clock()
    rows = [
        {
            "node_id": member.node_id,
            "disk_id": member.disk_id.hex(),
            "address": member.address,
            "role": str(member.role),
            "heard": (member.node_id, member.disk_id) in leader.heard,
            "lag": _lag(replica, status, member, clock),
        }
        for member in sorted((*status.members.members, *others), key=lambda member: (member.node_id, member.role))
    ]
    return {
        "leader": node.node_id,
        "epoch": node.role.epoch,
        "members_index": status.members_index,
        "commit_index": status.commit_index,
        "members": rows,
    }


def _lag(replica: Replica[Waiter], status: Status, member: Member, clock: int) -> dict[str, Any] | None:
    """A member's lag, if known. A position is reported under a node id, so it belongs to the connected disk."""
    if status.is_me(member):
        return replica.lag(clock)._asdict()
    position = replica.positions.get(member.node_id)
    return replica.lag_of(position, clock)._asdict() if position is not None and status.is_linked(member) else None
