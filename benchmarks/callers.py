"""Cheap WebSocket callers, so that a benchmark measures the server: hand-made frames, and no task per message.

Each caller has its own connection, keeps `depth` messages in flight, and sends the next one when an answer arrives.
"""

import asyncio
import base64
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from quire.cluster.access.client_credentials import Shown

FINAL_BINARY = 0x82
CLOSE = 0x88
MASKED = 0x80
NO_MASK = bytes(4)  # A mask of zeros is valid and leaves the payload as it is.
TWO_BYTES, EIGHT_BYTES = 126, 127
ANSWER_TIMEOUT_S = 60.0
WARM_S = 0.5

PLAIN = Shown()

Watch = Callable[[], None]


class CallFailed(Exception):
    """A caller was disconnected, or got something other than a result."""


class Messages(Protocol):
    """The messages of one caller."""

    def next(self) -> bytes:
        """The next message."""
        ...

    def check(self, answer: bytes) -> None:
        """Raise CallFailed unless the answer is the expected one."""
        ...


class Measured(NamedTuple):
    """The messages answered in `seconds`, and their sorted waits."""

    messages: int
    seconds: float
    waits_s: list[float]

    def wait_ms(self, share: float) -> float:
        """The percentile of the waits, in milliseconds; `share` is between 0 and 1."""
        return self.waits_s[min(len(self.waits_s) - 1, int(share * len(self.waits_s)))] * 1000


class Caller(asyncio.Protocol):
    """A connection to a WebSocket."""

    def __init__(self, host: str, path: str, messages: Messages, shown: Shown) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.idle: asyncio.Future[None] = loop.create_future()
        self.waits_s: list[float] = []
        self._host, self._path, self._messages, self._shown = host, path, messages, shown
        self._sent: deque[float] = deque()
        self._received = b""
        self._stopping = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        self._upgrade()

    def _upgrade(self) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {self._path} HTTP/1.1", f"Host: {self._host}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"{name}: {value}" for name, value in self._shown.headers.items()]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._transport.write("\r\n".join(lines).encode())

    def send(self) -> None:
        """Send the next message."""
        message = self._messages.next()
        size = len(message)
        if size < TWO_BYTES:
            head = bytes((FINAL_BINARY, MASKED | size))
        elif size < 1 << 16:
            head = bytes((FINAL_BINARY, MASKED | TWO_BYTES)) + size.to_bytes(2, "big")
        else:
            head = bytes((FINAL_BINARY, MASKED | EIGHT_BYTES)) + size.to_bytes(8, "big")
        self._sent.append(time.perf_counter())
        self._transport.write(b"".join((head, NO_MASK, message)))

    def stop(self) -> None:
        """Stop sending. `idle` resolves once everything is answered."""
        self._stopping = True
        if not self._sent and not self.idle.done():
            self.idle.set_result(None)

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle answers. Each one sends the next message."""
        received = self._received + data if self._received else data
        try:
            if not self.opened.done():
                head, end, received = received.partition(b"\r\n\r\n")
                if not end:
                    self._received = head
                    return
                if b" 101 " not in head[:16]:
                    raise CallFailed(head.decode(errors="replace"))
                self.opened.set_result(None)
            self._received = self._take(received)
        except CallFailed as error:
            self._fail(error)

    def _take(self, received: bytes) -> bytes:
        at, size = 0, len(received)
        while size - at >= 2:
            begin, length = at + 2, received[at + 1]
            if length == TWO_BYTES:
                begin, length = at + 4, int.from_bytes(received[at + 2 : at + 4], "big")
            elif length == EIGHT_BYTES:
                begin, length = at + 10, int.from_bytes(received[at + 2 : at + 10], "big")
            if size < begin + length:
                break
            if received[at] == FINAL_BINARY:
                self._answered(received[begin : begin + length])
            elif received[at] == CLOSE:
                raise CallFailed("the connection was closed")
            at = begin + length
        return received[at:]

    def _answered(self, answer: bytes) -> None:
        self._messages.check(answer)
        self.waits_s.append(time.perf_counter() - self._sent.popleft())
        if self._stopping:
            self.stop()
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting futures."""
        self._fail(CallFailed(f"the connection was lost: {exc}"))

    def _fail(self, error: CallFailed) -> None:
        for future in (self.opened, self.idle):
            if not future.done():
                future.set_exception(error)


async def measure(
    host: str,
    port: int,
    callers: Sequence[tuple[str, Messages]],
    depth: int,
    seconds: float,
    watch: Watch,
    shown: Shown = PLAIN,
) -> Measured:
    """Run callers, each given as a path and its messages, for `seconds` after a warm-up of WARM_S.

    `watch` is called at the start and at the end of the measurement. `shown` is what each caller shows and demands.

    Raises:
        CallFailed: a caller got a wrong answer or none.
    """
    loop = asyncio.get_running_loop()
    opened: list[Caller] = []
    for path, messages in callers:
        maker = _maker(host, path, messages, shown)
        _, caller = await loop.create_connection(
            maker, host, port, ssl=shown.context, server_hostname=shown.server_name
        )
        await caller.opened
        opened.append(caller)
    for caller in opened:
        for _ in range(depth):
            caller.send()
    await asyncio.sleep(WARM_S)
    watch()
    began, skipped = time.perf_counter(), [len(caller.waits_s) for caller in opened]
    await asyncio.sleep(seconds)
    took, counted = time.perf_counter() - began, [len(caller.waits_s) for caller in opened]
    watch()
    waits = [
        wait for caller, begin, end in zip(opened, skipped, counted, strict=True) for wait in caller.waits_s[begin:end]
    ]
    for caller in opened:
        caller.stop()
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await asyncio.gather(*(caller.idle for caller in opened))
    for caller in opened:
        caller.close()
    return Measured(len(waits), took, sorted(waits))


def _maker(host: str, path: str, messages: Messages, shown: Shown) -> Callable[[], Caller]:
    return lambda: Caller(host, path, messages, shown)
