"""Replicas that run: real logs on simulated disks, real sockets, and a recorder of its events."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from aiohttp import web

from quire.log import Log, LogOptions, encode_records, wall_clock
from quire.log.simulated import faulty
from quire.replication import Disk, Placed, Ports, PromiseFile, Reason, Replica, ReplicaOptions, Write
from quire.replication.core import Core, CoreOptions, Identity, Members, actions
from quire.replication.core.membership.changing import Outcome
from quire.replication.net.hello import PeerInfo
from quire.replication.ports import Device, Links, Streams
from quire.replication.replica import CheckedDriver
from tests.replication.loopback import HOST, calling, until
from tests.replication.world import CLUSTER_ID, disk_id, genesis_frame, voters

# The nodes share one event loop: its pauses on a busy machine shall end no leadership that a test counts on.
OPTIONS = CoreOptions(heartbeat_us=20_000, election_timeout_us=5_000_000)  # Nobody may lose a leader to a busy machine.
LOG_OPTIONS = LogOptions(segment_bytes=8 << 20)
INCARNATIONS = count(1)


@dataclass
class Recorder:
    """Everything that a replica needs of its node: it records the events."""

    commit_index: int = 0
    applied_index: int = 0
    digest: bytes = bytes(16)
    machine_failed: bool = False
    features: frozenset[str] = frozenset()
    placements: list[Placed[None]] = field(default_factory=list)
    rejections: list[tuple[Write[None], Reason]] = field(default_factory=list)
    roles: list[actions.RoleChanged] = field(default_factory=list)
    reads: dict[int, int | None] = field(default_factory=dict)
    halts: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    members: list[Members] = field(default_factory=list)
    transfers: list[str] = field(default_factory=list)
    changes: dict[int, Outcome] = field(default_factory=dict)
    linked: set[str] = field(default_factory=set)
    control: list[tuple[str, bytes]] = field(default_factory=list)
    positions: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    @property
    def ports(self) -> Ports[None]:
        return Ports(self, self, self, self, self, self, self)

    def flushed(self, durable_index: int) -> None:
        pass

    def committed(self, commit_index: int) -> None:
        self.commit_index = commit_index

    def apply_to(self, index: int) -> None:
        self.applied_index = index

    def members_changed(self, members: Members) -> None:
        self.members.append(members)

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        self.changes[ask_id] = outcome

    def placed(self, placed: Placed[None]) -> None:
        self.placements.append(placed)

    def rejected(self, write: Write[None], reason: Reason) -> None:
        self.rejections.append((write, reason))

    def peer_linked(self, node_id: str) -> None:
        self.linked.add(node_id)

    def peer_unlinked(self, node_id: str) -> None:
        self.linked.discard(node_id)

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        self.positions[node_id] = (applied_index, digest)

    def control_received(self, peer: PeerInfo, data: bytes) -> None:
        self.control.append((peer.node_id, data))

    def alarmed(self, text: str) -> None:
        self.alarms.append(text)

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        raise AssertionError("nothing expires here")

    def place_snapshot(self, index: int) -> None:
        raise AssertionError("nothing expires here")

    def snapshot_installed(self, index: int) -> None:
        raise AssertionError("nothing expires here")

    def transfer_ended(self, reason: str) -> None:
        self.transfers.append(reason)

    def role_changed(self, role: actions.RoleChanged) -> None:
        self.roles.append(role)

    def read_ready(self, read_id: int, index: int | None) -> None:
        self.reads[read_id] = index

    def removed(self, index: int) -> None:
        """Note it as a halt."""
        self.halted(f"removed at index {index}")

    def halted(self, reason: str) -> None:
        self.halts.append(reason)

    def failed(self, error: Exception) -> None:
        self.halts.append(repr(error))


class Sockets(Links, Streams, Protocol):
    """Links and streams in one object."""


def connected(core: Core, disk: Disk, ports: Ports[None], sockets: Sockets, device: Device) -> CheckedDriver[None]:
    """A driver of these."""
    driver = CheckedDriver[None](core, disk, sockets, sockets, device)
    driver.connect(ports)
    return driver


def records(*values: object) -> Write[None]:
    """A write of these values."""
    return Write(encode_records(list(values)), len(values), owner=None)


@dataclass
class Running:
    """One replica with its disk and its owner."""

    device: faulty.Disk
    disk: Disk
    replica: Replica[None]
    owner: Recorder

    @property
    def log(self) -> Log:
        return self.disk.log

    @property
    def serves(self) -> bool:
        leading = self.replica.core.leading
        return leading is not None and leading.serving

    def write(self, *values: object) -> Write[None]:
        write = records(*values)
        self.replica.driver.propose(write)
        return write


class Cluster:
    """The nodes of one cluster on this machine, each behind an address that stays when its replica is replaced."""

    def __init__(self, *node_ids: str, secret: bytes | None = None) -> None:
        self.members = voters(*node_ids)
        self.addresses: dict[str, str] = {}
        self.nodes: dict[str, Running] = {}
        self.secret = secret

    def __getitem__(self, node_id: str) -> Running:
        return self.nodes[node_id]

    def make(self, node_id: str, device: faulty.Disk | None = None) -> Running:
        """A replica that is not started, on a new disk or on one that it had before."""
        device = device or faulty.Disk()
        directory = device.directory()
        log = Log.open(directory, LOG_OPTIONS, cluster_id=CLUSTER_ID, clock=wall_clock, standalone=False)
        if log.tail.index == 0:
            log.append_frames(genesis_frame(self.members))
            log.flush()
        held = "promise" in directory.list()
        make = PromiseFile.open if held else PromiseFile.create
        disk, owner = Disk(log, make(directory, disk_id(node_id))), Recorder()
        options = ReplicaOptions(
            address=self.addresses.get(node_id, f"{HOST}:1"),
            genesis=genesis_frame(self.members),
            members={},
            links={node: address for node, address in self.addresses.items() if node != node_id},
            core=OPTIONS,
            max_frame_bytes=LOG_OPTIONS.max_frame_bytes,
            secrets=() if self.secret is None else (self.secret,),
            check_invariants=True,
        )
        me = Identity(node_id, disk_id(node_id), next(INCARNATIONS))
        node = Running(device, disk, Replica(me, CLUSTER_ID, disk, options), owner)
        node.replica.connect(owner.ports, owner, owner.position_reported)
        self.nodes[node_id] = node
        return node

    async def serve_peer(self, request: web.Request) -> web.StreamResponse:
        if (node := self.nodes.get(_node_of(request))) is None:
            raise web.HTTPServiceUnavailable
        return await node.replica.network.link_server.serve(request)

    async def serve_stream(self, request: web.Request) -> web.StreamResponse:
        if (node := self.nodes.get(_node_of(request))) is None:
            raise web.HTTPServiceUnavailable
        return await node.replica.network.streams.server.serve(request)

    async def stop(self, node_id: str) -> faulty.Disk:
        """Stop a replica and close its log; return its disk."""
        node = self.nodes.pop(node_id)
        await node.replica.stop()
        node.log.close()
        return node.device


def _node_of(request: web.Request) -> str:
    return request.app[NODE_ID]


NODE_ID = web.AppKey("node_id", str)


@asynccontextmanager
async def cluster_of(*node_ids: str, leader: str | None = None, secret: bytes | None = None) -> AsyncGenerator[Cluster]:
    """A running cluster; `leader`, by default the first node, serves on entry."""
    cluster = Cluster(*node_ids, secret=secret)
    runners: list[web.AppRunner] = []
    async with calling() as session:
        try:
            for node_id in node_ids:
                app = web.Application()
                app[NODE_ID] = node_id
                app.add_routes([web.get("/peer", cluster.serve_peer), web.get("/peer/stream", cluster.serve_stream)])
                runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
                runners.append(runner)
                await runner.setup()
                await web.TCPSite(runner, HOST, 0).start()
                cluster.addresses[node_id] = f"{HOST}:{runner.addresses[0][1]}"
            named = leader or node_ids[0]
            for node_id in node_ids:
                cluster.make(node_id).replica.start(session, nominated=node_id == named)
            await until(lambda: cluster[named].serves)
            yield cluster
        finally:
            for node in cluster.nodes.values():
                await node.replica.stop()
            for runner in runners:
                await runner.cleanup()


@asynccontextmanager
async def alone(device: faulty.Disk | None = None) -> AsyncGenerator[Running]:
    """The only node of its cluster, serving."""
    node = Cluster("n1").make("n1", device)
    async with calling() as session:
        node.replica.start(session, nominated=True)
        try:
            await until(lambda: node.serves)
            yield node
        finally:
            if node.device.holding_syncs is not None:
                node.device.holding_syncs.set()
            await node.replica.stop()
