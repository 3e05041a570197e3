"""The demo's three nodes: processes of `quire serve`, each with a data directory and a log file."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn

from .relay import Relay

NODE_IDS = ("n1", "n2", "n3")
STOP_TIMEOUT_S = 15.0
LAST_LINES = 12
PORTS_FILE = "demo.json"
PORTS = (20_000, 32_000)
PORT_TRIES = 200


class DemoFailed(Exception):
    """The demo cannot go on; the text says why, and what to do."""


class DemoNodes:
    """Three nodes below one directory. What is started is stopped by `stop`, whatever happened in between."""

    def __init__(
        self, directory: Path, *, relayed: bool = False, flags: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """`relayed`: the nodes reach one another through relays, which `cut` and `heal` work on.

        `flags` are further ones of `quire serve`, by node id.
        """
        self.directory = directory
        self.addresses: dict[str, str] = {}
        self._relayed = relayed
        self._flags = flags or {}
        self._relays: dict[tuple[str, str], Relay] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._changed = asyncio.Event()

    @property
    def servers(self) -> str:
        """The nodes as `--server` takes them."""
        return ",".join(self.addresses.values())

    @property
    def process_ids(self) -> dict[str, int]:
        """The processes that were started, by node id."""
        return {node_id: process.pid for node_id, process in self._processes.items()}

    def log_file(self, node_id: str) -> Path:
        """Where a node's output goes."""
        return self.directory / f"{node_id}.log"

    async def start(self) -> None:
        """Start all three. Raises DemoFailed if a port of an earlier run is taken."""
        self.addresses = {node_id: f"127.0.0.1:{port}" for node_id, port in self._ports().items()}
        if self._relayed:
            await self._lay_relays()
        for node_id in self.addresses:
            await self.start_node(node_id)

    async def start_node(self, node_id: str) -> None:
        """Start one, with whatever its directory holds."""
        members = ",".join(f"{node_id}={address}" for node_id, address in self.addresses.items())
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUIRE_")}
        arguments = ["--node", node_id, "--listen", self.addresses[node_id], "--members", members]
        arguments += ["--data-dir", str(self.directory / node_id)]
        for (dialler, target), relay in self._relays.items():
            if dialler == node_id:
                arguments += ["--link", f"{target}=127.0.0.1:{relay.port}"]
        arguments += self._flags.get(node_id, ())
        with self.log_file(node_id).open("ab") as output:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops the nodes in its own time.
            self._processes[node_id] = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "quire.cluster.cli.main", "serve", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._changed.set()

    async def kill(self, node_id: str) -> None:
        """SIGKILL, on purpose; return when the process is gone."""
        process = self._processes.pop(node_id)
        process.kill()
        await process.wait()

    async def leave(self, node_id: str) -> None:
        """SIGTERM, on purpose; return when the process is gone."""
        process = self._processes.pop(node_id)
        process.terminate()
        await process.wait()

    def pause(self, node_id: str) -> None:
        """SIGSTOP: it stands still, and its connections stay."""
        self._processes[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """SIGCONT."""
        self._processes[node_id].send_signal(signal.SIGCONT)

    async def cut(self, node_id: str) -> None:
        """Cut every link from and to a node; clients still reach it."""
        for pair, relay in self._relays.items():
            if node_id in pair:
                await relay.cut()

    async def heal(self) -> None:
        """Heal every link."""
        for relay in self._relays.values():
            await relay.heal()

    async def _lay_relays(self) -> None:
        pairs = [(dialler, target) for dialler in self.addresses for target in self.addresses if dialler != target]
        for (dialler, target), port in zip(pairs, _free_ports(len(pairs)), strict=True):
            self._relays[dialler, target] = Relay(port, int(self.addresses[target].rpartition(":")[2]))
        await self.heal()

    async def watch(self) -> NoReturn:
        """Raises DemoFailed, with the last lines of its log, as soon as a node ends by itself."""
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
        """Stop all nodes cleanly; kill one that does not stop in time."""
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # One that stands still would not hear of it.
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            for process in running:
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*(process.wait() for process in running))
        for relay in self._relays.values():
            await relay.cut()

    def _ports(self) -> dict[str, int]:
        """The ports of an earlier run with this directory, which its log names; else free ones, kept for the next."""
        file = self.directory / PORTS_FILE
        if file.exists():
            ports: dict[str, int] = json.loads(file.read_text())["ports"]
            for node_id, port in ports.items():
                if not _is_free(port):
                    raise DemoFailed(
                        f"port {port} of {node_id} is in use; stop what uses it, or give another --data-dir"
                    )
            return ports
        ports = dict(zip(NODE_IDS, _free_ports(len(NODE_IDS)), strict=True))
        file.write_text(json.dumps({"ports": ports}) + "\n")
        return ports


def _free_ports(count: int) -> list[int]:
    # Below the ephemeral range, from which the kernel gives a port to whoever connects before a node has started.
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
