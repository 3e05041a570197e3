"""Nodes as `quire serve` runs them, each a process on a host of its own, in one virtual loop."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.admission.connections import Connection, ConnectionLimit
from quire.cluster.http.app import make_app
from quire.cluster.node.node import Node
from quire.log.simulated.faulty import Keep
from quire.replication.names import LookUp, Names
from tests.glue.host import GlueDisk
from tests.glue.loop import Owner
from tests.glue.network import PORT, GlueLoop, Network
from tests.tuned import tuned

ELECTION_TIMEOUT_MS = 500
HEARTBEAT_MS = 100


@dataclass
class Process:
    """What a crash takes."""

    owner: Owner
    node: Node
    runner: web.AppRunner | None = None
    server: asyncio.Server | None = None


@dataclass
class Answer:
    """What a caller got."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of a problem's type; empty if it is none."""
        if not self.headers.get("Content-Type", "").startswith("application/problem+json"):
            return ""
        return str(self.document["type"]).removeprefix("urn:quire:problem:")


@dataclass
class Host:
    """A machine: its disk survives its processes."""

    number: int
    config: ServeConfig
    disk: GlueDisk
    process: Process | None = None
    starts: int = 0
    is_busy: bool = False

    @property
    def node_id(self) -> str:
        return self.config.node

    @property
    def node(self) -> Node | None:
        return None if self.process is None else self.process.node


@dataclass
class Cluster:
    """The hosts by node id, and their clients."""

    loop: GlueLoop
    seed: str
    disks: dict[str, GlueDisk]
    settings: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    look_up: LookUp | None = None
    """If given, members have names such as `n1.example`, which each node resolves by this."""
    session: ClientSession = field(init=False)

    def add_hosts(self, count: int, voters: int) -> None:
        """Hosts n1, n2 and so on; the first so many form the cluster."""
        node_ids = [f"n{number}" for number in range(1, count + 1)]
        reached = {node_id: Network.address(number) for number, node_id in enumerate(node_ids, 1)}
        named = {node_id: f"{node_id}.example:{PORT}" for node_id in node_ids}
        members = reached if self.look_up is None else named
        for number, node_id in enumerate(node_ids, 1):
            config = tuned(
                ServeConfig,
                node=node_id,
                listen=reached[node_id],
                members=members,
                initial_members=tuple(node_ids[:voters]),
                data_dir=Path(node_id),
                election_timeout_ms=ELECTION_TIMEOUT_MS,
                heartbeat_ms=HEARTBEAT_MS,
                segment_bytes=1 << 16,
                check_invariants=True,
                **self.settings,
            )
            disk = self.disks[node_id] = GlueDisk(self.loop, f"{self.seed}/{node_id}")
            self.hosts[node_id] = Host(number, config, disk)

    async def open(self) -> None:
        """Let clients call."""
        connector = TCPConnector(limit=0, force_close=False)
        self.session = ClientSession(
            connector=connector, timeout=ClientTimeout(total=None), cookie_jar=DummyCookieJar()
        )

    # Life and death

    async def start(self, node_id: str) -> None:
        """Start a node's process, as `quire serve` does."""
        host = self.hosts[node_id]
        host.starts += 1
        owner = Owner(node_id, host.number)
        self.loop.network.host_is_back(host.number)
        starting = self.loop.as_owner(owner, asyncio.create_task, self._start(host, owner))
        await starting

    async def _start(self, host: Host, owner: Owner) -> None:
        node = Node(host.config, None if self.look_up is None else Names(self.look_up))
        host.process = process = Process(owner, node)
        await node.start()
        connections = ConnectionLimit()
        process.runner = web.AppRunner(make_app(node, connections), shutdown_timeout=0.5, access_log=None)
        await process.runner.setup()
        server = process.runner.server
        if server is None:
            raise RuntimeError("a runner that is set up has a server")

        def accept() -> Connection:
            place = connections.admit("")  # This network shows no addresses.
            if place is None:
                raise RuntimeError("more connections than a history opens")
            return Connection(server, connections, place)

        with socket.socket() as listening:
            self.loop.network.binding[id(listening)] = host.number
            process.server = await self.loop.create_server(accept, sock=listening)

    async def stop(self, node_id: str) -> None:
        """Stop a node's process, as SIGTERM does."""
        host = self.hosts[node_id]
        process = host.process
        if process is None:
            return
        host.process = None
        stopping = self.loop.as_owner(process.owner, asyncio.create_task, self._stop(process))
        await stopping

    async def _stop(self, process: Process) -> None:
        await process.node.leadership.hand_over()
        if process.server is not None:
            process.server.close()
        await process.node.stop()
        if process.runner is not None:
            await process.runner.cleanup()

    def crash(self, node_id: str, keep: Keep | None) -> None:
        """End a node's process at once: killed (`keep` is None), or with its host, which loses its power."""
        host = self.hosts[node_id]
        process, host.process = host.process, None
        if process is None:
            return
        self.loop.network.process_died(host.number, with_its_host=keep is not None)
        if keep is None:
            host.disk.directory()  # From now on the handles of the dead process do nothing.
        else:
            host.disk.lose_power(keep)
        self.loop.kill(process.owner)

    # Clients

    async def ask(
        self,
        node_id: str,
        path: str,
        document: Any = None,
        timeout_s: float | None = None,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one document, or a list of them, to one node. Raises ClientError, TimeoutError."""
        url = f"http://{Network.address(self.hosts[node_id].number)}{path}"
        if isinstance(document, list):
            data, content_type = b"\n".join(map(orjson.dumps, document)), "application/x-ndjson"
        else:
            data, content_type = b"" if document is None else orjson.dumps(document), "application/json"
        sent = {"Content-Type": content_type, **(headers or {})}
        async with asyncio.timeout(timeout_s), self.session.request(method, url, data=data, headers=sent) as answer:
            return Answer(answer.status, await answer.read(), dict(answer.headers))
