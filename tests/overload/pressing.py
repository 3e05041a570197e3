"""Open-loop writers: so many requests a second are due, whether or not those before were answered.

Run as a program beside the nodes, so that it has an interpreter of its own. A request takes an idle connection or opens
one, up to a number; one that finds none is `turned away` here, as by a proxy before the node. A caller that waited for
PATIENCE_S gives up and closes its connection. With `--closed`, each connection sends its next request when it has its
answer: that is how much the node can take. Prints one JSON line for each slice of time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from quire.log import pack
from quire.replication.address import host_and_port
from tests.processes.meter import processor_s, rank, resident_bytes

PATIENCE_S = 10.0
TICK_S = 0.005
KEY = "pressed-"
COMMANDS = 10
"""In each request, unless told otherwise."""


@dataclass
class Slice:
    """What became of the requests in a stretch of time."""

    accepted: int = 0
    refused: int = 0
    other: int = 0
    broken: int = 0
    given_up: int = 0
    turned_away: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    resident_bytes: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def end(self, seconds: float, spent_s: float, pid: int) -> dict[str, float]:
        """The figures of a slice that took so long, and in which the leader spent so much."""
        self.seconds, self.processor_s, self.resident_bytes = seconds, spent_s, resident_bytes(pid)
        self.p50_s, self.p99_s = rank(self.waits_s, 0.5), rank(self.waits_s, 0.99)
        figures = asdict(self)
        del figures["waits_s"]
        return figures


def request_bytes(number: int, commands: int) -> bytes:
    """A POST /commands that counts up some keys."""
    body = pack({"commands": [["incr", f"{KEY}{(number + position) % 1000}"] for position in range(commands)]})
    head = "POST /commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


REQUESTS = 100
"""Different ones."""


class Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writers.connected(self)

    def send(self, request: bytes, due: float) -> None:
        """Send a request that was due then."""
        assert self._transport is not None
        self.sent_at = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        head, found, body = received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        self._writers.answered(self, int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._writers.lost(self)

    def cut(self) -> None:
        """Close it as a caller does that has given up."""
        if self._transport is not None:
            self._transport.abort()


class Writers:
    """All of them, on one node."""

    def __init__(self, server: str, pid: int, most: int, commands: int) -> None:
        self._requests = [request_bytes(10 * number, commands) for number in range(REQUESTS)]
        self._host, self._port = host_and_port(server)
        self._pid = pid
        self._most = most
        self._idle: list[Connection] = []
        self._due: deque[float] = deque()
        self._under_way: dict[Connection, None] = {}
        self._open = 0
        self._closed = False
        self._opening: set[asyncio.Task[None]] = set()
        self._number = 0
        self._slice = Slice()
        self._ended = asyncio.Event()

    async def run(self, rate: float | None, seconds: float, slice_s: float) -> None:
        """Press for so long, with so many requests a second, or (None) each connection as fast as it is answered."""
        self._closed = rate is None
        began = slice_began = time.monotonic()
        spent = processor_s(self._pid)
        offered = 0
        if self._closed:
            for _ in range(self._most):
                self._open_one()
        while (now := time.monotonic()) < began + seconds:
            if rate is not None:
                goal = int((now - began) * rate)
                for _ in range(goal - offered):
                    self._offer(now)
                offered = goal
            self._give_up(now - PATIENCE_S)
            if now >= slice_began + slice_s:
                before, spent = spent, processor_s(self._pid)
                figures = self._slice.end(now - slice_began, spent - before, self._pid)
                sys.stdout.write(json.dumps(figures) + "\n")
                sys.stdout.flush()
                self._slice, slice_began = Slice(), now
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_S)
        self._ended.set()
        for connection in [*self._idle, *self._under_way]:
            connection.cut()

    def _offer(self, now: float) -> None:
        if self._idle:
            self._send(self._idle.pop(), now)
        elif self._open < self._most:
            self._due.append(now)
            self._open_one()
        else:
            self._slice.turned_away += 1

    def _open_one(self) -> None:
        self._open += 1
        task = asyncio.ensure_future(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Connection(self), self._host, self._port)
        except OSError:
            self._open -= 1
            self._slice.broken += 1
            if self._due:
                self._due.popleft()

    def _send(self, connection: Connection, due: float) -> None:
        self._under_way[connection] = None
        self._number += 1
        connection.send(self._requests[self._number % REQUESTS], due)

    def connected(self, connection: Connection) -> None:
        """It is there: the request for which it was opened is sent."""
        if self._closed:
            self._send(connection, time.monotonic())
        elif self._due:
            self._send(connection, self._due.popleft())
        else:
            self._idle.append(connection)

    def answered(self, connection: Connection, status: int) -> None:
        """A request has its answer."""
        now = time.monotonic()
        if connection not in self._under_way:
            return
        del self._under_way[connection]
        if status == 200:
            self._slice.accepted += 1
            self._slice.waits_s.append(now - connection.sent_at)
        elif status == 429:
            self._slice.refused += 1
        else:
            self._slice.other += 1
        if self._closed and not self._ended.is_set():
            self._send(connection, now)
        else:
            self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open -= 1
        if connection in self._under_way:
            del self._under_way[connection]
            self._slice.broken += 1
        with suppress(ValueError):
            self._idle.remove(connection)
        if self._closed and not self._ended.is_set():
            self._open_one()

    def _give_up(self, before: float) -> None:
        while self._under_way:
            connection = next(iter(self._under_way))
            if connection.sent_at > before:
                break
            del self._under_way[connection]
            self._slice.given_up += 1
            connection.cut()


def main() -> None:
    """`python -m tests.overload.pressing SERVER PID`, beside the nodes."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload.pressing", description=__doc__)
    parser.add_argument("server", help="HOST:PORT of the leader")
    parser.add_argument("pid", type=int, help="the leader's process")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--commands", type=int, default=COMMANDS, help="in each request")
    parser.add_argument("--rate", type=float, help="requests a second; without it, each as soon as it is answered")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--slice-s", type=float, default=5.0)
    arguments = parser.parse_args()

    async def press() -> None:
        writers = Writers(arguments.server, arguments.pid, arguments.connections, arguments.commands)
        await writers.run(arguments.rate, arguments.seconds, arguments.slice_s)

    asyncio.run(press())


if __name__ == "__main__":
    main()
