"""Three durable nodes of quire, etcd, NATS or Kafka on this machine, with their documented settings.

Each system keeps its data below a folder of its own. Nodes are asked to end at `stop`, and killed if they do not.
"""

import asyncio
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from quire import __version__
from quire.cluster.client import connect
from quire.cluster.demo.nodes import NODE_IDS, DemoNodes, free_ports

from ..etcd import member_command
from .cutting import placed

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
PAUSE_S = 0.1
LAST_LINES = 5
ETCD_FLAGS = ("--max-txn-ops=1000", "--quota-backend-bytes=8589934592", "--auto-compaction-retention=1m")
QUIRE_FLAGS = ("--machine", "kv", "--retention-bytes", "1073741824")
NATS_CONFIG = """\
server_name: {node}
listen: "{address}"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
cluster {{ name: load, listen: "{peer}", routes: [{routes}] }}
"""

KAFKA_JAVA = "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
"""As Kafka's own scripts start a server."""
KAFKA_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
KAFKA_CONFIG = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{address},CONTROLLER://{peer}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}
min.insync.replicas=2
log.flush.interval.messages=1
"""


class SystemFailed(Exception):
    """A node ended or does not answer; the text has the end of its output."""


class System(Protocol):
    """Three nodes."""

    @property
    def name(self) -> str:
        """What the load generator calls it."""
        ...

    @property
    def settings(self) -> str:
        """The settings that matter here, as Markdown."""
        ...

    @property
    def servers(self) -> Mapping[str, str]:
        """The addresses for clients, by node."""
        ...

    @property
    def process_ids(self) -> Mapping[str, int]:
        """The nodes' processes, once they are started."""
        ...

    def version(self) -> str:
        """The version, as the program tells it."""
        ...

    async def start(self) -> None:
        """Start the nodes; return when all accept connections."""
        ...

    async def start_node(self, node: str) -> None:
        """Start one of them, on the data that it has."""
        ...

    async def kill(self, node: str) -> None:
        """Send SIGKILL; return when the process has ended."""
        ...

    async def stop(self) -> None:
        """End the nodes."""
        ...


class _Placed(DemoNodes):
    """Nodes of the demo, each of which can be cut off."""

    async def start_node(self, node_id: str) -> None:
        with placed(f"{Quire.name}-{node_id}"):
            await super().start_node(node_id)


class Quire:
    """The nodes of `quire demo`, with the machine `kv`."""

    name = "quire"
    settings = f"`{' '.join(QUIRE_FLAGS)}`; fdatasync before a node acknowledges (always)"

    def __init__(self, folder: Path) -> None:
        self.nodes = _Placed(folder, flags=dict.fromkeys(NODE_IDS, QUIRE_FLAGS))

    @property
    def servers(self) -> Mapping[str, str]:
        return self.nodes.addresses

    @property
    def process_ids(self) -> Mapping[str, int]:
        return self.nodes.process_ids

    def version(self) -> str:
        return __version__

    async def start(self) -> None:
        await self.nodes.start()
        async with connect(self.nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
            await asyncio.gather(*map(client.ready, self.nodes.addresses.values()))

    async def start_node(self, node: str) -> None:
        await self.nodes.start_node(node)

    async def kill(self, node: str) -> None:
        await self.nodes.kill(node)

    async def leader(self) -> str:
        """The node that leads."""
        async with connect(self.nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
            return str((await client.status())["leader"])

    async def stop(self) -> None:
        await self.nodes.stop()


class Processes(ABC):
    """A process for each node, all of which listen at `servers`."""

    name: str
    settings: str

    def __init__(self, program: Path, folder: Path) -> None:
        ports = free_ports(2 * len(NODE_IDS))
        self.servers = {node: f"127.0.0.1:{port}" for node, port in zip(NODE_IDS, ports[::2], strict=True)}
        self.peers = {node: f"127.0.0.1:{port}" for node, port in zip(NODE_IDS, ports[1::2], strict=True)}
        self.program = program
        self.folder = folder
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def process_ids(self) -> Mapping[str, int]:
        return {node: process.pid for node, process in self._processes.items()}

    @abstractmethod
    def version(self) -> str:
        """The version, as the program tells it."""

    @abstractmethod
    def command(self, node: str) -> Sequence[str]:
        """The command line of a node, after it wrote the files that it names."""

    async def start(self) -> None:
        for node in NODE_IDS:
            await self.start_node(node)
        await asyncio.gather(*map(self._accepts, NODE_IDS))

    async def start_node(self, node: str) -> None:
        with self._output(node).open("ab") as output, placed(f"{self.name}-{node}"):
            self._processes[node] = await asyncio.create_subprocess_exec(
                *self.command(node), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
            )

    async def kill(self, node: str) -> None:
        process = self._processes.pop(node)
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            for process in running:
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*(process.wait() for process in running))

    def _output(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    async def _accepts(self, node: str) -> None:
        host, _, port = self.servers[node].rpartition(":")
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while self._processes[node].returncode is None:
                    try:
                        _, writer = await asyncio.open_connection(host, int(port))
                    except OSError:
                        await asyncio.sleep(PAUSE_S)
                    else:
                        writer.close()
                        return
        except TimeoutError:
            pass
        lines = self._output(node).read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise SystemFailed(f"{self.name}'s node {node} did not start:\n" + "\n".join(lines))


class Etcd(Processes):
    """Members with default durability: fsync of the log before a member acknowledges."""

    name = "etcd"
    settings = f"`{' '.join(ETCD_FLAGS)}`; fdatasync before a member acknowledges (default)"

    def version(self) -> str:
        return _said(str(self.program), "--version").partition("\n")[0].rpartition(" ")[2]

    def command(self, node: str) -> Sequence[str]:
        urls = [{node: f"http://{address}" for node, address in side.items()} for side in (self.peers, self.servers)]
        return [*member_command(self.program, self.folder, node, *urls), *ETCD_FLAGS, "--log-level=error"]


class Nats(Processes):
    """JetStream servers that sync each message."""

    name = "NATS"
    settings = "JetStream, file storage, 3 replicas; `sync_interval: always` (by default it syncs every two minutes)"

    def version(self) -> str:
        return _said(str(self.program), "--version").strip().rpartition(" v")[2]

    def command(self, node: str) -> Sequence[str]:
        routes = ", ".join(f'"nats://{peer}"' for peer in self.peers.values())
        config = self.folder / f"{node}.conf"
        config.write_text(
            NATS_CONFIG.format(
                node=node,
                address=self.servers[node],
                peer=self.peers[node],
                folder=self.folder / node,
                routes=routes,
            )
        )
        return [str(self.program), "--config", str(config)]


class Kafka(Processes):
    """Servers in KRaft mode, each a broker and a controller, that sync each append. `program` is the folder of jars."""

    name = "Kafka"
    settings = (
        "3 combined nodes, 1 partition of 3 replicas, `min.insync.replicas=2`, producers with `acks=all`, no linger;"
        " `log.flush.interval.messages=1` (by default it does not sync)"
    )

    def version(self) -> str:
        return next(self.program.glob("kafka_*.jar")).stem.rpartition("-")[2]

    def command(self, node: str) -> Sequence[str]:
        config = self.folder / f"{node}.properties"
        config.write_text(
            KAFKA_CONFIG.format(
                number=NODE_IDS.index(node) + 1,
                voters=",".join(f"{number}@{peer}" for number, peer in enumerate(self.peers.values(), 1)),
                address=self.servers[node],
                peer=self.peers[node],
                folder=self.folder / node,
            )
        )
        java = ["java", "-cp", f"{self.program}/*"]
        _said(*java, "kafka.tools.StorageTool", "format", "--cluster-id", KAFKA_CLUSTER, "--config", str(config))
        return [*java, *KAFKA_JAVA.split(), "kafka.Kafka", str(config)]


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
