"""Promotions (rule 15): one change of members after another, until the node is a voter in the log.

The next change is derived from the leader's log alone. No state is kept between two changes: after an interruption,
repeat the request.

It asks the driver for one change at a time, and reads the core's status.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import assert_never

from quire.replication import Replica
from quire.replication.core.membership import changing

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
from .writing import Waiter

MAX_CHANGES = 2
"""The changes of one promotion: one removes the old disk's vote, one adds the new disk's."""


class Promotions:
    """The promotions in progress on this leader; implements `ChangeEvents` of replication's ports. One event loop."""

    def __init__(
        self,
        replica: Replica[Waiter],
        not_leader: Callable[[], ClusterError | None],
        addresses: Mapping[str, str],
        timeout_ms: int,
    ) -> None:
        """`addresses` are those of the configured members, by node id; a promotion takes at most `timeout_ms`."""
        self._replica = replica
        self._not_leader = not_leader
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._asks = count(1)
        self._waiting: dict[int, asyncio.Future[changing.Outcome]] = {}

    async def promote(self, node_id: str) -> list[int]:
        """Make a configured node a voter with its current disk; return the indices of the membership records.

        A node that is a voter with an older disk loses that disk's vote first; if the promotion is interrupted between
        the two records, repeat it. Empty: the node is already a voter.

        Raises:
            LeaderNotServing, ChangeUnderWay, NodeNotConnected, NodeBehind, VotersUnheard, MembersFull, DiskFullError,
            NotLeader, NoLeader: nothing was changed.
            OutcomeUnknown: one of two changes was made, this node lost its leadership, or the time was up; repeat the
            request.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._promote(node_id, self._addresses[node_id])
        except TimeoutError:
            reason = f"the change was not committed within {self._timeout_ms} ms; repeat the request"
            raise OutcomeUnknown(reason) from None

    async def _promote(self, node_id: str, address: str) -> list[int]:
        changes: list[int] = []
        for _ in range(MAX_CHANGES):
            match await self._ask(node_id, address):
                case changing.Changed(index):
                    changes.append(index)
                    if self._replica.core.status().members.of_node(node_id) is not None:
                        break
                case changing.Unchanged():
                    break
                case outcome:
                    error = error_of(outcome, node_id, self._not_leader)
                    if not changes:
                        raise error
                    raise OutcomeUnknown(f"the old disk's vote was removed by record {changes[0]}, and then: {error}")
        return changes

    async def _ask(self, node_id: str, address: str) -> changing.Outcome:
        ask_id = next(self._asks)
        answer: asyncio.Future[changing.Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[ask_id] = answer
        try:
            self._replica.driver.change(ask_id, changing.Promote(node_id, address))
            return await answer
        finally:
            del self._waiting[ask_id]

    def change_ended(self, ask_id: int, outcome: changing.Outcome) -> None:
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
