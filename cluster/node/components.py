"""The parts of a node: what it opens at its start (`NodeResources`), and what it has once the cluster is formed
(`Components`). Who needs parts of a node without starting or stopping it gets a `NodeView`.
"""

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiohttp import ClientSession

from quire.log import FEATURES, IndexCachePolicy, Log, LogOptions, overflow_of
from quire.replication import Disk, Members, Ports, Replica, ReplicaOptions
from quire.replication.core import CoreOptions, Identity
from quire.replication.core.events import CodeKnown
from quire.replication.names import Names
from quire.replication.net.book import Book
from quire.replication.net.forming import Forming
from quire.replication.net.sockets import peer_session
from quire.replication.net.trust import Certificates, Trust
from quire.replication.net.wire import BadMessage
from quire.sm import Applier, StateMachine, StateRoom, fingerprint_of, state_room

from ..access.credentials import Credentials
from ..compaction.compaction import Compaction, Factories
from ..compaction.installing import AfterInstall
from ..config.secret_file import SecretFile, read_secrets
from ..config.serve import ServeConfig
from ..data_dir.data_dir import DataDir
from ..data_dir.genesis import Genesis, GenesisInvalid, check_genesis, make_genesis, read_genesis
from ..errors import NodeStopping
from .addresses import Addresses
from .applying import Applying, ApplyPorts, Visibility
from .code import MachineCode
from .digests import Digests
from .health import Health
from .leadership import Leadership
from .membership import Changes
from .reading import Reading
from .tables.cursor_lag import CursorLags
from .tables.cursors import CursorWrites
from .tables.reads import TableReads
from .tables.sessions import SessionLookup
from .writing import Pending, Waiter, WriteCounts, Writing

COALESCED_BYTES = 1 << 20  # All waiting writes go into one frame, up to this size.


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The locked data_dir, the HTTP session for dialling peers, what proves them, and this process's incarnation."""

    config: ServeConfig
    machine_type: type[StateMachine]
    data_dir: DataDir
    http: ClientSession
    secret_file: SecretFile
    certificates: Certificates | None
    incarnation: int
    code: MachineCode

    @classmethod
    async def open(
        cls, config: ServeConfig, machine_type: type[StateMachine], certificates: Certificates | None, names: Names
    ) -> "NodeResources":
        """Lock and open the data_dir. Peers are dialled where `names` says.

        Raises:
            SecretRefused, DataDirRefused, LogError, OSError: the node cannot run here; nothing was changed.
        """
        file = config.peer_secret_file
        secret_file = SecretFile() if file is None else await asyncio.to_thread(read_secrets, file)
        options = LogOptions(
            segment_bytes=config.segment_bytes,
            segment_overflow_bytes=overflow_of(config.segment_bytes, config.max_frame_bytes),
            max_frame_bytes=config.max_frame_bytes,
            # Replication and most reads need the newest records: a scan of old ones must not evict their indexes.
            index_cache_policy=IndexCachePolicy.NEWEST,
        )
        data_dir = await asyncio.to_thread(DataDir.open, config.data_dir, config.node, options)
        code = MachineCode(data_dir, (machine_type.name, machine_type.version), fingerprint_of(machine_type))
        incarnation = int.from_bytes(os.urandom(8), "little")
        session = peer_session(names)
        return cls(config, machine_type, data_dir, session, secret_file, certificates, incarnation, code)

    @property
    def identity(self) -> Identity:
        """This node's identity among its peers."""
        return Identity(self.config.node, self.data_dir.promises.disk_id, self.incarnation)

    @property
    def machine(self) -> tuple[str, int]:
        """Name and version of the machine, as in genesis."""
        return self.machine_type.name, self.machine_type.version

    @property
    def others(self) -> dict[str, str]:
        """The other configured members, HOST:PORT by node id."""
        return {node: address for node, address in self.config.members.items() if node != self.config.node}

    def forming(self, initial: Any) -> Forming:
        """The formation of the cluster; `initial` is the machine's value if this node makes the genesis."""
        config = self.config
        book = Book(config.node, lambda: (-1, Members(())), self.others, config.link)
        return Forming(
            self.identity,
            config.members[config.node],
            list(config.initial_members),
            book,
            Trust(self.secret_file.secrets, book.is_member, self.certificates),
            lambda members, features: make_genesis(members, self.machine, initial, config, features),
            FEATURES,
            self._check_shown,
            config.join,
        )

    @staticmethod
    def _check_shown(frame: bytes) -> None:
        """Check a genesis that a peer sent. Raises BadMessage."""
        try:
            read_genesis(frame)
        except GenesisInvalid as error:
            raise BadMessage(str(error)) from error

    async def format(self, forming: Forming) -> Genesis:
        """Wait until the cluster is formed; store its genesis frame, durably.

        Raises:
            GenesisRefused: the cluster is not the one that this node is configured for, or cannot be formed of it.
        """
        frame = await forming.run(self.http)
        check_genesis(read_genesis(frame), self.machine, self.config)
        return await asyncio.to_thread(self.data_dir.format, self.config.node, frame, forming.history)

    async def restored(self, genesis: Genesis) -> Applier:
        """The machine and the sessions, from the newest snapshot or in their initial state.

        Raises:
            GenesisRefused: the cluster is not the one that this node is configured for.
            DataDirRefused, LogError, MachineError: as `DataDir.restore`.
        """
        check_genesis(genesis, self.machine, self.config)
        await self.code.start()  # Before it applies anything.
        new_machine = partial(genesis.new_machine, self.machine_type)
        return await asyncio.to_thread(self.data_dir.restore, new_machine, genesis.new_sessions, self.code.running)

    async def close(self) -> None:
        """Mark a clean stop and unlock."""
        await self.http.close()
        await self.code.close()
        await asyncio.to_thread(self.data_dir.close)


class NodeView(Protocol):
    """A node as its views and its HTTP interface see it: its parts, and nothing that starts or stops it."""

    @property
    def config(self) -> ServeConfig:
        """Its configuration."""
        ...

    @property
    def started_at(self) -> int:
        """When this process made it: microseconds since the Unix epoch."""
        ...

    @property
    def machine_name(self) -> str:
        """The name of its machine."""
        ...

    @property
    def names(self) -> Names:
        """Where the names lead that it dials."""
        ...

    @property
    def credentials(self) -> Credentials:
        """Its certificates, and the tokens of its callers."""
        ...

    @property
    def addresses(self) -> Addresses:
        """The members and their addresses."""
        ...

    @property
    def health(self) -> Health:
        """Whether it goes on."""
        ...

    @property
    def leadership(self) -> Leadership:
        """Whom it follows, or that it leads."""
        ...

    @property
    def visibility(self) -> Visibility:
        """Wakes readers that wait for records."""
        ...

    @property
    def digests(self) -> Digests:
        """Its own digests, and the nodes that differ."""
        ...

    @property
    def write_counts(self) -> WriteCounts:
        """Counters of its writes."""
        ...

    @property
    def resources(self) -> NodeResources | None:
        """What it opened at its start."""
        ...

    @property
    def forming(self) -> Forming | None:
        """The formation of the cluster, while it is in progress."""
        ...

    @property
    def formed(self) -> "Components | None":
        """What it consists of; None while the cluster is not formed."""
        ...

    @property
    def components(self) -> "Components":
        """What it consists of. Raises StateUnavailable while the cluster is not formed."""
        ...


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a node whose cluster is formed."""

    genesis: Genesis
    log: Log
    replica: Replica[Waiter]
    applying: Applying
    pending: Pending
    writing: Writing
    reading: Reading
    reads: TableReads
    sessions: SessionLookup
    cursors: CursorWrites
    cursor_lags: CursorLags
    changes: Changes
    compaction: Compaction
    code: MachineCode

    @property
    def history(self) -> str:
        """The id, in hex, of the history that this node has applied; the first one's is the cluster's."""
        return (self.applying.applier.history or self.genesis.cluster_id).hex()

    @classmethod
    def build(cls, resources: NodeResources, genesis: Genesis, applier: Applier, node: NodeView) -> "Components":
        """Create and connect them; none is started. `applier` is what `NodeResources.restored` returned."""
        config, data_dir, log = resources.config, resources.data_dir, resources.data_dir.log
        if log is None:
            raise NodeStopping
        leadership, health, timeout_ms = node.leadership, node.health, config.request_timeout_ms
        disk = Disk(log, data_dir.promises, snapshots=data_dir.snapshots, older_epochs=applier.boundary.epochs)
        options = _replica_options(resources, genesis)
        replica = Replica[Waiter](resources.identity, data_dir.history, disk, options)
        applying = Applying(log, applier, node.visibility, node.write_counts.times)
        pending = Pending(
            node.write_counts, leadership.not_leader, lambda: log.tail.index, lambda: replica.core.other_code
        )
        health.on_halt(pending.end)
        health.missing_files = log.watch.judge_failure
        checker = resources.machine_type(genesis.initial)  # Not the applier's: an install replaces that one.
        counts, payload_limit = node.write_counts, genesis.payload_bytes
        writing = Writing(checker, leadership, applying, replica.driver, counts, payload_limit)
        reading = Reading(log, replica, applying, leadership)
        changes = Changes(replica, leadership.not_leader, node.addresses.of, timeout_ms)
        factories = Factories(partial(genesis.new_machine, resources.machine_type), genesis.new_sessions)
        after_install = AfterInstall(applying, node.digests)
        session, store = resources.http, data_dir.snapshots
        cursor_lags = CursorLags(log, lambda: reading.bounds, lambda: applying.applier)
        compaction = Compaction(
            store, disk, replica, after_install, factories, session, config, health.failed, cursor_lags.needed
        )
        installs = compaction.installing
        ports: Ports[Waiter] = Ports(pending, reading, applying, leadership, changes, installs, health)

        def reported(node_id: str, index: int, digest: bytes) -> None:
            node.digests.reported(node_id, index, digest)
            applying.prove()

        replica.connect(ports, leadership, reported)
        applying.connect(
            ApplyPorts(
                pending,
                node.digests,
                compaction.snapshotting,
                health,
                lambda index: node.digests.is_shared(config.node, _voters(replica), index),
            )
        )
        reads = TableReads(leadership, reading, applying, writing, timeout_ms)
        sessions, cursors = SessionLookup(reads), CursorWrites(reads, writing, config.cursors_hold_bytes)
        return cls(
            genesis,
            log,
            replica,
            applying,
            pending,
            writing,
            reading,
            reads,
            sessions,
            cursors,
            cursor_lags,
            changes,
            compaction,
            resources.code,
        )

    @property
    def state_room(self) -> StateRoom:
        """How full the machine's state is."""
        return state_room(self.applying.applier.machine, self.genesis.limits)

    async def accept_code(self) -> None:
        """Accept the code of this node and of the members; raises as `MachineCode.accept`."""
        await self.code.accept(self.codes())
        self.replica.driver.step(CodeKnown(self.code.running, frozenset(self.code.accepted)))

    def codes(self) -> dict[str, bytes]:
        """The fingerprint of each member's machine that this node has heard of; empty where it is unknown."""
        heard = self.replica.network.reports.codes
        status = self.replica.core.status()
        known = {member.node_id: heard.get(member.node_id, b"") for member in status.members.members}
        return known | {status.me.node_id: self.code.running}


def _voters(replica: Replica[Waiter]) -> list[str]:
    return [voter.node_id for voter in replica.core.status().members.voters()]


def _replica_options(resources: NodeResources, genesis: Genesis) -> ReplicaOptions:
    config = resources.config
    return ReplicaOptions(
        address=config.members[config.node],
        genesis=resources.data_dir.genesis_frame(),
        members=resources.others,
        links=config.link,
        seeds=config.join,
        core=CoreOptions(
            heartbeat_us=config.heartbeat_ms * 1000,
            election_timeout_us=config.election_timeout_ms * 1000,
            window_bytes=config.stream_window_bytes,
            frame_bytes=min(COALESCED_BYTES, genesis.payload_bytes),
            features=FEATURES,
            auto_replace_us=(config.auto_replace_after or 0) * 1_000_000,
        ),
        max_frame_bytes=genesis.limits["max_frame_bytes"],
        secrets=resources.secret_file.secrets,
        certificates=resources.certificates,
        code=resources.code.running,
        accepted_codes=frozenset(resources.code.accepted),
        check_invariants=config.check_invariants,
    )
