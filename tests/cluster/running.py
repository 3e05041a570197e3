"""Real nodes with real logs and sockets in this process, for tests of the HTTP API."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientResponse, ClientSession, DummyCookieJar, web

from quire.cluster.access.tls import ClientTls
from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import make_app, serve_app
from quire.cluster.http.listener import Listener
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import not_ready_reasons
from quire.cluster.outgoing import sendable
from quire.replication import Replica
from quire.replication.address import host_and_port
from quire.replication.core.events import Nominated
from tests.ports import HOST, free_ports
from tests.replication.loopback import until
from tests.tuned import tuned

START_TIMEOUT_S = 60.0
# All nodes share one event loop, which does not run between tests, and stalls on a busy machine. No leader should fence
# itself for that, unless a test is about it. A broken link is noticed at once all the same.
ELECTION_TIMEOUT_MS = 5_000


@dataclass
class Reply:
    """An answer, read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of a problem's type."""
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        assert self.document["status"] == self.status
        assert self.document["detail"]
        return str(self.document["type"]).removeprefix("urn:quire:problem:")


@dataclass
class RunningNode:
    """One node with its server."""

    config: ServeConfig
    node: Node
    runner: web.AppRunner
    server: Listener

    async def stop(self) -> None:
        await self.server.close()
        await self.node.stop()
        served = self.runner.server.connections if self.runner.server is not None else []
        transports = [connection.transport for connection in served if connection.transport is not None]
        await self.runner.cleanup()
        for transport in transports:  # Of a caller that reads nothing, or says no goodbye, it would outlive the loop.
            transport.abort()
        await asyncio.sleep(0)


@dataclass
class RunningCluster:
    """Nodes by id; n1 leads."""

    session: ClientSession
    nodes: dict[str, RunningNode] = field(default_factory=dict)
    tls: ClientTls | None = None

    def address(self, node_id: str) -> str:
        return self.nodes[node_id].config.listen

    def url(self, node_id: str) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.address(node_id)}"

    async def ask(
        self,
        node_id: str,
        method: str,
        path: str,
        body: bytes | str | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request, exactly as given, to one node."""
        sent = dict(headers or {})
        data = sendable(body) if isinstance(body, bytes) else body
        if content_type is not None:
            sent["Content-Type"] = content_type
        skipped = ["Content-Type", "Accept"] if content_type is None else ["Accept"]
        async with self.session.request(
            method,
            f"{self.url(node_id)}{path}",
            ssl=True if self.tls is None else self.tls.context,
            server_hostname=None if self.tls is None else self.tls.server_name,
            data=data,
            headers=sent,
            skip_auto_headers=skipped,
        ) as answer:
            return await read(answer)

    async def stop(self, node_id: str) -> None:
        await self.nodes.pop(node_id).stop()

    async def restart(self, node_id: str) -> None:
        """Stop a node and start it again, with its data and its address."""
        running = self.nodes.pop(node_id)
        await running.stop()
        self.nodes[node_id] = await started(running.config)

    async def lead(self, node_id: str) -> None:
        """Transfer leadership to a node, and wait until all follow it."""
        leader = next(running.node for running in self.nodes.values() if running.node.leadership.is_leader)
        if leader.config.node != node_id:
            await leader.leadership.transfer(node_id)
        await self.ready()

    async def elect(self, node_id: str) -> None:
        """Have a node campaign as soon as it is linked: the control plane takes longer, and may take another one."""
        leadership, others = self.nodes[node_id].node.leadership, self.nodes.keys() - {node_id}

        def replica() -> Replica[Any] | None:
            formed = self.nodes[node_id].node.formed
            return None if formed is None else formed.replica

        def is_linked() -> bool:
            found = replica()
            return found is not None and others <= found.core.status().links.keys()

        def is_led() -> bool:
            return any(running.node.leadership.leader_id for running in self.nodes.values())

        await until(lambda: is_linked() or is_led(), within_s=START_TIMEOUT_S)
        if (found := replica()) is not None and not is_led():
            found.driver.step(Nominated(True))
            await until(is_led, within_s=START_TIMEOUT_S)
            found.driver.step(Nominated(leadership.nominated))

    async def ready(self) -> None:
        """Wait until every running node is ready.

        Between two restarts of a rolling one, too: without it the leader may be left without a majority for a moment,
        and a write that falls into it ends, rightly, as *outcome unknown*.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while any(not_ready_reasons(running.node) for running in self.nodes.values()):
                    node_id = next(iter(self.nodes))
                    await self.ask(node_id, "GET", "/healthz")
        except TimeoutError:
            why = {node_id: not_ready_reasons(running.node) for node_id, running in self.nodes.items()}
            raise TimeoutError(f"not ready within {START_TIMEOUT_S:g} s: {why}") from None

    async def commands(self, node_id: str, *commands: Any) -> Any:
        """The document that answers a batch of commands."""
        reply = await self.ask(node_id, "POST", "/commands", orjson.dumps({"commands": commands}), "application/json")
        assert reply.status == 200, reply
        return reply.document


def applied_index(node: Node) -> int:
    """Every record below it is applied on the node; 0 while the cluster is not formed."""
    return 0 if node.formed is None else node.formed.applying.applied_index


async def read(answer: ClientResponse) -> Reply:
    return Reply(answer.status, dict(answer.headers), await answer.read())


def free_addresses(count: int) -> list[str]:
    return [f"{HOST}:{port}" for port in free_ports(count)]


@asynccontextmanager
async def running_cluster(
    directory: Path,
    count: int = 3,
    links: dict[str, dict[str, str]] | None = None,
    tls: ClientTls | None = None,
    own: Callable[[str], Mapping[str, Any]] = lambda _: {},
    **settings: Any,
) -> AsyncGenerator[RunningCluster, None]:
    """A formed cluster whose nodes are all ready; `links` gives nodes another address for a peer.

    `own` gives the settings of one node; `tls` is what is needed to dial them, if they have certificates.
    """
    settings.setdefault("election_timeout_ms", ELECTION_TIMEOUT_MS)
    settings.setdefault("check_invariants", True)
    settings.setdefault("slow_command_ms", 0)  # A busy machine is no problem of the cluster's.
    node_ids = [f"n{number}" for number in range(1, count + 1)]
    members = dict(zip(node_ids, settings.pop("addresses", free_addresses(count)), strict=True))
    async with ClientSession(cookie_jar=DummyCookieJar()) as session:
        cluster = RunningCluster(session, tls=tls)
        try:
            for node_id in node_ids:
                config = tuned(
                    ServeConfig,
                    node=node_id,
                    listen=members[node_id],
                    members=members,
                    data_dir=directory / node_id,
                    link=(links or {}).get(node_id, {}),
                    **settings,
                    **own(node_id),
                )
                cluster.nodes[node_id] = await started(config)
            await cluster.elect("n1")
            await cluster.ready()
            await cluster.lead("n1")
            yield cluster
        finally:
            for running in cluster.nodes.values():
                await running.stop()


async def started(config: ServeConfig) -> RunningNode:
    """A node that answers on its address."""
    node = Node(config)
    await node.start()
    connections = ConnectionLimit()
    runner = web.AppRunner(make_app(node, connections), shutdown_timeout=0.5)
    server = await serve_app(
        runner, connections, socket.create_server(host_and_port(config.listen)), lambda: node.credentials.tls
    )
    return RunningNode(config, node, runner, server)
