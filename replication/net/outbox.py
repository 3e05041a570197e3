"""Messages to one WebSocket, sent at once where nothing has to wait.

`Outbox` sends at once if it need not wait, otherwise from a task: `send_bytes` waits only for a transport whose buffer
is full. So a message is nearly always sent in the call that creates it, without a queue, an event and a turn of the
loop, which are half of the cost of a small message. A coroutine that waits must run in a task, so a message is sent at
once only if the buffer surely has room for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol

Then = Callable[[], None]

FRAME_HEAD_BYTES = 14  # Of a WebSocket's frame, at most.
RECORD_BYTES, RECORD_HEAD_BYTES = 16 << 10, 22  # What a record of TLS 1.3 holds, and what it adds (RFC 8446, 5.2).
LOW_PART = 4  # A full buffer takes more once it holds no more than this part of its limit.


def sent_bytes(size: int) -> int:
    """At most so many bytes are sent for a message: its frame's head may be a TLS record of its own."""
    return size + FRAME_HEAD_BYTES + (size // RECORD_BYTES + 2) * RECORD_HEAD_BYTES


class Sink(Protocol):
    """Either end of a WebSocket in aiohttp."""

    def send_bytes(self, data: bytes) -> Coroutine[object, object, None]:
        """Hand a message to the transport; wait while its buffer is full."""
        ...


class Buffer(Protocol):
    """A transport's buffer of what the kernel has not taken."""

    def get_write_buffer_size(self) -> int:
        """The bytes in it."""
        ...

    def is_closing(self) -> bool:
        """Whether the connection is closed, or being closed."""
        ...

    def write(self, data: bytes) -> None:
        """Hand bytes to the kernel, or keep those that it does not take now."""
        ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Senders wait from when it holds more than `high` bytes until it holds at most `low`."""
        ...


class Outbox:
    """Messages to one socket, in order. `carry` must run as a task: it sends what could not be sent at once."""

    def __init__(self, socket: Sink, buffer: Buffer | None, buffer_bytes: int) -> None:
        """`buffer` is that of the socket's transport, None if the connection is gone; it holds `buffer_bytes`.

        A message that would not fit into it is queued.
        """
        self._socket = socket
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._frame: Callable[[bytes], bytes] | None = None
        self._carried = False  # A queued message is being sent and may wait for room.
        self._waiting: deque[bytes | Then] = deque()
        self._wake = asyncio.Event()
        self.waiting_bytes = 0
        if buffer is not None and not buffer.is_closing():
            buffer.set_write_buffer_limits(buffer_bytes, buffer_bytes // LOW_PART)

    def send(self, data: bytes) -> None:
        """Send a message now, or queue it. A broken socket loses it; the reader of the socket notices that."""
        if self._carried or self._waiting or not self._has_room(len(data)):
            self._waiting.append(data)
            self.waiting_bytes += len(data)
            self._wake.set()
            return
        if self._frame is not None and self._buffer is not None and not self._buffer.is_closing():
            self._buffer.write(self._frame(data))
            return
        sending = self._socket.send_bytes(data)
        try:
            sending.send(None)
        except (StopIteration, ConnectionError):
            return
        sending.close()
        raise RuntimeError(f"a message of {len(data)} bytes waits, although the transport has room for it")

    def _has_room(self, size: int) -> bool:
        """Whether the transport takes so many bytes without waiting: it is not full, and will not be."""
        if self._buffer is None:
            return False
        held = self._buffer.get_write_buffer_size()
        if not held and size < self._buffer_bytes // LOW_PART:
            return True
        return held <= self._buffer_bytes // LOW_PART and held + sent_bytes(size) < self._buffer_bytes

    @property
    def is_behind(self) -> bool:
        """Whether the transport has not taken everything sent so far."""
        return self._carried or bool(self._waiting)

    def when_taken(self, then: Then) -> None:
        """Call `then` once the transport has taken everything sent so far."""
        if self.is_behind:
            self._waiting.append(then)
        else:
            then()

    def send_directly(self, frame: Callable[[bytes], bytes] | None) -> None:
        """From now on, write what need not wait below aiohttp, as the frame that `frame` makes of it; or no longer."""
        self._frame = frame

    def drop_waiting(self) -> None:
        """Drop the queued messages: a newer one replaces them."""
        self._waiting.clear()
        self.waiting_bytes = 0

    async def carry(self) -> None:
        """Send queued messages, until cancelled.

        Raises:
            ConnectionError: the socket is gone.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                waiting = self._waiting.popleft()
                if isinstance(waiting, bytes):
                    self.waiting_bytes -= len(waiting)
                    self._carried = True
                    try:
                        await self._socket.send_bytes(waiting)
                    finally:
                        self._carried = False
                else:
                    waiting()
