"""A node: its data_dir, its replica, its machine, and the write path through them."""

import asyncio
from typing import Any, assert_never

import structlog
from aiohttp import web

from quire.log import Bounds, FrameHeader, LogError, StoredRecord
from quire.replication import Placed, Reason, Replica, Write
from quire.replication.core import Members, actions
from quire.replication.core.changing import Outcome
from quire.replication.forming import Forming
from quire.replication.hello import Who
from quire.replication.snapshots import SNAPSHOT_PATH
from quire.replication.watched_task import watched_task
from quire.sm import (
    EMPTY_DIGEST,
    Applied,
    ApplyFailed,
    CheckFailed,
    MachineError,
    SessionStatus,
    StateMachine,
    check_batch,
    default_initial,
    load_machine,
)

from .config import ServeConfig
from .digests import Difference, Digests
from .errors import (
    ClusterError,
    DiskFullError,
    LimitExceeded,
    MachineFailed,
    NodeStopping,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StateUnavailable,
    WrongIndex,
)
from .genesis import Genesis, check_genesis, make_genesis, read_genesis
from .leadership import Leadership
from .metrics import WriteCounts
from .opened import Opened
from .parts import Parts, put_together
from .pending import FutureWaiter, Pending, WriteReply, waiter_of
from .promotions import Promotions
from .reading import StateAnswer
from .status import node_status
from .upkeep import Upkeep
from .visibility import Visibility

journal = structlog.get_logger(__name__)

OVERLOADED_RETRY_S = 1.0


class Node:
    """One node of a cluster. Everything is called on one event loop."""

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
        self.parts: Parts | None = None
        self.failure: str | None = None
        self.ended = asyncio.Event()
        self.visibility = Visibility()
        self.digests = Digests(self._digest_compared)
        self.promotions = Promotions()
        self.write_counts = WriteCounts()
        self._machine_type = machine
        self._initial = default_initial(machine) if config.initial is None else config.initial
        self._checker: StateMachine = machine(self._initial)
        self._pending = Pending(self.write_counts.frame_durations)
        self._opened: Opened | None = None
        self._forming: Forming | None = None
        self._formation: asyncio.Task[None] | None = None
        self._stopping = False

    # Life

    async def start(self) -> None:
        """Open the data_dir, recover, and run; a node that is not formatted yet begins to form the cluster.

        Raises:
            DataDirRefused, GenesisRefused, LogError: it cannot run here; nothing was changed.
        """
        self._opened = opened = await Opened.open(self.config, self._machine_type)
        try:
            if opened.data_dir.identity is not None:
                await self._run(opened, read_genesis(opened.data_dir.genesis_frame()))
            else:
                self._formation = watched_task(self._form(opened), "formation", self.failed)
        except BaseException:
            await self.stop()
            raise

    async def _form(self, opened: Opened) -> None:
        """Rule 0: wait for a genesis, store it, run."""
        config = self.config
        self._forming = Forming(
            opened.identity,
            config.members[self.node_id],
            list(config.initial_members),
            opened.secret,
            lambda members: make_genesis(members, opened.machine, self._initial, config),
        )
        try:
            frame = await self._forming.run(opened.http, opened.urls)
            check_genesis(read_genesis(frame), opened.machine, config)
            await self._run(opened, await asyncio.to_thread(opened.data_dir.format, self.node_id, frame))
        finally:
            self._forming = None

    async def _run(self, opened: Opened, genesis: Genesis) -> None:
        applier = await opened.restored(genesis)
        self._checker = self._machine_type(genesis.initial)  # Not the applier's: an install replaces that one.
        self.parts = parts = put_together(opened, genesis, applier, self, self._not_leader)
        self.digests.applied(applier.applied_index, applier.digest)
        nominated = self.leadership.run(parts.replica)
        parts.replica.start(opened.http, nominated=nominated)
        parts.upkeep.start()
        journal.info("running", cluster_id=genesis.cluster_id.hex(), bounds=tuple(parts.log.bounds))

    async def promote(self, node_id: str) -> list[int]:
        """Have a node count as a voter with the disk that it has now; return where the records stand that say so.

        Of a node that is a voter under an older disk that disk's vote is removed first; interrupted between the two, it
        is asked again. Empty: it is a voter already.

        Raises:
            LeaderNotServing, ChangeUnderWay, NodeNotConnected, NodeBehind, VotersUnheard, MembersFull, DiskFullError,
            NotLeader, NoLeader: nothing was changed.
            OutcomeUnknown: one of two changes was made, this node lost its leadership, or `request_timeout_ms` passed;
            asking again goes on.
        """
        address, timeout_ms = self.config.members[node_id], self.config.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.promotions.promote(self._require().replica, node_id, address, self._not_leader)
        except TimeoutError:
            raise OutcomeUnknown(f"the change was not committed within {timeout_ms} ms; say it again") from None

    async def hand_over(self) -> None:
        """Before a stop: let another node lead, if this one does. Where nobody can, it stops as a leader."""
        await self.leadership.hand_over()

    async def stop(self) -> None:
        """Stop cleanly: what is acknowledged is durable already; what was appended has an unknown outcome."""
        self._stopping = True
        self.visibility.end()
        if self._formation is not None:
            self._formation.cancel()
            await asyncio.gather(self._formation, return_exceptions=True)
        if self.parts is not None:
            await self.leadership.stop()
            await self.parts.replica.stop()
            self.parts.applying.stop()
            await self.parts.upkeep.stop()
            self._pending.end("this node is stopping")
        if self._opened is not None:
            await self._opened.close()

    def routes(self) -> list[web.RouteDef]:
        """The peers' routes, on the same port as the clients'."""
        return [
            web.get("/peer", self._serve_peer),
            web.get("/peer/stream", self._serve_stream),
            web.get(SNAPSHOT_PATH, self._serve_snapshot),
        ]

    async def _serve_snapshot(self, request: web.Request) -> web.StreamResponse:
        if self.parts is None:
            raise web.HTTPServiceUnavailable
        return await self.parts.upkeep.server.serve(request)

    async def _serve_peer(self, request: web.Request) -> web.StreamResponse:
        if self.parts is not None:
            return await self.parts.replica.network.link_server.serve(request)
        if self._forming is not None:
            return await self._forming.serve(request)
        raise web.HTTPServiceUnavailable

    async def _serve_stream(self, request: web.Request) -> web.StreamResponse:
        if self.parts is None:
            raise web.HTTPServiceUnavailable
        return await self.parts.replica.network.stream_server.serve(request)

    # The write path

    def check(self, commands: list[Any]) -> list[list[Any]]:
        """[place, code, text] of each command that the machine refuses before anything is appended.

        Raises:
            MachineFailed: its check raised something else than Refused.
        """
        try:
            return check_batch(self._checker, commands)
        except CheckFailed as error:
            where = "" if error.place is None else f" on command {error.place}"
            raise MachineFailed(f"check{where}", error.reason) from error

    async def write(self, write: Write, *, applied: bool) -> WriteReply:
        """Write checked records as a part of one frame; answer when they are committed (and, if asked, applied).

        check    the caller has: `check`, before it packed them
        append   the replica hands all that waits to its core, which appends it as one frame: `placed`
        ship     the frame goes from the file to every follower, while
        flush    the leader's own fdatasync runs in its thread
        acks     followers answer when it is durable there
        commit   a majority has it, this leader too: `apply_to`
        apply    frame by frame, to the machine
        reply    this write's share of the results: `Pending.applied`

        Raises:
            NotLeader, NoLeader, NodeStopping, StateUnavailable: not by this node; nothing was written.
            Overloaded, LimitExceeded, WrongIndex, DiskFullError: nothing was written.
            OutcomeUnknown: this node lost its leadership first.
        """
        waiter = FutureWaiter(applied=applied)
        write.owner = waiter
        self.propose(write)
        return await waiter.reply

    def propose(self, write: Write) -> None:
        """Begin a write whose owner, a `Waiter`, is told what becomes of it.

        Raises:
            As `write`, for what is known at once; then the owner is told nothing.
        """
        if (error := self._not_leader()) is not None:
            raise error
        parts = self._require()
        if (stopped := parts.applying.applier.failure) is not None:
            raise StateUnavailable(f"nothing can be answered here: {stopped}")
        limit = parts.genesis.payload_bytes
        if write.size > limit:
            raise LimitExceeded("the frame's payload", write.size, limit)
        parts.replica.propose(write)
        self.write_counts.proposed(write)

    def _require(self) -> Parts:
        if self.parts is None:
            raise StateUnavailable("the cluster is not formed yet")
        return self.parts

    def _not_leader(self) -> ClusterError | None:
        if self._stopping:
            return NodeStopping()
        if self.is_leader:
            return None
        return NotLeader(self.leader_id) if self.leader_id not in (None, self.node_id) else NoLeader()

    @property
    def replica(self) -> Replica:
        """Its replication. Raises StateUnavailable while the cluster is not formed."""
        return self._require().replica

    @property
    def upkeep(self) -> Upkeep:
        """Its snapshots, expiry and installs. Raises StateUnavailable while the cluster is not formed."""
        return self._require().upkeep

    # What the replica tells: `ReplicaOwner`

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied here."""
        return self.parts.applying.applier.applied_index if self.parts else 0

    @property
    def digest(self) -> bytes:
        """The digest at applied_index."""
        return self.parts.applying.applier.digest if self.parts else EMPTY_DIGEST

    def apply_to(self, index: int) -> None:
        """Answer who waits for the commit; apply."""
        self._pending.committed(index)
        if self.parts is not None:
            self.parts.applying.apply_to(index)
        self.visibility.grew()

    def placed(self, placed: Placed) -> None:
        """A frame of writes is in this leader's file."""
        self._pending.placed(placed)
        self.write_counts.placed(placed)

    def rejected(self, write: Write, reason: Reason) -> None:
        """Nothing was written of it."""
        waiter = waiter_of(write)
        match reason:
            case Reason.OVERLOADED:
                waiter.fail(Overloaded(OVERLOADED_RETRY_S))
            case Reason.DISK_FULL:
                waiter.fail(DiskFullError())
            case Reason.WRONG_INDEX:
                waiter.fail(WrongIndex(write.expected_index or 0, self._require().log.tail.index))
            case Reason.NOT_LEADER:
                waiter.fail(self._not_leader() or NoLeader())
            case _:
                assert_never(reason)

    def role_moved(self, role: actions.RoleMoved) -> None:
        """Keep the history; what a lost leadership left uncommitted is unknown."""
        was = self.leadership.moved(role)
        if was.role == "leader" and (role.role != "leader" or role.epoch != was.epoch):
            self.digests.forget()
            reason = role.reason or f"this node leads epoch {was.epoch} no longer"
            self._pending.lost(self._require().replica.commit_index, reason)

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A read barrier was passed, or cannot be."""
        if self.parts is not None:
            self.parts.reading.barrier_passed(read_id, index)

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """What comes next in the leader's log has expired there."""
        self.upkeep.installing.fetch(action)

    def place_snapshot(self, index: int) -> None:
        """In the writer's thread: let the snapshot count that was fetched."""
        self.upkeep.installing.place(index)

    def snapshot_installed(self, index: int) -> None:
        """The log begins behind it: so does the machine."""
        applier = self.upkeep.installed(index)
        self.digests.applied(applier.applied_index, applier.digest)
        self.visibility.grew()

    def members_moved(self, members: Members) -> None:
        """The log names other members."""
        self.leadership.members_moved(members)

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        """What became of one step of a promotion."""
        self.promotions.ended(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """A hand-over came to nothing."""
        self.leadership.transfer_ended(reason)

    def peer_linked(self, node_id: str) -> None:
        """What is sent to a peer arrives."""
        self.leadership.peer_linked(node_id)

    def peer_unlinked(self, node_id: str) -> None:
        """What is sent to a peer is lost."""
        self.leadership.peer_unlinked(node_id)

    def position_told(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """A follower has applied so far, and stands at this digest; what comes late to a former leader is no news."""
        if self.role.role == "leader":
            self.digests.reported(node_id, applied_index, digest)

    def control_told(self, peer: Who, data: bytes) -> None:
        """A peer's control plane said something."""
        self.leadership.control_told(peer, data)

    def alarmed(self, text: str) -> None:
        """Tell the operator, in the journal; `/status` has it too (`status.alarms`)."""
        journal.error("alarm", text=text)

    def halted(self, reason: str) -> None:
        """Stop serving for good; whoever runs the node sees `ended`."""
        if self.failure is None:
            self.failure = reason
            journal.error("halted", reason=reason)
            self._pending.end(reason)
            self.visibility.end()
            self.ended.set()

    def failed(self, error: Exception) -> None:
        """Stop serving for good: this node cannot go on, or this program has a fault, whose traceback is told."""
        match error:
            case LogError() | OSError():
                self.halted(f"{type(error).__name__}: {error}")
            case ClusterError() | MachineError():
                self.halted(str(error))
            case _:
                if self.failure is None:
                    journal.error("a fault of this program", exc_info=error)
                self.halted(f"a fault of this program: {error!r}")

    def applied(self, applied: Applied) -> None:
        """Answer the writes of a frame that was applied."""
        self._pending.applied(applied)
        self.digests.applied(applied.next_index, self.digest)

    def at_border(self, header: FrameHeader) -> None:
        """A frame was applied and answered."""
        if self.parts is not None:
            self.parts.upkeep.at_border(header)

    def _digest_compared(self, node_id: str, difference: Difference | None) -> None:
        if difference is None:
            journal.info("digests are equal again", peer=node_id)
        else:
            self.alarmed(difference.alarm(node_id))

    def apply_failed(self, failure: ApplyFailed) -> None:
        """Nothing can be answered here any more; the log goes on."""
        journal.error("applying stopped", reason=str(failure))
        self._pending.end(str(failure))

    # Reading

    @property
    def role(self) -> actions.RoleMoved:
        """What this node is, as its core told last."""
        return self.leadership.role

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may serve. Rule 11 is looked at first, where this process stood still."""
        if self.leadership.role.role != "leader" or self.failure is not None:
            return False
        if self.parts is not None:
            self.parts.replica.catch_up()
        role = self.leadership.role
        return role.role == "leader" and role.serving

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return self.role.leader_id

    @property
    def visible_bounds(self) -> Bounds:
        """[lowest_index, highest_index) of what may be read here."""
        return self.parts.reading.bounds if self.parts else Bounds(0, 0)

    def read(self, index: int) -> StoredRecord:
        """A committed record; raises as `Reading.read`."""
        return self._require().reading.read(index)

    def read_frames(self, from_index: int, max_bytes: int) -> tuple[bytes, int]:
        """Committed raw frames; raises as `Reading.read_frames`."""
        return self._require().reading.read_frames(from_index, max_bytes)

    @property
    def session_window(self) -> int:
        """How many commands of a session may be under way, and be tried again."""
        return self._require().applying.applier.sessions.session_window

    async def session(self, session: int) -> SessionStatus | None:
        """Where a session stands, linearizable; None of one that is not open. Raises as `Reading.query`."""
        parts = self._require()
        if (error := self._not_leader()) is not None:
            raise error
        try:
            await parts.reading.linearize()
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        return parts.applying.applier.sessions.find(session)

    async def query(self, request: Any, consistency: str, max_lag: int | None) -> StateAnswer:
        """The machine's answer, None asking for its whole state; raises as `Reading.query`."""
        return await self._require().reading.query(request, consistency, max_lag)

    def status(self) -> dict[str, Any]:
        """What this node knows of itself, and a leader of the others."""
        return node_status(self)

    def forming_failures(self) -> dict[str, str]:
        """Why an unformatted node does not reach others, by node id."""
        return dict(self._forming.failures) if self._forming else {}

    def _awaited(self) -> str:
        failures = self.forming_failures()
        awaited = self._forming.awaited() if self._forming else []
        return ", ".join(f"{node} ({failures[node]})" if node in failures else node for node in awaited)

    def not_ready_reasons(self) -> list[str]:
        """Why this node should get no traffic; empty if it should."""
        if self.failure is not None:
            return [f"the node has halted: {self.failure}"]
        if self.parts is None:
            return [f"the cluster is not formed yet; waiting for {self._awaited() or 'its genesis'}"]
        reasons: list[str] = []
        if (failure := self.parts.applying.applier.failure) is not None:
            reasons.append(f"applying has stopped: {failure}")
        if self.leader_id is None:
            reasons.append("no leader is heard")
        elif self.leader_id == self.node_id and not self.is_leader:
            reasons.append("this leader's first record is not committed yet")
        elif self.leader_id != self.node_id and not self.parts.replica.is_matched:
            reasons.append(f"the stream from {self.leader_id} is not open yet")
        return reasons
