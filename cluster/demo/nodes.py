"""The demo's three nodes: `quire serve` processes, each with a data directory and an output file."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from ..config.secret_file import write_new_secret
from ..errors import ClusterError
from .link_proxy import LinkProxy

NODE_IDS = ("n1", "n2", "n3")
STOP_TIMEOUT_S = 15.0
LAST_LINES = 12
PORTS_FILE = "demo.json"
PEERS_FILE = "peer-secret"
PORTS = (20_000, 32_000)
PORT_TRIES = 200


class DemoFailed(ClusterError):
    """The demo cannot continue; the text says why and what to do."""


class DemoNodes:
    """Three nodes below one directory. `stop` stops whatever was started."""

    def __init__(
        self, directory: Path, *, proxied: bool = False, flags: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """With `proxied`, nodes connect to each other through proxies, which `cut` and `heal` need.

        `flags` are additional flags of `quire serve`, by node id.
        """
        self.directory = directory
        self.addresses: dict[str, str] = {}
        self._proxied = proxied
        self._flags = flags or {}
        self._proxies: dict[tuple[str, str], LinkProxy] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._changed = asyncio.Event()

    @property
    def servers(self) -> str:
        """The nodes as `--server` takes them."""
        return ",".join(self.addresses.values())

    @property
    def process_ids(self) -> dict[str, int]:
        """The process ids of the running nodes, by node id."""
        return {node_id: process.pid for node_id, process in self._processes.items()}

    def log_file(self, node_id: str) -> Path:
        """The file of a node's output."""
        return self.directory / f"{node_id}.log"

    async def start(self) -> None:
        """Start all three nodes, with a peer secret. Raises DemoFailed if a port of an earlier run is taken."""
        self.addresses = {node_id: f"127.0.0.1:{port}" for node_id, port in self._ports().items()}
        with suppress(FileExistsError):  # Of an earlier run.
            write_new_secret(self.directory / PEERS_FILE)
        if self._proxied:
            await self._start_proxies()
        for node_id in self.addresses:
            await self.start_node(node_id)

    async def start_node(self, node_id: str) -> None:
        """Start one node on its existing directory, or on a new one."""
        members = ",".join(f"{node_id}={address}" for node_id, address in self.addresses.items())
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUIRE_")}
        arguments = ["--node", node_id, "--listen", self.addresses[node_id], "--members", members]
        arguments += ["--data-dir", str(self.directory / node_id)]
        arguments += ["--peer-secret-file", str(self.directory / PEERS_FILE)]
        for (dialler, target), proxy in self._proxies.items():
            if dialler == node_id:
                arguments += ["--link", f"{target}=127.0.0.1:{proxy.port}"]
        arguments += self._flags.get(node_id, ())
        with self.log_file(node_id).open("ab") as output:
            # In a new process session, so that Ctrl-C reaches only the demo, which then stops the nodes in order.
            self._processes[node_id] = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "quire.cluster.cli.main", "serve", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._changed.set()

    async def kill(self, node_id: str) -> None:
        """Send SIGKILL; return when the process has exited."""
        process = self._processes.pop(node_id)
        process.kill()
        await process.wait()

    async def leave(self, node_id: str) -> None:
        """Send SIGTERM; return when the process has exited."""
        process = self._processes.pop(node_id)
        process.terminate()
        await process.wait()

    def pause(self, node_id: str) -> None:
        """Send SIGSTOP: the process freezes, and its connections stay open."""
        self._processes[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """Send SIGCONT."""
        self._processes[node_id].send_signal(signal.SIGCONT)

    async def cut(self, node_id: str) -> None:
        """Cut every link from and to a node. Clients still reach it."""
        for pair, proxy in self._proxies.items():
            if node_id in pair:
                await proxy.cut()

    async def heal(self) -> None:
        """Heal every link."""
        for proxy in self._proxies.values():
            await proxy.heal()

    async def _start_proxies(self) -> None:
        pairs = [(dialler, target) for dialler in self.addresses for target in self.addresses if dialler != target]
        for (dialler, target), port in zip(pairs, free_ports(len(pairs)), strict=True):
            self._proxies[dialler, target] = LinkProxy(port, int(self.addresses[target].rpartition(":")[2]))
        await self.heal()

    async def watch(self) -> NoReturn:
        """Wait until a node exits by itself; then raise DemoFailed with the last lines of its output."""
        while True:
            self._changed.clear()
            waits = {asyncio.create_task(process.wait()): process for process in self._processes.values()}
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait([*waits, changed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in (*waits, changed):
                    wait.cancel()
            for node_id, process in self._processes.items():
                if process.returncode is not None:
                    raise self._failed(node_id, process.returncode)

    def _failed(self, node_id: str, code: int) -> DemoFailed:
        lines = self.log_file(node_id).read_text(errors="replace").splitlines()[-LAST_LINES:]
        return DemoFailed(
            f"node {node_id} ended with code {code}; the end of {self.log_file(node_id)}:\n  " + "\n  ".join(lines)
        )

    async def stop(self) -> None:
        """Stop all nodes cleanly. Kill those that do not stop in time."""
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # A frozen process handles SIGTERM only after SIGCONT.
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            for process in running:
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*(process.wait() for process in running))
        for proxy in self._proxies.values():
            await proxy.cut()

    def _ports(self) -> dict[str, int]:
        """The ports of an earlier run on this directory, since its log names them; otherwise free ports."""
        file = self.directory / PORTS_FILE
        if file.exists():
            ports: dict[str, int] = json.loads(file.read_text())["ports"]
            for node_id, port in ports.items():
                if not _is_free(port):
                    raise DemoFailed(
                        f"port {port} of {node_id} is in use; stop what uses it, or give another --data-dir"
                    )
            return ports
        ports = dict(zip(NODE_IDS, free_ports(len(NODE_IDS)), strict=True))
        file.write_text(json.dumps({"ports": ports}) + "\n")
        return ports


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nobody listens."""
    # Below the ephemeral range: from there, the kernel could give the port to a connection before the node starts.
    tried = random.sample(range(*PORTS), PORT_TRIES)
    free = list(islice(filter(_is_free, tried), count))
    if len(free) < count:
        raise DemoFailed(f"no {count} free ports among {PORT_TRIES} from {PORTS[0]} to {PORTS[1]}; try again")
    return free


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
