"""Builds one node's replication (core, driver, network, lags) and keeps its time on asyncio.

It changes nothing itself: each tick and each event goes to the driver.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from aiohttp import ClientSession

from quire.log import LogError

from .core import Core, CoreOptions, Identity, Members, actions, events
from .core.invariants import Invariants
from .core.messages import GenesisOffer
from .core.state import State, beat_after
from .disk import Disk, OwnerT
from .driver import Driver
from .lag import MICROSECONDS, Lags
from .net.book import Book
from .net.hello import UNKNOWN_CODE, PeerInfo
from .net.network import Network
from .net.trust import Certificates, Trust
from .ports import Device, Links, PeerEvents, Ports, Streams
from .threads import Threads

MARK_SYNC_S = 1.0
REPORT_US = 1_000_000
"""How often a node reports its digest to all others (rule 17). Its leader also gets it with each echo and ack."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """What a replica needs to start; `genesis` is the first frame.

    `members` are the other configured members and `links` the addresses that replace a peer's own, HOST:PORT by node
    id; `seeds` are addresses of members whose ids are not known.
    """

    address: str
    genesis: bytes
    members: Mapping[str, str]
    core: CoreOptions
    max_frame_bytes: int
    secrets: tuple[bytes, ...] = ()  # The peer secrets: this node proves the first and accepts all.
    certificates: Certificates | None = None  # By which nodes prove who they are.
    code: bytes = UNKNOWN_CODE  # The fingerprint of the machine's code, for the hello,
    accepted_codes: frozenset[bytes] = frozenset()  # and those that an operator accepted as equal.
    check_invariants: bool = False  # After each step of the core: for tests.
    links: Mapping[str, str] = field(default_factory=dict)
    seeds: Sequence[str] = ()


def watched_task(
    work: Coroutine[object, object, None], name: str, failed: Callable[[Exception], None]
) -> asyncio.Task[None]:
    """Run `work` as a task that nobody awaits; if it raises, call `failed` on the loop with the error.

    It gets a context of its own, so that its log lines name no request.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            failed(error)

    task = asyncio.create_task(work, name=name, context=contextvars.Context())
    task.add_done_callback(ended)
    return task


async def next_tick(period_s: float) -> None:
    """Wait for the loop's clock to reach the multiple of the period that is nearest to a period from now.

    So a node's timers wake it together.
    """
    rest_s = period_s - asyncio.get_running_loop().time() % period_s
    await asyncio.sleep(rest_s if rest_s > period_s / 2 else rest_s + period_s)


class CheckedDriver(Driver[OwnerT]):
    """A driver that checks the core's invariants after each step; a broken one is a fault, and stops the node."""

    def __init__(self, core: Core, disk: Disk, links: Links, streams: Streams, device: Device) -> None:
        super().__init__(core, disk, links, streams, device)
        self._invariants = Invariants()

    def carry_out_step(self, cause: events.Event | events.AppendResult, step: list[actions.Action]) -> None:
        """The actions of one step of the core, and the check."""
        super().carry_out_step(cause, step)
        if self.core.halted is None:
            self._invariants.check(self.core)


class Replica(Generic[OwnerT]):
    """One node's replication: its parts, and what drives them. Runs on one event loop.

    A caller uses the part that it needs: `driver` for requests, `core` for the status, `network` for the peers, and
    `lags`.
    """

    def __init__(self, me: Identity, cluster_id: bytes, disk: Disk, options: ReplicaOptions) -> None:
        """Build the parts; `connect` follows, then `start`."""
        state = State(
            me=me,
            log=disk,
            options=options.core,
            promise=disk.promises.promise,
            stored_promise=disk.promises.promise,
            commit_index=disk.commit_index,
        )
        self.core = core = Core(state)
        self._disk = disk
        self._options = options
        self._ticked_at = 0
        self._reported_at = 0
        self._lags_at = 0
        self._is_looking = False
        self._members: Members | None = None  # Of which the network knows.
        self._threads = Threads()
        self._tasks: list[asyncio.Task[None]] = []
        offers, code = options.core.features, options.code
        who = PeerInfo(cluster_id, me.node_id, me.disk_id, me.incarnation, options.address, offers, code=code)
        book = Book(me.node_id, lambda: (disk.members_index or 0, core.members), options.members, options.links)
        self.lags = lags = Lags(
            core, disk.log, self._threads.now, options.core.election_timeout_us, book.is_member, self._is_linked
        )
        self.network = Network(
            who,
            lags.reported,
            self._foreign_peers_met,
            state.next_stream_id,
            Trust(options.secrets, book.is_member, options.certificates),
            book,
            # Another history may go on where a restored or recovered node's configuration has the others.
            [*options.seeds, *book.left_behind()],
            options.max_frame_bytes,
            options.core.election_timeout_us / MICROSECONDS,
        )
        driver = CheckedDriver[OwnerT] if options.check_invariants else Driver[OwnerT]
        self.driver = driver(core, disk, self.network, self.network.streams, self._threads)

    # Life

    def connect(self, ports: Ports[OwnerT], peers: PeerEvents, note_digest: Callable[[str, int, bytes], None]) -> None:
        """Report to these. `note_digest` gets a node id, an index up to which that node has applied, and its digest."""
        self.driver.connect(ports)
        self.network.connect(self.driver.step, peers, ports.machine, ports.health)
        self.lags.note_digest = note_digest

    def start(self, session: ClientSession, *, nominated: bool) -> None:
        """Dial the peers, apply records known to be committed, and start the clock."""
        self.driver.step(events.CodeKnown(self._options.code, self._options.accepted_codes))
        self.driver.step(events.Nominated(nominated))
        self.network.start(session)
        self._tasks = [
            watched_task(self._keep_time(), "ticks", self.driver.faulted),
            asyncio.create_task(self._keep_mark(), name="mark"),
        ]

    async def stop(self) -> None:
        """Stop sending and writing; return when no thread uses the log any more. The node closes the log.

        Writes that wait to be appended are rejected, as are new ones.
        """
        self.driver.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.network.close()
        await self._threads.end()  # Their callbacks run before the node closes the log.

    # Time

    def tick_if_frozen(self) -> None:
        """Tick the core if this process was frozen for an election timeout (rule 11)."""
        if self._threads.now() - self._ticked_at > self._options.core.election_timeout_us:
            self._tick()

    async def _keep_time(self) -> None:
        pause = self._options.core.heartbeat_us / 2_000_000
        while True:
            self._tick()
            try:
                self._send_reports()
            except LogError as error:
                self.driver.log_failed(error)
            await next_tick(pause)

    def _tick(self) -> None:
        self._ticked_at = self._threads.now()
        self.driver.tick()
        self.network.enforce_features()
        self.network.forget_guests()

    async def _keep_mark(self) -> None:
        while True:
            await asyncio.sleep(MARK_SYNC_S)
            self.driver.sync_mark()
            self._look_at_files()

    def _look_at_files(self) -> None:
        """In the mark's thread, check that the log's files are in place; if they are not, the node halts."""
        watch = self._disk.log.watch

        def judge(error: BaseException | None, _: int) -> None:
            self._is_looking = False
            try:
                if error is not None:
                    raise error
                watch.judge()
            except LogError as lost:
                self.driver.log_failed(lost)
            except Exception as fault:
                self.driver.faulted(fault)
                raise

        if not self._is_looking and not self.driver.has_ended:
            self._is_looking = True
            self._threads.sync_mark(watch.look, judge)

    # Reports between nodes, for lag and status: no rule reads them

    def _send_reports(self) -> None:
        self.network.offer_genesis(GenesisOffer(self._options.genesis, self.core.commit_index > 0))
        if self.core.members is not self._members:
            self._members = self.core.members
            self.network.follow_book()
        self.network.send_directory(self._disk.members_index or 0, self.core.members)
        if self._threads.now() - self._reported_at >= REPORT_US:
            self._reported_at = self._threads.now()
            self.network.send_to_all(self.driver.position())
        if self.core.leads and self._threads.now() >= self._lags_at:
            self._lags_at = beat_after(self._threads.now(), self._options.core.heartbeat_us)
            for node_id, report in self.lags.to_report().items():
                self.network.send(node_id, report)

    def _is_linked(self, node_id: str) -> bool:
        return self.network.is_linked(node_id)

    def _foreign_peers_met(self, foreign: set[str]) -> None:
        """Halt if a majority of this log's members are of another cluster: this node has a wrong disk."""
        members = self.core.members
        if members.is_majority(lambda member: member.node_id in foreign):
            others = ", ".join(sorted(foreign))
            reason = (
                f"this data_dir is of another cluster than {others}, or of a history of it that a forced recovery ended"
                "; give this node its own, or start it with an empty directory and --join"
            )
            self.driver.halt(reason)
