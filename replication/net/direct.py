"""A WebSocket's binary messages, received below aiohttp: no queue, future, task and turn of the loop for each.

`DirectReader` stands between a transport and aiohttp's protocol, and splits what arrives into frames (RFC 6455, 5.2). A
message in one binary frame goes to `take`, in the call that received it. Everything else goes to aiohttp's own reader,
which also answers pings and closing handshakes: each control frame, and for good the first message that is text, comes
in several frames, is large, or is not taken, with all that follows. So messages stay in order.
"""

import asyncio
import os
import time
from collections.abc import Callable

FINAL_BINARY = 0x82  # One frame, no extension.
CONTROL = 0x08  # The bit of the opcodes of pings, pongs and closing handshakes.
MASKED, LENGTH = 0x80, 0x7F
TWO_BYTES, EIGHT_BYTES = 126, 127  # Lengths that announce a longer field.
MASK_BYTES = 4
NO_MASK = bytes(MASK_BYTES)
MOST_BYTES = 1 << 19
"""The largest message that is taken here. What has arrived of one is copied with each piece that follows."""
TELL_S = 1.0
TURN_S = 0.005
"""The time that messages of one socket may take in a turn of the loop."""


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """The payload of a client's frame (RFC 6455, 5.3); with a payload, what is sent for it."""
    if mask == NO_MASK:
        return payload
    size = len(payload)
    key = int.from_bytes((mask * (size // MASK_BYTES + 1))[:size])
    return (int.from_bytes(payload) ^ key).to_bytes(size)


def framed(data: bytes, mask: bytes = b"") -> bytes:
    """A message as one binary frame. A client's has a mask that nobody can foresee (RFC 6455, 10.3)."""
    size, masked = len(data), MASKED if mask else 0
    if size < TWO_BYTES:
        head = bytes((FINAL_BINARY, masked | size))
    elif size < 1 << 16:
        head = bytes((FINAL_BINARY, masked | TWO_BYTES)) + size.to_bytes(2)
    else:
        head = bytes((FINAL_BINARY, masked | EIGHT_BYTES)) + size.to_bytes(8)
    return head + mask + unmasked(data, mask) if mask else head + data


def client_framed(data: bytes) -> bytes:
    """A message of a client as one binary frame."""
    return framed(data, os.urandom(MASK_BYTES))


class Interposed(asyncio.Protocol):
    """Replaces a transport's protocol, and passes on to it what a subclass does not take."""

    def __init__(self, transport: asyncio.Transport) -> None:
        protocol = transport.get_protocol()
        if not isinstance(protocol, asyncio.Protocol):  # It has none any more.
            raise ConnectionResetError("the connection was lost")
        self._transport = transport
        self._protocol = protocol
        transport.set_protocol(self)

    def leave(self) -> None:
        """Restore the replaced protocol."""
        if not self._transport.is_closing() and self._transport.get_protocol() is self:
            self._transport.set_protocol(self._protocol)

    def eof_received(self) -> bool | None:
        """The other end sends nothing more."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """The transport holds much that is not sent."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It holds little again."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._protocol.connection_lost(exc)


class DirectReader(Interposed):
    """Takes the bytes of a transport from aiohttp's protocol. It holds them until `begin`.

    Make it when all that the other end has sent was received: then the next byte begins a frame.
    """

    def __init__(self, transport: asyncio.Transport, clock: Callable[[], float] | None = None) -> None:
        super().__init__(transport)
        self._clock = clock or time.monotonic  # As it is now: whole nodes run in virtual time, too.
        self._take: Callable[[bytes], bool] | None = None
        self._held = b""  # What has arrived of a frame, or waits for `begin` or for the next turn of the loop.
        self._waits = True
        self._told_at = -TELL_S
        self._passes = False  # Whether aiohttp gets everything, for good.

    def begin(self, take: Callable[[bytes], bool]) -> None:
        """From now on, binary messages go to `take`. If it returns False, it has done nothing."""
        self._take = take
        self._go_on()

    def end(self) -> None:
        """From now on, aiohttp gets everything."""
        self._take, self._passes = None, True
        if self._held:
            self._go_on()
        self.leave()

    def data_received(self, data: bytes) -> None:
        """Take what is whole of it, and hold the rest."""
        if self._held:
            data, self._held = self._held + data, b""
        if self._passes:
            self._pass_on(data)
        elif not self._waits:
            self._split(data)
        else:
            self._held = data
            if len(data) > MOST_BYTES and not self._transport.is_closing():
                self._transport.pause_reading()

    def _split(self, data: bytes) -> None:
        began, at, size = self._clock(), 0, len(data)
        self._tell_of_data(began)
        while size - at >= 2 and self._take is not None:
            first, length, body = data[at], data[at + 1] & LENGTH, at + 2
            if length == TWO_BYTES:
                length, body = int.from_bytes(data[body : body + 2]), body + 2
            elif length == EIGHT_BYTES:
                length, body = int.from_bytes(data[body : body + 8]), body + 8
            is_masked = data[at + 1] & MASKED
            if is_masked:
                body += MASK_BYTES
            following = body + length
            is_direct = first == FINAL_BINARY or (first & CONTROL and length < TWO_BYTES)
            if not is_direct or length > MOST_BYTES:
                break
            if following > size:
                self._held = data[at:]
                return
            if first != FINAL_BINARY:
                self._protocol.data_received(data[at:following])
            else:
                payload = data[body:following]
                if not self._take(unmasked(payload, data[body - MASK_BYTES : body]) if is_masked else payload):
                    break
            at = following
            if at < size and self._clock() - began >= TURN_S and self._go_on_later(data[at:]):
                return
        if size - at >= 2 or self._take is None:
            self._take, self._passes = None, True
            self._pass_on(data[at:])
            self.leave()
        else:
            self._held = data[at:]

    def _tell_of_data(self, now: float) -> None:
        """Once in a while, let aiohttp know that the other end is alive: then it need not ping it."""
        told = getattr(self._protocol, "_data_received_cb", None)
        if told is not None and now - self._told_at >= TELL_S:
            self._told_at = now
            told()

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._protocol.data_received(data)

    def _go_on_later(self, data: bytes) -> bool:
        """Leave the rest to the next turn of the loop, unless the connection is being closed."""
        if self._transport.is_closing():
            return False
        self._waits, self._held = True, data
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)
        return True

    def _go_on(self) -> None:
        self._waits = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what has arrived of a frame."""
        self._take, self._held = None, b""
        super().connection_lost(exc)
