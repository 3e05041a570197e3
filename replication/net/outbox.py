"""What leaves by one WebSocket: at once where nothing has to be waited for, else by a task.

`send_bytes` waits only for a transport whose buffer is full. So a message can nearly always leave in the call that
makes it, which spares a queue, an event and a turn of the loop: half of what a small message costs.
"""

import asyncio
import types
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Protocol

Then = Callable[[], None]


class Socket(Protocol):
    """Either end of a WebSocket, as aiohttp has them."""

    def send_bytes(self, data: bytes) -> Coroutine[Any, Any, None]:
        """Hand a message to the transport; wait while its buffer is full."""
        ...


@asynccontextmanager
async def beside(sending: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run `sending` as long as the block runs. If it dies, of whatever, the block ends and raises that."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sending)
            yield
            task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class Outbox:
    """Messages to one socket, in order. `carry` must run beside it; it sends what could not leave at once."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._begun: tuple[Coroutine[Any, Any, None], Any] | None = None
        self._waiting: deque[bytes | Then] = deque()
        self._wake = asyncio.Event()
        self.waiting_bytes = 0

    def send(self, data: bytes) -> None:
        """Send a message now, or let it wait. It is lost on a connection that is gone: whoever reads it is told."""
        if self._begun is not None or self._waiting:
            self._waiting.append(data)
            self.waiting_bytes += len(data)
            return
        sending = self._socket.send_bytes(data)
        try:
            awaited = sending.send(None)
        except (StopIteration, ConnectionError):
            return
        # The transport has one future for all who wait for room. It believes now that a task is about to wait for it,
        # and would refuse the next one that does.
        awaited._asyncio_future_blocking = False  # noqa: SLF001  # part of the protocol between futures and tasks
        self._begun = (sending, awaited)
        self._wake.set()

    def when_taken(self, then: Then) -> None:
        """Call `then` once the transport took all that was sent so far."""
        if self._begun is not None or self._waiting:
            self._waiting.append(then)
        else:
            then()

    def drop_waiting(self) -> None:
        """Forget what waits: something newer says all of it."""
        self._waiting.clear()
        self.waiting_bytes = 0

    async def carry(self) -> None:
        """Send what waits, until cancelled.

        Raises:
            ConnectionError: the connection is gone.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._begun is not None or self._waiting:
                if self._begun is not None:  # also what one of those below began
                    await _go_on(*self._begun)
                    self._begun = None
                    continue
                waiting = self._waiting.popleft()
                if isinstance(waiting, bytes):
                    self.waiting_bytes -= len(waiting)
                    await self._socket.send_bytes(waiting)
                else:
                    waiting()


@types.coroutine
def _go_on(sending: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Await what a coroutine waits for that was begun by hand, and let it run on."""
    try:
        yield from awaited
        yield from sending
    finally:
        sending.close()
