"""The leader as one node knows it, now and before; the control plane's nominations; and handing over.

It touches the replica (status, nominations, transfers, control messages) and the node's health, and neither the log nor
the machine.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from quire.log import wall_clock
from quire.replication import Members, Replica
from quire.replication.core import NodeRole, actions, events
from quire.replication.core.messages import ControlMessage
from quire.replication.net.hello import PeerInfo

from ..control import Control, ControlTimes
from ..errors import ClusterError, NodeStopping, NoLeader, NoMajority, NotLeader, StateUnavailable, TransferFailed
from .applying import Visibility
from .health import Health
from .majority import no_majority
from .writing import Waiter

HISTORY_LENGTH = 100
LEADERLESS_TIMEOUTS = 3  # Voters that are being started, or dialled again, are not called missing before.
TRANSFER_TIMEOUTS = 4  # A transfer takes at most three election timeouts; the new leader is heard soon after.

journal = structlog.get_logger(__name__)


class Change(NamedTuple):
    """A change of leader or epoch as this node saw it, `at` microseconds since the Unix epoch."""

    at: int
    epoch: int
    leader: str | None
    role: str
    reason: str


class Leadership:
    """One node's view of leadership. `role` is the last one that the core reported.

    Implements `RoleEvents` and `PeerEvents` of `quire.replication.ports`.
    """

    def __init__(
        self,
        node_id: str,
        heartbeat_s: float,
        election_timeout_s: float,
        health: Health,
        linked: Callable[[], None] = lambda: None,
    ) -> None:
        """`linked` is called when a link came up, and when the members changed."""
        self.node_id = node_id
        self._health = health
        self._linked = linked
        self._lost: Callable[[int, str], None] = lambda *_: None
        self._on_change: list[Callable[[actions.RoleChanged], None]] = []
        self._is_leaving = False
        self._heard = Visibility()
        self.role = actions.RoleChanged(NodeRole.FORMING, 0, None, False, "")
        self.history: deque[Change] = deque(maxlen=HISTORY_LENGTH)
        self.changes = 0
        self.refused_nominations = 0
        """Messages to the control plane that were dropped."""
        self._led_by: str | None = None
        self._leaderless_from = 0.0  # By the loop's clock; counts from `run` on, if no leader is heard.
        self._heartbeat_s = heartbeat_s
        self._election_timeout_s = election_timeout_s
        self._replica: Replica[Waiter] | None = None
        self._control: Control | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._transfer: asyncio.Future[str] | None = None
        self._stopping = False
        self.drained = False
        """Whether an operator drains this node."""

    # Life

    def run(self, replica: Replica[Waiter], lost: Callable[[int, str], None]) -> bool:
        """Start the control plane if this node is a voter. True: it is the only one and needs no nomination.

        `lost` gets commit_index and a reason when this node stops leading.
        """
        self._replica, self._lost = replica, lost
        self._leaderless_from = asyncio.get_running_loop().time()
        members = replica.core.status().members
        self._group(replica, members)
        return self._is_alone(members)

    def members_changed(self, members: Members) -> None:
        """The members changed: from now on the control plane runs among the new voters (rule 13)."""
        if self._replica is None:
            return  # During recovery.
        had_control = self._control is not None
        self._group(self._replica, members)
        if self._control is not None and not had_control:
            self._nominate(False)  # As the only voter it was nominated without a control plane.
        journal.info("members", voters=[voter.node_id for voter in members.voters()])
        self._linked()

    def _is_alone(self, members: Members) -> bool:
        return self._is_voter(members) and len(members.voters()) == 1

    def _is_voter(self, members: Members) -> bool:
        return self._replica is not None and members.is_voter(self.node_id, self._replica.core.status().me.disk_id)

    def _group(self, replica: Replica[Waiter], members: Members) -> None:
        others = [voter.node_id for voter in members.voters() if voter.node_id != self.node_id]
        if not others or not self._is_voter(members):
            control, self._control = self._control, None
            if control is not None:
                ending = asyncio.create_task(self._end(control), name="control plane's end")
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        elif self._control is not None:
            self._control.set_other_voters(others)
        else:
            times = ControlTimes.of_heartbeat(self._heartbeat_s)
            self._control = Control(
                self.node_id,
                others,
                times,
                lambda node_id, data: replica.network.send(node_id, ControlMessage(data)),
                self._nominate,
                lambda: replica.core.disk_answers,
                self._control_refused,
            )
            for node_id in replica.core.status().links:
                self._control.peer_linked(node_id)
            self._control.start()

    def _control_refused(self) -> None:
        self.refused_nominations += 1

    async def _end(self, control: Control) -> None:
        await control.stop()
        if self._replica is not None and self._control is None:
            self._nominate(self._is_alone(self._replica.core.status().members))

    async def stop(self) -> None:
        """Leave the control plane."""
        control, self._control = self._control, None
        if control is not None:
            await control.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _nominate(self, nominated: bool) -> None:
        journal.info("nominated" if nominated else "nominated no longer")
        if self._replica is not None:
            self._replica.driver.step(events.Nominated(nominated))

    @property
    def nominated(self) -> bool:
        """Whether the control plane nominates this node now."""
        return self._control is not None and self._control.nominated

    # Whether this node may answer

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may serve. If this process was frozen, rule 11 is checked first."""
        if self.role.role is not NodeRole.LEADER or self._health.failure is not None:
            return False
        if self._replica is not None:
            self._replica.tick_if_frozen()
        return self.role.role is NodeRole.LEADER and self.role.serving

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return self.role.leader_id

    @property
    def leading_from(self) -> int | None:
        """The index of the first record of this node's leadership; None if it does not lead."""
        leader = None if self._replica is None else self._replica.core.status().leader
        return None if leader is None else leader.start_index

    @property
    def other_code(self) -> str:
        """Why this node's results are perhaps not what a majority computes, in one sentence; empty if they are."""
        return "" if self._replica is None else self._replica.core.other_code

    def not_leader(self) -> ClusterError | None:
        """The error if this node may not answer as the leader; None if it may."""
        if self._is_leaving:
            return NodeStopping()
        if self.is_leader:
            return None
        return NotLeader(self.leader_id) if self.leader_id not in (None, self.node_id) else self.no_leader()

    def no_leader(self) -> NoLeader:
        """The refusal of a node that hears no leader, or leads and does not serve yet.

        It tells that the voters are no majority only once no leader was heard for LEADERLESS_TIMEOUTS: before, a voter
        that is not reached may still be starting, and a node that has just started has not dialled them all.
        """
        if self.leader_id is None and self._replica is not None:
            leaderless_s = asyncio.get_running_loop().time() - self._leaderless_from
            is_patient = leaderless_s < LEADERLESS_TIMEOUTS * self._election_timeout_s
            if not is_patient and (why := no_majority(self._replica.core.status())):
                return NoMajority(why, leaderless_s)
        return NoLeader()

    @property
    def serving_leader(self) -> str | None:
        """The leader that this node hears; itself once it serves."""
        return None if self.leader_id == self.node_id and not self.is_leader else self.leader_id

    async def heard_above(self, epoch: int, wait_s: float) -> None:
        """Return once there is a `serving_leader` of a later epoch, or after `wait_s`. Raises NodeStopping."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while self.role.epoch <= epoch or self.serving_leader is None:
            if not await self._heard.next_growth(deadline - loop.time()):
                break
        if self._is_leaving:
            raise NodeStopping

    def leave(self) -> None:
        """This node stops: from now on it answers nothing as the leader."""
        self._is_leaving = True
        self._heard.end()

    # The control plane's links

    def peer_linked(self, node_id: str) -> None:
        """Messages to a peer arrive from now on."""
        if self._control is not None:
            self._control.peer_linked(node_id)
        self._linked()

    def peer_unlinked(self, node_id: str) -> None:
        """Messages to a peer are lost from now on."""
        if self._control is not None:
            self._control.peer_unlinked(node_id)
        if self._stopping and not self._successors:
            self.transfer_ended("no other voter is left")

    @property
    def _successors(self) -> list[str]:
        """The voters that could lead instead of this node: the linked ones."""
        if self._replica is None:
            return []
        status = self._replica.core.status()
        return [voter.node_id for voter in status.members.voters() if status.is_linked(voter)]

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        """Pass on a message of a voter's control plane."""
        if self._control is not None and self._replica is not None:
            if self._replica.core.status().members.is_voter(peer.node_id, peer.disk_id):
                self._control.receive(peer.node_id, data)

    # Events of the core

    def on_change(self, told: Callable[[actions.RoleChanged], None]) -> None:
        """Have `told` called with each change that the core reports."""
        self._on_change.append(told)

    def role_changed(self, role: actions.RoleChanged) -> None:
        """Record the change; after a lost leadership, uncommitted writes get an unknown outcome."""
        was, self.role = self.role, role
        if was.leader_id is not None:
            self._leaderless_from = asyncio.get_running_loop().time()
        self._heard.grew()
        if was.leader_id != role.leader_id or was.epoch != role.epoch:
            if role.leader_id not in (None, self._led_by):
                self._led_by, self.changes = role.leader_id, self.changes + 1
            self.history.append(Change(wall_clock(), role.epoch, role.leader_id, role.role, role.reason))
            journal.info("role", role=role.role, epoch=role.epoch, leader=role.leader_id, reason=role.reason)
        if role.leader_id not in (None, self.node_id) and self._transfer and not self._transfer.done():
            self._transfer.set_result(str(role.leader_id))
        elif role.role is NodeRole.LEADER and was.role is not NodeRole.LEADER:
            self.transfer_ended("this node was elected again")
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            if self._replica is not None:
                reason = role.reason or f"this node no longer leads epoch {was.epoch}"
                self._lost(self._replica.core.commit_index, reason)
        for told in self._on_change:
            told(role)

    def transfer_ended(self, reason: str) -> None:
        """A transfer failed; this node keeps leading."""
        if self._transfer is not None and not self._transfer.done():
            self._transfer.set_exception(TransferFailed(reason))

    # Transfer

    def drain(self, *, drained: bool) -> None:
        """Let others lead as long as one can, or no longer. A restart ends it."""
        if self._replica is None:
            raise StateUnavailable("the cluster is not formed yet")
        self.drained = drained
        self._replica.driver.step(events.Drained(drained))

    async def transfer(self, target: str | None) -> str:
        """Transfer leadership to a voter, or to the most up-to-date one; return the new leader.

        Writes that arrive during the transfer wait. If it fails, this leader appends them; otherwise they are rejected
        as not written. No write gets an unknown outcome.

        Raises:
            TransferFailed: this node keeps leading, or does not lead, or no other leader was heard.
        """
        if self._replica is None or self._transfer is not None:
            raise TransferFailed("another is under way" if self._transfer else "the cluster is not formed yet")
        self._transfer = asyncio.get_running_loop().create_future()
        try:
            self._replica.driver.transfer(target)
            async with asyncio.timeout(TRANSFER_TIMEOUTS * self._election_timeout_s):
                return await self._transfer
        except TimeoutError:
            raise TransferFailed("no other leader was heard") from None
        finally:
            self._transfer = None

    async def hand_over(self) -> None:
        """Before a stop: hand over if another voter is linked. If all stop at once, the last one does not wait."""
        self._stopping = True
        if self.role.role is NodeRole.LEADER and self._successors:
            try:
                await self.transfer(None)
            except TransferFailed as error:
                journal.warning("stopping as the leader", reason=error.reason)

    def document(self) -> dict[str, Any]:
        """For `/status`: whether this node is nominated, and the changes of leader, newest last."""
        return {
            "nominated": self.nominated,
            "leaders": [change._asdict() for change in self.history],
        }
