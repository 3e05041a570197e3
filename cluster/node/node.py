"""A node: its life, the write path through its parts, and what the API reads of it."""

import asyncio
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from quire.log import Bounds, StoredRecord
from quire.replication import Replica, Write
from quire.replication.core import actions
from quire.replication.net.hello import PEER_PATH, SNAPSHOT_PATH, STREAM_PATH
from quire.sm import ApplyFailed, CheckFailed, SessionStatus, StateMachine, check_batch, default_initial, load_machine

from ..compaction.compaction import Upkeep
from ..config.serve import ServeConfig
from ..data_dir.genesis import Genesis, read_genesis
from ..errors import LimitExceeded, MachineFailed, OutcomeUnknown, StateUnavailable
from .digests import Digests
from .formation import Formation
from .hearing import Hearing
from .leadership import Leadership
from .membership import Promotions
from .metrics import WriteCounts
from .opened import Opened
from .parts import Parts, put_together
from .pending import FutureWaiter, WriteReply
from .reading import StateAnswer
from .status import node_status, not_ready_reasons
from .visibility import Visibility

journal = structlog.get_logger(__name__)


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
        self.hearing = Hearing(self.leadership)
        self._machine_type = machine
        self._initial = default_initial(machine) if config.initial is None else config.initial
        self._checker: StateMachine = machine(self._initial)
        self._opened: Opened | None = None
        self._formation: Formation | None = None

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
                run = partial(self._run, opened)
                self._formation = Formation(opened, self._initial, run, self.hearing.failed)
        except BaseException:
            await self.stop()
            raise

    async def _run(self, opened: Opened, genesis: Genesis) -> None:
        applier = await opened.restored(genesis)
        self._checker = self._machine_type(genesis.initial)  # Not the applier's: an install replaces that one.
        parts = put_together(opened, genesis, applier, self.hearing, self.hearing.not_leader)
        self.hearing.attach(parts)  # Before anything of it begins: it tells at once.
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
                return await self.promotions.promote(self.replica, node_id, address, self.hearing.not_leader)
        except TimeoutError:
            raise OutcomeUnknown(f"the change was not committed within {timeout_ms} ms; say it again") from None

    async def hand_over(self) -> None:
        """Before a stop: let another node lead, if this one does. Where nobody can, it stops as a leader."""
        await self.leadership.hand_over()

    async def stop(self) -> None:
        """Stop cleanly: what is acknowledged is durable already; what was appended has an unknown outcome."""
        self.hearing.stop()
        if self._formation is not None:
            await self._formation.stop()
        if self.parts is not None:
            await self.leadership.stop()
            await self.parts.replica.stop()
            self.parts.applying.stop()
            await self.parts.upkeep.stop()
            self.hearing.stopped()
        if self._opened is not None:
            await self._opened.close()

    def routes(self) -> list[web.RouteDef]:
        """The peers' routes, on the same port as the clients'."""
        return [
            web.get(PEER_PATH, self._serve_peer),
            web.get(STREAM_PATH, self._serve_stream),
            web.get(SNAPSHOT_PATH, self._serve_snapshot),
        ]

    async def _serve_snapshot(self, request: web.Request) -> web.StreamResponse:
        if self.parts is None:
            raise web.HTTPServiceUnavailable
        return await self.parts.upkeep.server.serve(request)

    async def _serve_peer(self, request: web.Request) -> web.StreamResponse:
        if self.parts is not None:
            return await self.parts.replica.network.link_server.serve(request)
        if self._formation is not None:
            return await self._formation.serve(request)
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
        if (error := self.hearing.not_leader()) is not None:
            raise error
        parts = self.hearing.require()
        if (stopped := parts.applying.applier.failure) is not None:
            raise StateUnavailable(f"nothing can be answered here: {stopped}")
        limit = parts.genesis.payload_bytes
        if write.size > limit:
            raise LimitExceeded("the frame's payload", write.size, limit)
        parts.replica.propose(write)
        self.write_counts.proposed(write)

    @property
    def replica(self) -> Replica:
        """Its replication. Raises StateUnavailable while the cluster is not formed."""
        return self.hearing.require().replica

    @property
    def upkeep(self) -> Upkeep:
        """Its snapshots, expiry and installs. Raises StateUnavailable while the cluster is not formed."""
        return self.hearing.require().upkeep

    # What it knows

    @property
    def parts(self) -> Parts | None:
        """What it consists of; None while the cluster is not formed."""
        return self.hearing.parts

    @property
    def failure(self) -> str | None:
        """Why it has halted, if it has."""
        return self.hearing.failure

    @property
    def ended(self) -> asyncio.Event:
        """Set when it has halted: it can go on no longer."""
        return self.hearing.ended

    @property
    def visibility(self) -> Visibility:
        """Wakes who waits for the visible bounds to grow."""
        return self.hearing.visibility

    @property
    def digests(self) -> Digests:
        """What others reported of theirs, compared with this node's own."""
        return self.hearing.digests

    @property
    def promotions(self) -> Promotions:
        """The changes of members that were asked of this node."""
        return self.hearing.promotions

    @property
    def write_counts(self) -> WriteCounts:
        """Counts of the write path."""
        return self.hearing.write_counts

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied here."""
        return self.hearing.applied_index

    @property
    def digest(self) -> bytes:
        """The digest at applied_index."""
        return self.hearing.digest

    @property
    def role(self) -> actions.RoleChanged:
        """What this node is, as its core told last."""
        return self.leadership.role

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may serve."""
        return self.hearing.is_leader

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return self.hearing.leader_id

    # Reading

    @property
    def visible_bounds(self) -> Bounds:
        """[lowest_index, highest_index) of what may be read here."""
        return self.parts.reading.bounds if self.parts else Bounds(0, 0)

    def read(self, index: int) -> StoredRecord:
        """A committed record; raises as `Reading.read`."""
        return self.hearing.require().reading.read(index)

    def read_frames(self, from_index: int, max_bytes: int) -> tuple[bytes, int]:
        """Committed raw frames; raises as `Reading.read_frames`."""
        return self.hearing.require().reading.read_frames(from_index, max_bytes)

    @property
    def session_window(self) -> int:
        """How many commands of a session may be under way, and be tried again."""
        return self.hearing.require().applying.applier.sessions.session_window

    async def session(self, session: int) -> SessionStatus | None:
        """Where a session stands, linearizable; None of one that is not open. Raises as `Reading.query`."""
        parts = self.hearing.require()
        if (error := self.hearing.not_leader()) is not None:
            raise error
        try:
            await parts.reading.linearize()
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        return parts.applying.applier.sessions.find(session)

    async def query(self, request: Any, consistency: str, max_lag: int | None) -> StateAnswer:
        """The machine's answer, None asking for its whole state; raises as `Reading.query`."""
        return await self.hearing.require().reading.query(request, consistency, max_lag)

    def status(self) -> dict[str, Any]:
        """What this node knows of itself, and a leader of the others."""
        return node_status(self)

    def forming_failures(self) -> dict[str, str]:
        """Why an unformatted node does not reach others, by node id."""
        return self._formation.failures() if self._formation else {}

    def awaited(self) -> str:
        """Whom the forming of the cluster waits for, as text."""
        return self._formation.awaited() if self._formation else ""

    def not_ready_reasons(self) -> list[str]:
        """Why this node should get no traffic; empty if it should."""
        return not_ready_reasons(self)
