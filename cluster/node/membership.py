"""Changes of members that an operator asks for (rule 15): one record after another, until the log says what was wanted.

The next change is derived from the leader's log alone. No state is kept between two changes: after an interruption,
repeat the request. What an operator need not wait for, such as that a node which joins becomes a voter, the leader does
by itself.

It asks the driver for one change at a time, and reads the core's status.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count

from quire.replication import Replica
from quire.replication.core import Role
from quire.replication.core.membership import changing

from ..errors import (
    AddressUnusable,
    ChangeRefused,
    ChangeUnderWay,
    ClusterError,
    DiskFullError,
    LeaderNotServing,
    MembersFull,
    NodeBehind,
    NodeNotConnected,
    NodeUnknown,
    NoLeader,
    OutcomeUnknown,
    TransferFailed,
    VotersUnheard,
)
from .writing import Waiter

MAX_CHANGES = 2
"""The changes on the way to a voter: one takes the old disk's vote, one gives the new disk one."""
PAUSE_S = 0.05
"""Between two questions whether what stood in the way is over."""
PATIENCE_S = 1.0
"""How long to wait for that: the leader's own changes take less if a majority is heard."""


class OwnRowLeft(ClusterError):
    """The leader must hand over before the change that was asked for; nothing was changed yet."""


class Changes:
    """The changes in progress on this leader; implements `ChangeEvents` of replication's ports. One event loop."""

    def __init__(
        self,
        replica: Replica[Waiter],
        not_leader: Callable[[], ClusterError | None],
        address_of: Callable[[str], str | None],
        timeout_ms: int,
    ) -> None:
        """`address_of` a member, by the log or the configuration; a request takes at most `timeout_ms`."""
        self._replica = replica
        self._not_leader = not_leader
        self._address_of = address_of
        self._timeout_ms = timeout_ms
        self._asks = count(1)
        self._waiting: dict[int, asyncio.Future[changing.Outcome]] = {}

    async def promote(self, node_id: str) -> list[int]:
        """Make a member a voter with its current disk; return the indices of the members records.

        A node that is a voter with an older disk loses that disk's vote first; if the request is interrupted between
        the two records, repeat it. Empty: the node is already a voter.

        Raises:
            ClusterError: as `error_of`, and NodeUnknown: nothing was changed.
            OutcomeUnknown: one of two changes was made, this node lost its leadership, or the time was up; repeat the
            request.
        """
        if (address := self._address_of(node_id)) is None:
            raise NodeUnknown(node_id, [member.node_id for member in self._replica.core.members.members])
        return await self._in_time(self._promote(changing.Promote(node_id, address)))

    async def add(self, addresses: Mapping[str, str], *, observers: bool) -> list[int]:
        """Give nodes a row, so that they can join; return the index of the record, or nothing if all have one.

        They become voters, or stay observers, without anybody waiting for it. Raises as `promote`, and AddressUnusable.
        """
        for node_id, address in addresses.items():
            await self._check_address(node_id, address)
        role = Role.OBSERVER if observers else Role.JOINING
        return await self._in_time(self._change(changing.Add(tuple(addresses.items()), role)))

    async def remove(self, node_id: str) -> list[int]:
        """Remove a node. Raises as `promote`, and OwnRowLeft."""
        return await self._in_time(self._change(changing.Remove(node_id)))

    async def demote(self, node_id: str) -> list[int]:
        """Make a voter an observer. Raises as `promote`, and OwnRowLeft."""
        return await self._in_time(self._change(changing.Demote(node_id)))

    async def move(self, node_id: str, address: str) -> list[int]:
        """Give a member another address. Raises as `promote`, and AddressUnusable."""
        await self._check_address(node_id, address)
        return await self._in_time(self._change(changing.Move(node_id, address)))

    async def _check_address(self, node_id: str, address: str) -> None:
        if node_id != self._replica.core.status().me.node_id:
            if (why := await self._replica.network.probe(address, node_id)) is not None:
                raise AddressUnusable(node_id, address, why)

    async def _in_time(self, changes: Awaitable[list[int]]) -> list[int]:
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await changes
        except TimeoutError:
            reason = f"the change was not committed within {self._timeout_ms} ms; repeat the request"
            raise OutcomeUnknown(reason) from None

    async def _change(self, wanted: changing.Wanted) -> list[int]:
        match await self._ask(wanted):
            case changing.Changed(index):
                return [index]
            case changing.Unchanged():
                return []
            case outcome:
                raise error_of(outcome, wanted, self._not_leader)

    async def _promote(self, wanted: changing.Promote) -> list[int]:
        changes: list[int] = []
        while len(changes) < MAX_CHANGES:
            match await self._ask(wanted):
                case changing.Changed(index):
                    changes.append(index)
                    row = self._replica.core.status().members.of_node(wanted.node_id)
                    if row is not None and row.role is Role.VOTER:
                        break
                case changing.Unchanged():
                    last = self._replica.core.status().members_index
                    if changes and last is not None and last > changes[-1]:
                        changes.append(last)  # The leader went on by itself.
                    break
                case outcome:
                    error = error_of(outcome, wanted, self._not_leader)
                    if not changes:
                        raise error
                    raise OutcomeUnknown(f"the old disk's vote was removed by record {changes[0]}, and then: {error}")
        return changes

    async def _ask(self, wanted: changing.Wanted) -> changing.Outcome:
        """The outcome of one change, once the previous one is committed.

        A leader that was just elected serves and hears the others first, and a new cluster's log names its features.
        """
        patient_until = asyncio.get_running_loop().time() + PATIENCE_S
        while _is_soon_over(outcome := await self._ask_once(wanted)):
            if asyncio.get_running_loop().time() >= patient_until:
                break
            await asyncio.sleep(PAUSE_S)
        return outcome

    async def _ask_once(self, wanted: changing.Wanted) -> changing.Outcome:
        ask_id = next(self._asks)
        answer: asyncio.Future[changing.Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[ask_id] = answer
        try:
            self._replica.driver.change(ask_id, wanted)
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
    wanted: changing.Wanted,
    not_leader: Callable[[], ClusterError | None],
) -> ClusterError:
    """The error for a change that was not made, with its values."""
    node_id = ", ".join(node for node, _ in wanted.nodes) if isinstance(wanted, changing.Add) else wanted.node_id
    match outcome:
        case changing.NotLeading():
            return not_leader() or NoLeader()
        case changing.NotServing(start_index, commit_index):
            return LeaderNotServing(start_index, commit_index)
        case changing.ChangeUnderWay(members_index, commit_index):
            return ChangeUnderWay(members_index, commit_index)
        case changing.TransferUnderWay(target):
            return TransferFailed(f"the leader is handing over to {target}")
        case changing.Unheard(node_ids, heard, majority):
            return VotersUnheard(list(node_ids), heard, majority)
        case changing.TooMany(number, limit):
            return MembersFull(number, limit)
        case changing.Full():
            return DiskFullError()
        case changing.Lost():
            return OutcomeUnknown("this node lost its leadership before the change was committed; repeat the request")
        case changing.OwnRow():
            return OwnRowLeft(f"{node_id} leads, so it hands over before it is removed or demoted")
        case _:
            return _of_node(outcome, node_id)


def _is_soon_over(outcome: changing.Outcome) -> bool:
    """Whether the reason for a refusal is likely to be over in a moment."""
    match outcome:
        case changing.ChangeUnderWay() | changing.NotServing() | changing.Unheard():
            return True  # The last two: a leader that was just elected.
        case changing.FeatureNotInUse(lacking=lacking):
            return not lacking
        case _:
            return False


OfNode = (
    changing.NotConnected
    | changing.NotFollowing
    | changing.Behind
    | changing.NoMember
    | changing.LastVoter
    | changing.AlreadyMember
    | changing.AddressTaken
    | changing.FeatureNotInUse
)


def _of_node(outcome: OfNode, node_id: str) -> ClusterError:
    match outcome:
        case changing.NotConnected(connected, lacking):
            return NodeNotConnected(node_id, list(connected), list(lacking))
        case changing.NotFollowing():
            return NodeBehind(node_id, None, None)
        case changing.Behind(lag_bytes, limit_bytes):
            return NodeBehind(node_id, lag_bytes, limit_bytes)
        case changing.NoMember(node_ids):
            return NodeUnknown(node_id, list(node_ids))
        case changing.LastVoter():
            return ChangeRefused(f"{node_id} is the last voter; add another one first, or stop the cluster")
        case changing.AlreadyMember(member):
            known = f"{member.node_id} is a member, as {member.role} at {member.address}"
            return ChangeRefused(f"{known}; use another id, or `quire members move {member.node_id}=HOST:PORT`")
        case changing.AddressTaken(member):
            return ChangeRefused(f"{member.address} is the address of {member.node_id}; give {node_id} its own")
        case changing.FeatureNotInUse(name, lacking):
            who = f"not connected, or of an earlier version: {', '.join(lacking)}" if lacking else "try again soon"
            return ChangeRefused(f"the log does not name the feature {name} yet ({who}); upgrade and start each member")
