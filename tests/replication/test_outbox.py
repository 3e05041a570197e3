"""An outbox over real sockets: order, a reader that does not read, a connection that is gone."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from aiohttp import ClientSession, ClientWebSocketResponse, web
from aiohttp.test_utils import TestServer

from quire.cluster.access.tls import Tls
from quire.replication.net.direct import framed
from quire.replication.net.outbox import FRAME_HEAD_BYTES, LOW_PART, Outbox, sent_bytes
from tests.processes.locked import locked_files

DEADLINE_S = 30.0
MESSAGE_BYTES = 1 << 16
BUFFER_BYTES = 2 * MESSAGE_BYTES
SMALL_BYTES = 10_000
MOST_BYTES = next(size for size in range(BUFFER_BYTES, 0, -1) if sent_bytes(size) < BUFFER_BYTES)
"""The longest message that an empty buffer takes."""


@dataclass
class Ends:
    """One socket, its outbox, and the other end."""

    outbox: Outbox
    socket: web.WebSocketResponse
    other: ClientWebSocketResponse
    carrying: "asyncio.Task[None]"
    transport: asyncio.Transport
    sent: list[int] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, number: int) -> None:
        def then() -> None:
            self.sent.append(number)
            self.told.set()

        self.outbox.send(number.to_bytes(4, "big") * (MESSAGE_BYTES // 4))
        self.outbox.when_taken(then)

    async def receive(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            return int.from_bytes((await self.other.receive_bytes())[:4], "big")

    async def received(self, count: int) -> list[int]:
        return [await self.receive() for _ in range(count)]

    async def all_sent(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.sent) < count:
                self.told.clear()
                await self.told.wait()


@asynccontextmanager
async def ends(tls: Tls | None = None) -> AsyncGenerator[Ends]:
    opened: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
    closing, transports = asyncio.Event(), list[asyncio.Transport]()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        assert request.transport is not None
        transports.append(request.transport)
        opened.set_result(socket)
        await closing.wait()
        return socket

    app = web.Application()
    app.router.add_get("/", serve)
    context, name = (True, None) if tls is None else (tls.dialling, tls.node_name)
    server = TestServer(app, scheme="http" if tls is None else "https")
    await server.start_server(ssl=None if tls is None else tls.peers)
    async with (
        server,
        ClientSession() as session,
        session.ws_connect(server.make_url("/"), max_msg_size=0, ssl=context, server_hostname=name) as other,
    ):
        socket = await opened
        outbox = Outbox(socket, transports[0], BUFFER_BYTES)
        carrying = asyncio.create_task(outbox.carry())
        yield Ends(outbox, socket, other, carrying, transports[0])
        closing.set()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def test_a_message_leaves_in_the_call_that_sends_it() -> None:
    async with ends() as it:
        it.send(7)

        assert it.sent == [7]  # no turn of the loop was needed
        assert await it.receive() == 7


async def test_messages_that_a_reader_does_not_take_wait_in_order_and_arrive_once() -> None:
    async with ends() as it:
        count = 0
        while it.outbox.waiting_bytes < 10 * MESSAGE_BYTES:
            it.send(count)
            count += 1
            await asyncio.sleep(0)

        assert len(it.sent) == count - 11  # the one that filled the transport is not told yet
        assert [await it.receive() for _ in range(count)] == list(range(count))
        await it.all_sent(count)
        assert it.sent == list(range(count))
        assert it.outbox.waiting_bytes == 0
        it.send(count)
        assert it.sent[-1] == count  # at once again
        assert await it.receive() == count


async def test_a_message_sent_from_a_when_taken_callback_waits_for_room_like_the_others() -> None:
    # As a leader ships: the next shipment, of several messages, begins when the transport took the one before.
    async with ends() as it:
        rounds, shipped = 40, 0

        def ship() -> None:
            nonlocal shipped
            if shipped < rounds:
                for message in range(3):
                    it.outbox.send((3 * shipped + message).to_bytes(4, "big") * (MESSAGE_BYTES // 4))
                shipped += 1
                it.outbox.when_taken(ship)

        ship()
        received = [await it.receive() for _ in range(3 * rounds)]
        carrying = it.carrying.done()

    assert received == list(range(3 * rounds))
    assert not carrying


async def test_while_messages_wait_another_task_may_wait_for_room_on_the_same_connection() -> None:
    # As the reader of a stream, which answers the pings of a client that reads nothing.
    async with ends() as it:
        count = 0
        while not it.outbox.waiting_bytes:
            it.send(count)
            count += 1
        reading = asyncio.create_task(it.received(count + 1))

        await it.socket.send_bytes(b"\xff" * (4 * BUFFER_BYTES))  # In the same turn.

        received = await reading
    assert [number for number in received if number < count] == list(range(count))
    assert len(received) == count + 1


@pytest.mark.parametrize(
    ("held", "size", "is_queued"),
    [
        (0, MOST_BYTES, False),
        (0, MOST_BYTES + 1, True),
        (BUFFER_BYTES // LOW_PART, 1, False),
        (BUFFER_BYTES // LOW_PART + 1, 1, True),
    ],
)
async def test_a_message_is_queued_if_it_may_have_to_wait_for_room(held: int, size: int, is_queued: bool) -> None:
    async with ends() as it:
        outbox = Outbox(it.socket, Holding(held), BUFFER_BYTES)
        outbox.send(bytes(size))
        assert (outbox.waiting_bytes > 0) == is_queued


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_message_for_which_there_is_just_no_room_once_it_is_encrypted_is_queued(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def fill_up() -> None:
        async with ends(locked_files(tmp_path / "locked", ["n1"]).contexts("n1")) as it:
            count = 0
            while not it.transport.get_write_buffer_size():  # The kernel takes no more, and neither does what is below.
                it.outbox.send(bytes(SMALL_BYTES))
                count += 1
                await asyncio.sleep(0)
            room = BUFFER_BYTES - it.transport.get_write_buffer_size() - FRAME_HEAD_BYTES
            it.outbox.send(bytes(room))

            received = [len(await it.other.receive_bytes()) for _ in range(count + 1)]
        assert received == [SMALL_BYTES] * count + [room]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(fill_up())


async def test_queued_messages_can_be_dropped_for_a_newer_one() -> None:
    async with ends() as it:
        count = 0
        while it.outbox.waiting_bytes < 3 * MESSAGE_BYTES:
            it.send(count)
            count += 1
            await asyncio.sleep(0)
        it.outbox.drop_waiting()
        it.send(count)

        received = [await it.receive() for _ in range(count - 3 + 1)]

    assert received == [*range(count - 3), count]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_was_closed_before_its_outbox_loses_messages_silently(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def waiting_bytes() -> int:
        async with ends() as it:
            it.transport.abort()
            await it.socket.receive()
            outbox = Outbox(it.socket, it.transport, BUFFER_BYTES)
            outbox.send(b"lost")
            return outbox.waiting_bytes

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(waiting_bytes()) == 0


async def test_on_a_broken_connection_a_message_is_lost_silently() -> None:
    async with ends() as it:
        await it.socket.close()
        it.send(1)

        assert it.outbox.waiting_bytes == 0


async def test_a_connection_that_breaks_while_it_is_full_ends_carry() -> None:
    async with ends() as it:
        count = 0
        while not it.outbox.waiting_bytes:
            it.send(count)
            count += 1
            await asyncio.sleep(0)
        transport = it.other.get_extra_info("socket")
        transport.shutdown(2)

        with pytest.raises(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                await it.carrying


class Holding:
    """A buffer that holds so many bytes."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.closing = False
        self.written = b""

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (BUFFER_BYTES, BUFFER_BYTES // LOW_PART)


class Narrow:
    """A socket that takes a message only when it is given room for it."""

    def __init__(self) -> None:
        self.buffer = Holding(BUFFER_BYTES)
        self.taken: list[bytes] = []
        self._room: list[asyncio.Future[None]] = []

    async def send_bytes(self, data: bytes) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(room)
        await room
        self.taken.append(data)

    async def give_room(self) -> None:
        """Let the oldest message that waits pass, once there is one."""
        for _ in range(10):
            await asyncio.sleep(0)
        self._room.pop(0).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def narrow() -> AsyncGenerator[tuple[Narrow, Outbox]]:
    socket = Narrow()
    outbox = Outbox(socket, socket.buffer, BUFFER_BYTES)
    carrying = asyncio.create_task(outbox.carry())
    yield socket, outbox
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)


async def test_a_message_sent_while_a_queued_one_waits_for_room_comes_after_it() -> None:
    async with narrow() as (socket, outbox):
        for message in (b"first", b"queued"):
            outbox.send(message)
        await socket.give_room()  # Now the queued one waits for room, and the queue is empty.
        outbox.send(b"last")
        for _ in range(2):
            await socket.give_room()

        assert socket.taken == [b"first", b"queued", b"last"]


async def test_frames_are_written_directly_while_the_buffer_has_room_and_the_socket_is_open() -> None:
    async with narrow() as (socket, outbox):
        buffer = socket.buffer
        buffer.held = 0
        outbox.send_directly(framed)
        outbox.send(b"direct")
        buffer.held = BUFFER_BYTES
        outbox.send(b"queued")
        buffer.held = 0
        outbox.send(b"after it")
        for _ in range(2):
            await socket.give_room()
        outbox.send(b"direct again")
        assert buffer.written == framed(b"direct") + framed(b"direct again")
        assert socket.taken == [b"queued", b"after it"]

        buffer.closing = True
        with pytest.raises(RuntimeError, match="a message of 4 bytes waits"):  # It is the socket's to refuse it.
            outbox.send(b"lost")
        buffer.closing = False
        outbox.send_directly(None)
        with pytest.raises(RuntimeError, match="a message of 5 bytes waits"):
            outbox.send(b"by it")
        assert buffer.written == framed(b"direct") + framed(b"direct again")


async def test_nothing_is_said_to_be_taken_while_a_queued_message_waits_for_room() -> None:
    told = list[str]()
    async with narrow() as (socket, outbox):
        for message in (b"first", b"queued"):
            outbox.send(message)
        await socket.give_room()
        outbox.when_taken(lambda: told.append("taken"))

        assert (socket.taken, told) == ([b"first"], [])
        await socket.give_room()
        assert (socket.taken, told) == ([b"first", b"queued"], ["taken"])


async def test_an_outbox_that_was_drained_wakes_for_the_next_message_that_finds_no_room() -> None:
    async with narrow() as (socket, outbox):
        for round_of in (b"one", b"two", b"three"):
            outbox.send(round_of)
            await socket.give_room()

        assert socket.taken == [b"one", b"two", b"three"]
