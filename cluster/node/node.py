"""A node: its lifecycle, the write path, and the events of its components."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import structlog
from aiohttp import web

from quire.log import Bounds, FrameHeader, LogError
from quire.replication import Members, Placed, Reason, Write
from quire.replication.core import NodeRole, actions
from quire.replication.core.changing import Outcome
from quire.replication.net.forming import Forming
from quire.replication.net.hello import PATHS, PeerInfo
from quire.replication.replica import watched_task
from quire.sm import (
    EMPTY_DIGEST,
    Applied,
    ApplyFailed,
    CheckFailed,
    MachineError,
    Sessions,
    SessionStatus,
    StateMachine,
    StateRoom,
    check_batch,
    default_initial,
    is_quick,
    load_machine,
    state_room,
)

from ..config.serve import ServeConfig
from ..data_dir.genesis import Genesis, read_genesis
from ..errors import (
    CheckFailedError,
    ClusterError,
    DiskFullError,
    LimitExceeded,
    NodeStopping,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ResourcesExhaustedError,
    SessionRefused,
    SessionUnknown,
    StateUnavailable,
    WrongIndex,
)
from .awaiting import log_waits
from .components import Components, NodeResources
from .digests import Difference, Digests
from .fitness import LOOK_S, log_levels
from .leadership import Leadership
from .membership import Promotions
from .pending import FutureWaiter, Pending, Visibility, Waiter, WriteCounts, WriteReply
from .reading import late_read
from .status import node_status, not_ready_reasons, standing_alarms

T = TypeVar("T")

journal = structlog.get_logger(__name__)

OVERLOADED_RETRY_S = 1.0
APPLY_BEHIND_S = 2.0
"""A leader refuses writes while a record has been known to be committed for this long and is not applied."""
CHECK_S = 0.01  # A machine that is not quick checks for this long before the loop gets a turn,
CHECKED_AT_ONCE = 64  # and this many commands at once, if it has a `check_batch`.


class Node:
    """One node of a cluster. It is the `Owner` of its replica and the `ApplyEvents` of its machine.

    Every method but `place_snapshot` is called on one event loop.
    """

    def __init__(self, config: ServeConfig) -> None:
        """Load the machine; nothing is opened yet.

        Raises:
            MachineError: the machine cannot be loaded, or does not take the initial value.
        """
        machine = load_machine(config.machine)
        self.config = config
        self.node_id = config.node
        self.machine_name = machine.name
        self.leadership = Leadership(self.node_id, config.heartbeat_ms / 1000, config.election_timeout_ms / 1000)
        self.formed: Components | None = None
        """What the node consists of; None while the cluster is not formed."""
        self.forming: Forming | None = None
        """The formation of the cluster, while it is in progress."""
        self.failure: str | None = None
        """Why the node has halted, if it has."""
        self.stranded = ""  # Why it has halted but its process stays: its descriptors may be all that holds its files.
        self.ended = asyncio.Event()
        """Set when the node has halted."""
        self.stopping = False
        self.visibility = Visibility()
        self.digests = Digests(self._digest_compared)
        self.promotions = Promotions()
        self.write_counts = WriteCounts()
        self._pending = Pending(self.write_counts.frame_durations)
        self._machine_type = machine
        self._initial = default_initial(machine) if config.initial is None else config.initial
        self._checker: StateMachine = machine(self._initial)
        self.resources: NodeResources | None = None
        self._formation: asyncio.Task[None] | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._standing_alarms: list[str] = []

    # Life

    async def start(self) -> None:
        """Open the data_dir, recover, and run; an unformatted node begins to form the cluster instead.

        Raises:
            DataDirRefused, GenesisRefused, LogError: it cannot run here; nothing was changed.
        """
        self.resources = resources = await NodeResources.open(self.config, self._machine_type)
        self._log_standing_alarms()
        try:
            if resources.data_dir.identity is not None:
                await self._run(resources, read_genesis(resources.data_dir.genesis_frame()))
            else:
                self.forming = resources.forming(self._initial)
                self._formation = watched_task(self._form(resources, self.forming), "formation", self.failed)
        except BaseException:
            await self.stop()
            raise
        clock = asyncio.get_running_loop().time
        waits = log_waits(self, self.config.election_timeout_ms / 1000, self._look_s, clock)
        self._watches.append(watched_task(waits, "waits", self.failed))

    @property
    def _look_s(self) -> float:
        return min(LOOK_S, self.config.election_timeout_ms / 1000)

    async def _form(self, resources: NodeResources, forming: Forming) -> None:
        """Rule 0: wait for a genesis, store it, run."""
        try:
            await self._run(resources, await resources.format(forming))
        finally:
            self.forming = None

    async def _run(self, resources: NodeResources, genesis: Genesis) -> None:
        applier = await resources.restored(genesis)
        self._checker = self._machine_type(genesis.initial)  # Not the applier's: an install replaces that one.
        components = Components.build(resources, genesis, applier, self)
        self.formed = components  # Before any of them starts: they send events at once.
        self.digests.applied(self.applied_index, self.digest)
        if applier.failure is not None:
            self.apply_failed(applier.failure)
        nominated = self.leadership.run(components.replica)
        components.replica.start(resources.http, nominated=nominated)
        components.compaction.start()
        levels = log_levels(components.replica, self.config.data_dir, self._look_s)
        self._watches.append(watched_task(levels, "fitness", self.failed))
        self._log_standing_alarms()
        journal.info("running", cluster_id=genesis.cluster_id.hex(), bounds=tuple(components.log.bounds))

    async def hand_over(self) -> None:
        """Before a stop: hand over to another node if this one leads and one can."""
        await self.leadership.hand_over()

    async def stop(self) -> None:
        """Stop cleanly. Acknowledged writes are durable already; appended, unanswered ones get an unknown outcome."""
        self.stopping = True
        self.visibility.end()
        for task in (self._formation, *self._watches):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.formed is not None:
            await self.leadership.stop()
            await self.formed.replica.stop()
            self.formed.applying.stop()
            await self.formed.compaction.stop()
            self._pending.end("this node is stopping")
        if self.resources is not None:
            await self.resources.close()

    def routes(self) -> list[web.RouteDef]:
        """The routes for peers, on the same port as the clients'."""
        return [
            web.get(PATHS["peer"], self._serve_peer),
            web.get(PATHS["stream"], self._serve_stream),
            web.get(PATHS["snapshot"], self._serve_snapshot),
        ]

    async def _serve_snapshot(self, request: web.Request) -> web.StreamResponse:
        if self.formed is None:
            raise web.HTTPServiceUnavailable
        return await self.formed.compaction.server.serve(request)

    async def _serve_peer(self, request: web.Request) -> web.StreamResponse:
        if self.formed is not None:
            return await self.formed.replica.network.link_server.serve(request)
        if self.forming is not None:
            return await self.forming.serve(request)
        raise web.HTTPServiceUnavailable

    async def _serve_stream(self, request: web.Request) -> web.StreamResponse:
        if self.formed is None:
            raise web.HTTPServiceUnavailable
        return await self.formed.replica.network.stream_server.serve(request)

    # The write path

    async def check(self, commands: list[Any]) -> list[list[Any]]:
        """[position, code, text] of each command that the machine refuses before anything is appended.

        The loop gets its turns in between, unless the machine is quick.

        Raises:
            CheckFailedError: its check raised an exception other than Refused.
        """
        quick, began = is_quick(self._checker), time.monotonic()
        most = len(commands) if quick else CHECKED_AT_ONCE if hasattr(self._checker, "check_batch") else 1
        refused: list[list[Any]] = []
        for first in range(0, len(commands), most):
            if time.monotonic() - began > CHECK_S:
                await asyncio.sleep(0)
                began = time.monotonic()
            try:
                found = check_batch(self._checker, commands[first : first + most])
            except CheckFailed as error:
                where = "" if error.position is None else f" on command {first + error.position}"
                raise CheckFailedError(f"check{where}", error.reason) from error
            refused += ([first + position, code, text] for position, code, text in found)
        return refused

    async def write(self, write: Write[FutureWaiter]) -> WriteReply:
        """Write checked records as part of one frame; return once they are committed (or applied: the waiter says).

        check    by the caller, with `check`, before it packs the records
        append   the replica passes all waiting writes to its core, which appends them as one frame: `placed`
        ship     the frame is sent from the file to every follower, while
        flush    the leader's own fdatasync runs in its thread
        acks     followers answer once it is durable there
        commit   a majority, including this leader, has it: `apply_to`
        apply    frame by frame, to the machine
        reply    this write's share of the results: `applied`

        Raises:
            NotLeader, NoLeader, NodeStopping, StateUnavailable: this node cannot do it; nothing was written.
            Overloaded, LimitExceeded, WrongIndex, DiskFullError: nothing was written.
            OutcomeUnknown: this node lost its leadership first.
        """
        self.propose(write)
        return await write.owner.reply

    def propose(self, write: Write[Waiter]) -> None:
        """Begin a write; its waiter gets the outcome.

        Raises:
            As `write`, for errors that are known at once; the waiter then gets nothing.
        """
        if (error := self.not_leader()) is not None:
            raise error
        components = self.components
        if (stopped := components.applying.applier.failure) is not None:
            raise StateUnavailable(f"nothing can be answered here: {stopped}")
        if (refusal := self.refusal) is not None:
            raise refusal
        if write.size > components.payload_limit:
            raise LimitExceeded("the frame's payload", write.size, components.payload_limit)
        components.replica.propose(write)
        self.write_counts.proposed(write)

    @property
    def refusal(self) -> ClusterError | None:
        """Why writes are refused now: the machine is behind. None if it is not.

        While it still applies what was committed before it led, this is no overload: fewer writes would not help.
        """
        if not self.is_behind:
            return None
        if self._unapplied_before_it_led:
            return StateUnavailable(self.backlog)
        return Overloaded(OVERLOADED_RETRY_S, self.backlog)

    @property
    def backlog(self) -> str:
        """A sentence about the records that wait to be applied here; empty if there are none."""
        if self.formed is None or not (count := self.formed.applying.unapplied):
            return ""
        if (before := self._unapplied_before_it_led) > 0:
            return f"this node is still applying {before:,} records that were committed before it led"
        waited_s = self.formed.applying.behind_s
        return f"this node is still applying {count:,} committed records; the first has waited for {waited_s:.1f} s"

    @property
    def _unapplied_before_it_led(self) -> int:
        """How many records up to its own first one this leader has not applied; 0 if this node does not lead."""
        led_from = None if self.formed is None else self.formed.replica.leading_from
        return 0 if led_from is None else max(0, led_from + 1 - self.applied_index)

    @property
    def is_behind(self) -> bool:
        """Whether committed records have waited for so long to be applied that writes are refused."""
        return self.formed is not None and self.formed.applying.behind_s > APPLY_BEHIND_S

    async def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with its current disk; return the indices of the membership records.

        A node that is a voter with an older disk loses that disk's vote first; if the promotion is interrupted between
        the two records, repeat it. Empty: the node is already a voter.

        Raises:
            LeaderNotServing, ChangeUnderWay, NodeNotConnected, NodeBehind, VotersUnheard, MembersFull, DiskFullError,
            NotLeader, NoLeader: nothing was changed.
            OutcomeUnknown: one of two changes was made, this node lost its leadership, or `request_timeout_ms` passed;
            repeat the request.
        """
        address, timeout_ms = self.config.members[node_id], self.config.request_timeout_ms
        replica = self.components.replica
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.promotions.promote(replica, node_id, address, self.not_leader)
        except TimeoutError:
            raise OutcomeUnknown(f"the change was not committed within {timeout_ms} ms; repeat the request") from None

    # State

    @property
    def components(self) -> Components:
        """What the node consists of. Raises StateUnavailable while the cluster is not formed."""
        if self.formed is None:
            raise StateUnavailable("the cluster is not formed yet")
        return self.formed

    @property
    def role(self) -> actions.RoleChanged:
        """The role that the core reported last."""
        return self.leadership.role

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may serve. If this process was frozen, rule 11 is checked first."""
        if self.leadership.role.role is not NodeRole.LEADER or self.failure is not None:
            return False
        if self.formed is not None:
            self.formed.replica.tick_if_frozen()
        role = self.leadership.role
        return role.role is NodeRole.LEADER and role.serving

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return self.role.leader_id

    def not_leader(self) -> ClusterError | None:
        """The error if this node may not answer as the leader; None if it may."""
        if self.stopping:
            return NodeStopping()
        if self.is_leader:
            return None
        return NotLeader(self.leader_id) if self.leader_id not in (None, self.node_id) else NoLeader()

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied here."""
        return self.formed.applying.applier.applied_index if self.formed else 0

    @property
    def digest(self) -> bytes:
        """The digest at `applied_index`."""
        return self.formed.applying.applier.digest if self.formed else EMPTY_DIGEST

    @property
    def state_room(self) -> StateRoom:
        """How full the machine's state is."""
        formed = self.formed
        return state_room(formed.applying.applier.machine, formed.genesis.limits) if formed else StateRoom(0, 0)

    @property
    def features(self) -> frozenset[str]:
        """The features in use at `applied_index`."""
        return self.formed.applying.applier.features if self.formed else frozenset()

    @property
    def machine_failed(self) -> bool:
        """Whether this node's machine has stopped applying."""
        return self.machine_failure is not None

    @property
    def machine_failure(self) -> ApplyFailed | None:
        """Why it has stopped applying, as the one sentence for that failure; None while it applies."""
        return self.formed.applying.applier.failure if self.formed else None

    @property
    def visible_bounds(self) -> Bounds:
        """[lowest_index, highest_index) of the records that may be read here."""
        return self.formed.reading.bounds if self.formed else Bounds(0, 0)

    @property
    def session_window(self) -> int:
        """How many commands of a session may be in flight and can be retried."""
        return self.components.applying.applier.sessions.session_window

    async def session(self, session: int) -> SessionStatus | None:
        """The status of a session, linearizable; None if it is not open.

        Raises:
            NotLeader, NoLeader: this node does not lead.
            StateUnavailable: this node cannot answer, or no majority confirmed its leadership in `request_timeout_ms`.
        """
        return await self._of_sessions(lambda table: table.find(session))

    async def require_session(self, session: int) -> None:
        """Return if the session is open. Before it is refused, it is looked up linearizably, since it may be new.

        Raises:
            SessionUnknown, SessionRefused: it is not open, or was fenced.
            NotLeader, NoLeader, StateUnavailable: as `session`.
        """
        if (error := self.not_leader()) is not None:
            raise error
        sessions = self.components.applying.applier.sessions
        # In the middle of a frame this may find a session that the frame closes; its commands are refused at apply.
        if sessions.find(session) is not None or await self.session(session) is not None:
            return
        refusal = self.components.applying.applier.sessions.refusal(session)
        if refusal.code == "SESSION_FENCED":
            raise SessionRefused(refusal.code, refusal.text, [])
        raise SessionUnknown(session)

    async def sessions(self, after: int, most: int, prefix: str) -> tuple[list[tuple[SessionStatus, int]], int | None]:
        """A page of the open sessions, linearizable; as `Sessions.page`. Raises as `session`."""
        return await self._of_sessions(lambda table: table.page(after, most, prefix))

    async def _of_sessions(self, read: Callable[[Sessions], T]) -> T:
        components = self.components
        if (error := self.not_leader()) is not None:
            raise error
        timeout_ms = self.config.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await components.reading.linearize()
                return await components.applying.at_boundary(lambda applier: read(applier.sessions), on_loop=True)
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        except TimeoutError:
            raise StateUnavailable(late_read("linearizable", timeout_ms, self.backlog)) from None

    def status(self) -> dict[str, Any]:
        """The document of `GET /status`."""
        return node_status(self)

    def not_ready_reasons(self) -> list[str]:
        """Why this node should get no traffic; empty if it should."""
        return not_ready_reasons(self)

    # Owner: the replica's events

    def placed(self, placed: Placed[Waiter]) -> None:
        """A frame of writes is in this leader's file."""
        self._pending.placed(placed)
        self.write_counts.placed(placed)

    def rejected(self, write: Write[Waiter], reason: Reason) -> None:
        """No part of the write was appended."""
        waiter = write.owner
        match reason:
            case Reason.OVERLOADED:
                waiter.fail(Overloaded(OVERLOADED_RETRY_S))
            case Reason.DISK_FULL:
                waiter.fail(DiskFullError())
            case Reason.RESOURCES_EXHAUSTED:
                waiter.fail(ResourcesExhaustedError())
            case Reason.WRONG_INDEX:
                waiter.fail(WrongIndex(write.expected_index or 0, self.components.log.tail.index))
            case Reason.NOT_LEADER:
                waiter.fail(self.not_leader() or NoLeader())
            case _:
                assert_never(reason)

    def committed(self, index: int) -> None:
        """Answer the writes that wait for the commit."""
        self._pending.committed(index)

    def apply_to(self, index: int) -> None:
        """Apply."""
        if self.formed:
            self.formed.applying.apply_to(index)

    def grew(self) -> None:
        """Wake the readers that wait for records."""
        self.visibility.grew()

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A read barrier was passed, or cannot be passed."""
        if self.formed is not None:
            self.formed.reading.barrier_passed(read_id, index)

    def role_changed(self, role: actions.RoleChanged) -> None:
        """Record the change; after a lost leadership, uncommitted writes get an unknown outcome."""
        was = self.leadership.moved(role)
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            reason = role.reason or f"this node no longer leads epoch {was.epoch}"
            self._pending.lost(self.components.replica.commit_index, reason)

    def members_changed(self, members: Members) -> None:
        """The members in the log changed."""
        self.leadership.members_changed(members)

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        """One step of a promotion ended."""
        self.promotions.ended(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """A transfer failed."""
        self.leadership.transfer_ended(reason)

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """The next record that this follower needs has expired at the leader."""
        self.components.compaction.installing.fetch(action)

    def place_snapshot(self, index: int) -> None:
        """In the writer's thread: make the fetched snapshot a valid one."""
        self.components.compaction.installing.place(index)

    def snapshot_installed(self, index: int) -> None:
        """The log now begins at the snapshot: let the machine continue from there, too."""
        applier = self.components.compaction.installed(index)
        self._pending.resume()
        if applier.failure is not None:
            self.apply_failed(applier.failure)
        self.digests.installed(applier.applied_index, applier.digest)
        self.visibility.grew()

    def peer_linked(self, node_id: str) -> None:
        """Messages to a peer arrive from now on."""
        self.leadership.peer_linked(node_id)
        self._log_standing_alarms()

    def _log_standing_alarms(self) -> None:
        known, self._standing_alarms = self._standing_alarms, standing_alarms(self)
        for text in self._standing_alarms:
            if text not in known:
                self.alarmed(text)

    def peer_unlinked(self, node_id: str) -> None:
        """Messages to a peer are lost from now on."""
        self.leadership.peer_unlinked(node_id)

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        """A message of a peer's control plane arrived."""
        self.leadership.control_received(peer, data)

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """A peer has applied up to here, with this digest."""
        self.digests.reported(node_id, applied_index, digest)

    def alarmed(self, text: str) -> None:
        """Log an alarm for the operator; `/status` shows it, too (`status.alarms`)."""
        journal.error("alarm", text=text)

    def halted(self, reason: str) -> None:
        """Stop serving permanently. Set `ended` for the process that runs the node, unless its files are missing."""
        if self.failure is None:
            self.stranded = self.formed.log.watch.judge_failure() if self.formed else ""
            self.failure = reason = self.stranded or reason
            journal.error("halted", reason=reason)
            self._pending.end(reason)
            self.visibility.end()
            if not self.stranded:
                self.ended.set()

    def failed(self, error: Exception) -> None:
        """Stop serving permanently: the node cannot continue, or this program has a bug, whose traceback is logged."""
        match error:
            case LogError() | OSError():
                self.halted(f"{type(error).__name__}: {error}")
            case ClusterError() | MachineError():
                self.halted(str(error))
            case _:
                if self.failure is None:
                    journal.error("a fault of this program", exc_info=error)
                self.halted(f"a fault of this program: {error!r}")

    # ApplyEvents: the machine's events

    def applied(self, applied: Applied) -> None:
        """Answer the writes of an applied frame."""
        self._pending.applied(applied)
        self.digests.applied(applied.next_index, self.digest)

    def at_boundary(self, header: FrameHeader) -> None:
        """A frame was applied and answered."""
        if self.formed is not None:
            self.formed.compaction.snapshotting.at_boundary(header)

    def apply_failed(self, failure: ApplyFailed) -> None:
        """Applying has failed: refuse everything from now on; the log continues."""
        journal.error("the machine has failed", reason=str(failure))
        self._pending.end(str(failure))

    def _digest_compared(self, node_id: str, difference: Difference | None) -> None:
        if difference is None:
            journal.info("digests are equal again", peer=node_id)
        else:
            self.alarmed(difference.alarm(node_id))
