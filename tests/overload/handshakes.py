"""What silent connections and handshakes that come at once cost a server's loop and another client.

python -m tests.overload.handshakes --silent 300 --handshakes 200

The server is this process; the callers are another one. Twice the loop is held until all of them have sent what they
have to send: their hellos, and then the ends of their handshakes with a request. It prints how many connections were
counted while all were open, the longest turn of the server's loop as processor time, and the latencies of another
client's requests: on a connection that it keeps, and each on a connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from aiohttp import web

from quire.cluster.access.tls import ClientTls, load_client_tls
from quire.cluster.http import handshakes
from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from tests.cluster.access.issued import CLUSTER, Issuer
from tests.ports import HOST
from tests.replication.loopback import until

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
DEADLINE_S = 60.0
ROUNDS = 5


class Caller:
    """A client's end of a handshake, of which each message is made before it is sent, so that many are sent at once."""

    def __init__(self, tls: ClientTls, sock: socket.socket) -> None:
        self.sock = sock
        self._arrived, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = tls.context.wrap_bio(self._arrived, self._to_send, server_hostname=tls.server_name)
        try:
            self._end.do_handshake()
        except ssl.SSLWantReadError:
            self.hello = self._to_send.read()

    def finish(self) -> None:
        """Take the server's part of the handshake, and make the last message of this end and the request."""
        while True:
            self._arrived.write(self.sock.recv(1 << 16))
            try:
                self._end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        self._end.write(REQUEST)
        self.request = self._to_send.read()

    def answer(self) -> bytes:
        """What is answered to the request."""
        while True:
            try:
                return self._end.read(1 << 16)
            except ssl.SSLWantReadError:
                self._arrived.write(self.sock.recv(1 << 16))


def call(port: int, ca: Path, silent: int, count: int) -> None:
    """The callers' process. It does one step for each line of its input, and says so on its output."""
    tls = load_client_tls(ca, CLUSTER)
    held = [socket.create_connection((HOST, port)) for _ in range(silent)]
    callers = [Caller(tls, socket.create_connection((HOST, port))) for _ in range(count)]
    step("open")
    for caller in callers:
        caller.sock.sendall(caller.hello)
    step("greeted")
    for caller in callers:
        caller.finish()
    step("finished")
    for caller in callers:
        caller.sock.sendall(caller.request)
    step("asked")
    step(str(sum(caller.answer().startswith(b"HTTP/1.1 200") for caller in callers)))
    for sock in (*held, *(caller.sock for caller in callers)):
        sock.close()


def step(done: str) -> None:
    """Say what is done, and wait until the next step may begin."""
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()
    sys.stdin.readline()


class Callers:
    """The callers' process, seen from the server's."""

    def __init__(self, port: int, ca: Path, silent: int, count: int) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.overload.handshakes", "--silent", str(silent)),
                *("--handshakes", str(count), "--port", str(port), "--ca", str(ca)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def done(self) -> str:
        """Wait until a step is done."""
        if self._process.stdout is None:
            raise RuntimeError("a process with pipes has pipes")
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let them begin the next step."""
        if self._process.stdin is None:
            raise RuntimeError("a process with pipes has pipes")
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait for its end, and close its pipes."""
        with self._process:
            pass


@contextmanager
def turns_of(loop: asyncio.AbstractEventLoop) -> Generator[list[float]]:
    """The processor time of each turn of the running loop."""
    took: list[float] = []
    before = time.thread_time()
    handle: asyncio.Handle

    def note() -> None:
        nonlocal before, handle
        now = time.thread_time()
        took.append(now - before)
        before = now
        handle = loop.call_soon(note)

    handle = loop.call_soon(note)
    yield took
    handle.cancel()


class Client:
    """Another client, with a connection that it keeps."""

    def __init__(self, tls: ClientTls, port: int) -> None:
        self._tls, self._port = tls, port
        self.on_kept: list[float] = []
        self.on_new: list[float] = []

    async def open(self) -> None:
        self._reader, self._writer = await self._connected()

    async def ask(self) -> None:
        """Ask on both kinds of connection, and note how long each took; a new one's handshake counts."""
        began = time.monotonic()
        self._writer.write(REQUEST.replace(b"close", b"keep-alive"))
        self._check(await self._reader.readuntil(b"hello"))
        self.on_kept.append(1e3 * (time.monotonic() - began))
        began = time.monotonic()
        reader, writer = await self._connected()
        writer.write(REQUEST)
        self._check(await reader.read())
        writer.close()
        self.on_new.append(1e3 * (time.monotonic() - began))

    def close(self) -> None:
        self._writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            HOST, self._port, ssl=self._tls.context, server_hostname=self._tls.server_name
        )

    def _check(self, answer: bytes) -> None:
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"another client was answered {answer[:100]!r}")


async def measure(folder: Path, silent: int, count: int) -> dict[str, Any]:
    """One round."""
    authority = Issuer(folder)
    tls = authority.tls()

    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app, connections = web.Application(), ConnectionLimit()
    app.router.add_get("/", greet)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    listener = await serve_app(runner, connections, listening, lambda: tls)
    callers = Callers(port, authority.file, silent, count)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.to_thread(callers.done)
        await until(lambda: len(connections) == silent + count)
        counted = len(connections)
        client = Client(load_client_tls(authority.file, CLUSTER), port)
        await client.open()
        await client.ask()
        alone = client.on_new.pop()
        used = time.process_time()
        said = ""
        with turns_of(asyncio.get_running_loop()) as turns:
            for _ in ("greet", "ask"):
                callers.go_on()
                callers.done()  # The loop is held meanwhile: all that was sent waits for it.
                callers.go_on()
                done = asyncio.create_task(asyncio.to_thread(callers.done))
                while not done.done():
                    await client.ask()
                said = await done
        answered = int(said)
        used = time.process_time() - used
        client.close()
        callers.go_on()
        callers.wait()
        await until(lambda: not len(connections))
    await listener.close()
    await runner.cleanup()
    return {
        "counted": counted,
        "answered": answered,
        "longest_turn_ms": round(1e3 * max(turns), 1),
        "turns": len(turns),
        "processor_s": round(used, 3),
        "other_client_ms": {
            "kept": [round(statistics.median(client.on_kept), 1), round(max(client.on_kept), 1)],
            "new": [round(statistics.median(client.on_new), 1), round(max(client.on_new), 1)],
            "new_alone": round(alone, 1),
            "requests": len(client.on_kept) + len(client.on_new),
        },
    }


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload.handshakes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--silent", type=int, default=300, help="connections that send nothing")
    parser.add_argument("--handshakes", type=int, default=200, help="hellos that are sent at once")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ca", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.port:
        call(arguments.port, arguments.ca, arguments.silent, arguments.handshakes)
        return 0
    for _ in range(ROUNDS):
        with TemporaryDirectory(prefix="handshakes-") as folder:
            figures = uvloop.run(measure(Path(folder), arguments.silent, arguments.handshakes))
        sys.stdout.write(json.dumps(figures | {"begun_in_a_turn": handshakes.HANDSHAKES_IN_TURN}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
