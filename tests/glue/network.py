"""Connections in memory, as TCP makes them: in order, with latency and a window, cut, reset or silent.

Host 3 is reached at 127.0.3.1. Whatever aiohttp does with a socket, it does through the loop (`GlueLoop`), which finds
the connection here.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.glue.loop import Owner, VirtualLoop

PORT = 7000
WIRE_BYTES = 1 << 16
"""How many bytes a connection carries that the other side has not read: the kernels' buffers."""
HIGH_BYTES, LOW_BYTES = 1 << 16, 1 << 14
GIVE_UP_S = 20.0
"""A connection on which nothing is acknowledged for so long is gone. (Kernels wait longer.)"""


class Mood(Enum):
    """What a direction between two hosts does with what is sent."""

    UP = "up"
    SILENT = "silent"
    """Nothing arrives; what was sent arrives when it is up again, as TCP sends it again."""
    REFUSES = "refuses"
    """Nobody can connect."""


@dataclass
class Line:
    """One direction between two hosts."""

    mood: Mood = Mood.UP
    lowest_us: int = 50
    highest_us: int = 400
    held: list[Callable[[], None]] = field(default_factory=list)


class Network:
    """All hosts, and the connections between them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._lines: dict[tuple[int, int], Line] = {}
        self._listening: dict[int, tuple[Owner, Callable[[], Any]]] = {}
        self._down: set[int] = set()
        self.ends: dict[End, None] = {}
        self.connected: dict[int, End] = {}
        self.binding: dict[int, int] = {}

    # Addresses

    @staticmethod
    def address(host: int) -> str:
        """HOST:PORT at which a host is reached."""
        return f"127.0.{host}.1:{PORT}"

    def line(self, source: int, target: int) -> Line:
        """The direction from one host to another."""
        return self._lines.setdefault((source, target), Line())

    # What histories do

    def set_mood(self, source: int, target: int, mood: Mood) -> None:
        """Change what a direction does."""
        line = self.line(source, target)
        line.mood = mood
        self._send_held(source, target)

    def _send_held(self, source: int, target: int) -> None:
        line = self.line(source, target)
        if self.carries(source, target):
            held, line.held = line.held, []
            for send in held:
                send()

    def carries(self, source: int, target: int) -> bool:
        """Whether what is sent arrives."""
        return not self._down & {source, target} and self.line(source, target).mood is not Mood.SILENT

    def reset(self, one: int, other: int) -> None:
        """Reset every connection between two hosts."""
        for end in list(self.ends):
            if {end.host, end.peer_host} == {one, other}:
                end.lose(ConnectionResetError(errno.ECONNRESET, "reset by a history"))

    def forget(self, one: int, other: int) -> None:
        """Lose the flows between two hosts: nothing that is sent on their connections arrives ever again."""
        for end in self.ends:
            if {end.host, end.peer_host} == {one, other}:
                end.is_forgotten = True

    def process_died(self, host: int, *, with_its_host: bool) -> None:
        """Its sockets are closed by its kernel, or not at all."""
        self._listening.pop(host, None)
        for end in list(self.ends):
            if end.host == host:
                end.vanish(silently=with_its_host)
        if with_its_host:
            self._down.add(host)

    def host_is_back(self, host: int) -> None:
        """It knows none of its former connections."""
        self._down.discard(host)
        for source, target in list(self._lines):
            if host in (source, target):
                self._send_held(source, target)

    def is_down(self, host: int) -> bool:
        """Whether nothing answers there."""
        return host in self._down

    # What the loop asks for

    def listen(self, host: int, make: Callable[[], Any]) -> None:
        """Accept connections."""
        self._listening[host] = (self._loop.owner, make)

    def stop_listening(self, host: int) -> None:
        """Accept no more."""
        self._listening.pop(host, None)

    async def connect(self, connecting: socket.socket, dialler: int, host: int) -> None:
        """Connect.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        if not await self._arrives(dialler, host):
            await self._loop.create_future()
        accepting = self._listening.get(host)
        if accepting is None or self.line(dialler, host).mood is Mood.REFUSES:
            if not await self._arrives(host, dialler):
                await self._loop.create_future()
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {self.address(host)}")
        owner, make = accepting
        near, far = End(self, self._loop, dialler, host, self._loop.owner), End(self, self._loop, host, dialler, owner)
        near.other, far.other = far, near
        self.ends |= {near: None, far: None}
        self._loop.as_owner(owner, lambda: far.attach(make()))
        try:
            if not await self._arrives(host, dialler):
                await self._loop.create_future()
        except asyncio.CancelledError:
            near.abort()
            raise
        self.connected[id(connecting)] = near

    async def _arrives(self, source: int, target: int) -> bool:
        """Wait as long as a packet takes; return whether it arrives."""
        await self._loop.after(self.latency_s(source, target))
        return self.carries(source, target)

    def latency_s(self, source: int, target: int) -> float:
        """Draw how long a packet takes."""
        line = self.line(source, target)
        return self._loop.random.randint(line.lowest_us, line.highest_us) / 1e6


class End(asyncio.Transport):
    """One end of a connection: what aiohttp writes to."""

    def __init__(self, network: Network, loop: VirtualLoop, host: int, peer_host: int, owner: Owner) -> None:
        super().__init__({"peername": (f"127.0.{peer_host}.1", PORT), "sockname": (f"127.0.{host}.1", PORT)})
        self.host, self.peer_host, self.owner = host, peer_host, owner
        self.other: End
        self.is_forgotten = False
        self._network, self._loop = network, loop
        self._protocol: Any = None
        self._out = bytearray()
        self._wire_bytes = 0
        self._arrive_at = 0.0
        self._inbox: deque[bytes | None] = deque()
        self._reading, self._gives_up = True, False
        self._closing, self._closed, self._write_paused, self._eof_sent = False, False, False, False

    def attach(self, protocol: Any) -> None:
        """Give it the protocol that reads it."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._loop.call_soon(self._read_inbox)
        if self._closed:  # Before anybody knew of it.
            self._loop.call_soon(protocol.connection_lost, ConnectionResetError(errno.ECONNRESET, "reset by peer"))

    # As asyncio.Transport

    def write(self, data: Any) -> None:
        if self._closing or self._closed:
            return
        self._out += data
        self._pump()
        if not self._write_paused and len(self._out) > HIGH_BYTES:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.as_owner(self.owner, self._loop.call_soon, self._read_inbox)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._inbox.clear()
            if not self._out:
                self._finish(None)

    def abort(self) -> None:
        self._send(self.other.lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
        self._finish(None)

    # The wire

    def _pump(self) -> None:
        while self._out and self._wire_bytes < WIRE_BYTES and not self._closed:
            data = bytes(self._out[: WIRE_BYTES - self._wire_bytes])
            del self._out[: len(data)]
            self._wire_bytes += len(data)
            self._send(self.other.arrive, data)
        if self._write_paused and len(self._out) <= LOW_BYTES and not self._closed:
            self._write_paused = False
            self._protocol.resume_writing()
        if self._closing and not self._out:
            self._finish(None)

    def _send(self, arrive: Callable[..., None], *args: Any) -> None:
        """Have the other end do something when it learns of it, in order."""
        line = self._network.line(self.host, self.peer_host)
        if self.is_forgotten:
            self._give_up_later()
        elif line.held or not self._network.carries(self.host, self.peer_host):
            line.held.append(lambda: self._send_now(arrive, args))
        else:
            self._send_now(arrive, args)

    def _give_up_later(self) -> None:
        if not self._gives_up:
            self._gives_up = True
            error = TimeoutError(errno.ETIMEDOUT, "nothing was acknowledged")
            self._loop.as_owner(self._loop.outside, self._loop.call_later, GIVE_UP_S, self.lose, error)

    def _send_now(self, arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        latency = self._network.latency_s(self.host, self.peer_host)
        self._arrive_at = max(self._arrive_at + 1e-7, self._loop.time() + latency)
        loop = self._loop
        loop.as_owner(loop.outside, loop.call_at, self._arrive_at, self.other.deliver, arrive, args)

    def deliver(self, arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Something from the other end arrived."""
        if self._network.is_down(self.host) or self.is_forgotten:
            return
        if self.owner.frozen is None:
            self._loop.as_owner(self.owner, arrive, *args)
        else:
            self._loop.as_owner(self.owner, self._loop.call_soon, arrive, *args)

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or the end of them, arrived here."""
        if self._closing or self._closed or self.owner.is_dead:
            self._send(self.other.lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            return
        self._inbox.append(data)
        self._read_inbox()

    def _read_inbox(self) -> None:
        while self._inbox and self._reading and self._protocol is not None and not self._closing:
            data = self._inbox.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
            else:
                self._protocol.data_received(data)
                loop, other = self._loop, self.other
                loop.as_owner(other.owner, loop.call_soon, other.taken, len(data))

    def taken(self, size: int) -> None:
        """The other end has read so many bytes."""
        self._wire_bytes -= size
        if not self._closed:
            self._pump()

    def lose(self, error: Exception) -> None:
        """The connection is gone."""
        self._out.clear()
        self._finish(error)

    def vanish(self, *, silently: bool) -> None:
        """This end's process is gone."""
        if not silently and not self._closed:
            self._send(self.other.lose, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
        self._closing = self._closed = True
        self._network.ends.pop(self, None)

    def _finish(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self._out.clear()
        self._network.ends.pop(self, None)
        if error is None:
            self._send(self.other.arrive, None)
        loop = self._loop
        if self._protocol is not None and not self.owner.is_dead:
            loop.as_owner(self.owner, loop.call_soon, self._protocol.connection_lost, error)


class Server:
    """What `create_server` returns."""

    def __init__(self, network: Network, host: int) -> None:
        self._network, self._host = network, host

    def close(self) -> None:
        """Accept no more."""
        self._network.stop_listening(self._host)


class GlueLoop(VirtualLoop):
    """A virtual loop whose sockets are connections of a `Network`."""

    def __init__(self, random: Any) -> None:
        super().__init__(random)
        self.network = Network(self)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a socket that is otherwise not used."""
        await self.network.connect(sock, self.owner.host, int(address[0].split(".")[2]))

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """The connection that `sock_connect` made."""
        sock = kwargs["sock"]
        end = self.network.connected.pop(id(sock))
        sock.close()
        protocol = protocol_factory()
        end.attach(protocol)
        return end, protocol

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Accept connections to the host that the socket is bound to."""
        sock = kwargs["sock"]
        host = self.network.binding.pop(id(sock))
        sock.close()
        self.network.listen(host, protocol_factory)
        return Server(self.network, host)
