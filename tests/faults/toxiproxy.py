"""The toxiproxy server for tests: one process per test, and links that can be cut, healed and disturbed.

The Python client for toxiproxy is synchronous and has no timeouts, and its host and port are attributes of a class.
So every call goes through `ToxiproxyServer._call`: in a thread, with a deadline, with host and port set under a lock.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Literal

from toxiproxy.api import APIConsumer

from tests.ports import HOST, free_port

VERSION = "2.12.0"
CALL_TIMEOUT_S = 20.0
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
PORT_TRIES = 50
CACHED_SERVER = Path(__file__).resolve().parents[2] / ".cache" / "bin" / "toxiproxy-server"

Direction = Literal["downstream", "upstream"]
ToxicKind = Literal["latency", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"]

_client_lock = threading.Lock()  # the client's host and port belong to its class


class ToxiproxyError(Exception):
    """The toxiproxy server is missing, did not start, or refused a call."""


class Link:
    """One proxied direction of dialling: who connects to `address` reaches `upstream`, as long as it is not cut."""

    def __init__(self, server: ToxiproxyServer, name: str, address: str, upstream: str) -> None:
        self._server = server
        self.name = name
        self.address = address
        self.upstream = upstream
        self._toxics = 0

    @property
    def port(self) -> int:
        """The port that the link listens on."""
        return int(self.address.rpartition(":")[2])

    async def cut(self) -> None:
        """Close the link's connections and refuse new ones, until `heal`."""
        await self._server.call("post", f"/proxies/{self.name}", {"enabled": False})

    async def heal(self) -> None:
        """Accept connections again, at the same address; toxics stay as they are."""
        await self._server.call("post", f"/proxies/{self.name}", {"enabled": True})

    async def add_toxic(
        self, kind: ToxicKind, direction: Direction = "downstream", *, toxicity: float = 1.0, **attributes: int
    ) -> str:
        """Poison one direction of the link; return the toxic's name.

        `downstream` is what the upstream sends to who dialled. Attributes by kind, as toxiproxy's manual names them
        (milliseconds, KB/s, bytes): latency(latency, jitter), bandwidth(rate), slow_close(delay), timeout(timeout),
        reset_peer(timeout), slicer(average_size, size_variation, delay), limit_data(bytes).
        """
        self._toxics += 1
        name = f"{kind}-{direction}-{self._toxics}"
        toxic = {"name": name, "type": kind, "stream": direction, "toxicity": toxicity, "attributes": attributes}
        await self._server.call("post", f"/proxies/{self.name}/toxics", toxic)
        return name

    async def remove_toxic(self, name: str) -> None:
        """Take one toxic away."""
        await self._server.call("delete", f"/proxies/{self.name}/toxics/{name}")

    async def remove(self) -> None:
        """Close the link's connections and forget it."""
        await self._server.call("delete", f"/proxies/{self.name}")


class ToxiproxyServer:
    """A toxiproxy server process of this test's own; made by `running_toxiproxy`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, output: IO[str]) -> None:
        self._process = process
        self._output = output
        self.port = port

    async def add_link(self, name: str, upstream: str) -> Link:
        """Listen on a free port and pass what connects there on to `upstream` (HOST:PORT)."""
        for _ in range(PORT_TRIES):
            address = f"{HOST}:{free_port()}"
            body = {"name": name, "listen": address, "upstream": upstream, "enabled": True}
            try:
                await self.call("post", "/proxies", body)
            except ToxiproxyError as error:
                if "address already in use" not in str(error):
                    raise
                continue
            return Link(self, name, address, upstream)
        raise ToxiproxyError(f"no free port for link {name} in {PORT_TRIES} tries")

    async def links(self) -> list[str]:
        """The names of all links, in order."""
        return sorted(await self.call("get", "/proxies"))

    async def reset(self) -> None:
        """Heal every link and take every toxic away."""
        await self.call("post", "/reset")

    async def version(self) -> str:
        """The version that the server says it is."""
        return str((await self.call("get", "/version"))["version"])

    async def call(self, method: Literal["get", "post", "delete"], path: str, body: Any = None) -> Any:
        """Call the server's own interface in a thread, within CALL_TIMEOUT_S; return the decoded answer.

        Raises:
            ToxiproxyError: it refused, did not answer in time, or is gone.
        """
        return await asyncio.to_thread(self._call, method, path, body)

    def _call(self, method: str, path: str, body: Any) -> Any:
        arguments: dict[str, Any] = {"timeout": CALL_TIMEOUT_S}
        if body is not None:
            arguments["json"] = body
        with _client_lock:
            APIConsumer.host, APIConsumer.port = HOST, self.port
            try:
                response = getattr(APIConsumer, method)(path, **arguments)
            except Exception as error:  # the client raises types of its own, which carry the server's words
                raise ToxiproxyError(f"{method} {path}: {error}") from error
        if not response.ok:
            raise ToxiproxyError(f"{method} {path}: {response.status_code} {response.text.strip()}")
        return json.loads(response.content) if response.content else None

    def stop(self) -> None:
        """End the process, and with it every link and toxic; returns when it is gone."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        finally:
            self._output.close()


@asynccontextmanager
async def running_toxiproxy() -> AsyncGenerator[ToxiproxyServer]:
    """Start a toxiproxy server on a free port; stop it, with its links and toxics, whatever happens inside."""
    server = await asyncio.to_thread(_start, find_server())
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


def find_server() -> Path:
    """The toxiproxy server that `make test` put in the checkout, or the one on PATH, if it is of the right version."""
    found = shutil.which("toxiproxy-server")
    for path in [CACHED_SERVER, *([Path(found)] if found else [])]:
        if path.exists() and VERSION in _version_of(path):
            return path
    raise ToxiproxyError(f"no toxiproxy-server {VERSION} at {CACHED_SERVER} or on PATH: run tests/setup/go_tools.sh")


def _version_of(path: Path) -> str:
    run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    return run.stdout


def _start(binary: Path) -> ToxiproxyServer:
    port = free_port()
    # Not a pipe: one that nobody reads blocks the server when it is full. `ToxiproxyServer.stop` closes the file.
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen([binary, "-host", HOST, "-port", str(port)], stdout=output, stderr=subprocess.STDOUT)
    server = ToxiproxyServer(process, port, output)
    try:
        _wait_until_it_listens(process, port, output)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, output: IO[str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        output.seek(0)
        raise ToxiproxyError(f"toxiproxy-server ended while starting: {output.read().strip()}")
    raise ToxiproxyError(f"toxiproxy-server does not listen after {START_TIMEOUT_S} s")
