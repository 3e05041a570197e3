"""toxiproxy on every directed link of a cluster and on the addresses that clients dial.

What n1 dials to n2 goes through a router (`tests/faults/router.py`) and one of two proxies: `/peer` carries n1's
heartbeats, votes and control plane to n2; everything else, `/peer/stream` above all, the other, on which n2's log
comes to n1 and n1's acks go back. Clients know the nodes by proxies of their own.

Routers and calls run on an event loop in a thread of the mesh's own. From outside all is synchronous, with a deadline.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import uvloop

from tests.faults.router import Router, StandIn
from tests.faults.toxiproxy import Direction, Link, ToxicKind, ToxiproxyServer, running_toxiproxy
from tests.ports import HOST, free_port
from tests.processes.cluster import Cluster
from tests.processes.locked import LockedFiles

CALL_DEADLINE_S = 30.0
CONTROL_PATHS = ("/peer",)
PORT_TRIES = 50

T = TypeVar("T")


class Channel(StrEnum):
    """What of a link is meant."""

    CONTROL = "control"
    STREAM = "stream"


BOTH = (Channel.CONTROL, Channel.STREAM)


@dataclass(frozen=True)
class Dialled:
    """What one node dials to another: a connection for each channel."""

    dialler: str
    target: str


class Mesh:
    """The proxies of one cluster; made by `meshed`, which wires it into the cluster's flags."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._server: ToxiproxyServer | None = None
        self._links: dict[tuple[Dialled, Channel], Link] = {}
        self._clients: dict[str, Link] = {}
        self._routers: dict[Dialled, Router] = {}
        self._router_ports: dict[Dialled, int] = {}

    # What the cluster and its clients are told

    def client_address(self, node_id: str) -> str:
        """Where clients reach a node."""
        return self._clients[node_id].address

    def wire(self, cluster: Cluster) -> None:
        """Let the cluster's nodes reach one another, and name themselves to clients, through the mesh."""
        ids = list(cluster.nodes)
        self._wait(self._build({node.node_id: node.address for node in cluster}, cluster.files))
        members = ",".join(f"{node_id}={self.client_address(node_id)}" for node_id in ids)
        for node in cluster:
            node.flags[node.flags.index("--members") + 1] = members
            for other in ids:
                if other != node.node_id:
                    port = self._router_ports[Dialled(node.node_id, other)]
                    node.flags += ["--link", f"{other}={HOST}:{port}"]

    # Faults

    def cut(self, dialled: Iterable[Dialled], channels: Sequence[Channel] = BOTH) -> None:
        """Close these connections and refuse new ones."""
        self._wait(_each(link.cut() for link in self._those(dialled, channels)))

    def cut_clients(self, node_ids: Iterable[str]) -> None:
        """Close what clients have dialled to these nodes, and refuse new connections."""
        self._wait(_each(self._clients[node_id].cut() for node_id in node_ids))

    def silence(self, dialled: Iterable[Dialled], channels: Sequence[Channel] = BOTH) -> None:
        """Nothing more passes on these connections that there are, which stay open; new ones pass."""
        self._wait(self._silence(list(dialled), channels))

    def poison(
        self,
        dialled: Iterable[Dialled],
        kind: ToxicKind,
        direction: Direction,
        attributes: dict[str, int],
        channels: Sequence[Channel] = BOTH,
    ) -> None:
        """Poison one direction of these connections and of all that are made until `heal`."""
        links = self._those(dialled, channels)
        self._wait(_each(link.add_toxic(kind, direction, **attributes) for link in links))

    def poison_clients(
        self, node_ids: Iterable[str], kind: ToxicKind, direction: Direction, attributes: dict[str, int]
    ) -> None:
        """Poison one direction of what clients dial to these nodes."""
        links = [self._clients[node_id] for node_id in node_ids]
        self._wait(_each(link.add_toxic(kind, direction, **attributes) for link in links))

    def heal(self) -> None:
        """Accept every connection again, take every toxic away, and break what was silenced."""
        if self._server is None:
            raise RuntimeError("the mesh was never wired")
        self._wait(self._server.reset())
        self._wait(_each(router.break_silent() for router in self._routers.values()))

    def close(self) -> None:
        """End the routers, toxiproxy and the thread."""
        try:
            self._wait(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_DEADLINE_S)
            self._loop.close()

    def _those(self, dialled: Iterable[Dialled], channels: Sequence[Channel]) -> list[Link]:
        # Streams first: a leader that is heard on its stream is alive, whatever became of the link.
        those = list(dialled)
        return [self._links[each, channel] for channel in sorted(channels, reverse=True) for each in those]

    async def _silence(self, dialled: Sequence[Dialled], channels: Sequence[Channel]) -> None:
        for each in dialled:
            self._routers[each].silence({self._links[each, channel].port for channel in channels})

    async def _build(self, addresses: dict[str, str], files: LockedFiles | None) -> None:
        server = await self._stack.enter_async_context(running_toxiproxy())
        self._server = server
        for target, address in addresses.items():
            self._clients[target] = await server.add_link(f"clients-{target}", address)
            for dialler in addresses:
                if dialler != target:
                    dialled = Dialled(dialler, target)
                    for channel in BOTH:
                        link = await server.add_link(f"{dialler}-{target}-{channel}", address)
                        self._links[dialled, channel] = link
                    stand_in = None if files is None else _stand_in(files, dialled)
                    self._router_ports[dialled] = await self._route(dialled, stand_in)

    async def _route(self, dialled: Dialled, stand_in: StandIn | None) -> int:
        control, stream = (self._links[dialled, channel].port for channel in BOTH)
        router = Router({**dict.fromkeys(CONTROL_PATHS, control), "": stream}, stand_in)
        for _ in range(PORT_TRIES):
            port = free_port()
            try:
                await router.start(port)
            except OSError:
                continue
            self._stack.push_async_callback(router.close)
            self._routers[dialled] = router
            return port
        raise RuntimeError(f"no free port for a router in {PORT_TRIES} tries")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_DEADLINE_S)


def _stand_in(files: LockedFiles, dialled: Dialled) -> StandIn:
    target = files.contexts(dialled.target)
    return StandIn(target.peers, files.contexts(dialled.dialler).dialling, target.node_name)


async def _each(calls: Iterable[Coroutine[Any, Any, Any]]) -> None:
    for call in calls:
        await call


@contextmanager
def meshed(cluster: Cluster) -> Generator[Mesh]:
    """A mesh for a cluster that does not run yet; it is gone afterwards, with every toxic, whatever happens inside."""
    mesh = Mesh()
    try:
        mesh.wire(cluster)
        yield mesh
    finally:
        mesh.close()
