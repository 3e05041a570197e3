"""Limits what slow and stalled callers may cost: request bodies, long responses, and streams.

A request's body is held in memory until the request is answered, and a long response until the caller has read it. The
total of each kind is bounded. If a new piece does not fit, the caller whose transfer has been idle for longest is cut
off; if no transfer is idle, the new one is refused. A transfer that stalls for `STALL_TIMEOUT_S` is always ended, and
so is a body that arrives at less than `BODY_BYTES_PER_S`. A reader that is cut off sees its connection break, repeats
the request, and loses nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aiohttp import web

from quire.replication.net.sockets import close_socket

from ...errors import BodyTimeout, LimitExceeded, Overloaded
from .addresses import LEAST_SHARE_BYTES, full, share_of
from .connections import abort
from .turns import Work

REQUESTS_HELD_BYTES = 128 << 20
RESPONSES_HELD_BYTES = 64 << 20
STALL_TIMEOUT_S = 30.0
IDLE_S = 1.0  # A transfer that moved more recently is not cut off to make room.
PIECE_BYTES = 1 << 16  # Responses up to this size are left to the socket's buffer.
SENDING_COST = 16  # To send so many bytes, even encrypted, costs as much as to encode one.
STALL_CHECKS = 10  # In STALL_TIMEOUT_S. A moving buffer may have the same size twice by chance, not this many times.
BODY_BYTES_PER_S = 4096  # The slowest body. Without this limit, a byte now and then would keep a body open forever.
CLOSE_TIMEOUT_S = 5.0  # For a WebSocket's closing handshake.


@dataclass(eq=False, slots=True)
class _Transfer:
    """A body that is being sent or received. If `complete`, nothing is expected from the caller: it cannot be idle."""

    request: web.Request
    origin: str
    size: int = 0
    complete: bool = False
    moved_at: float = field(default_factory=time.monotonic)


_BODY = web.RequestKey("body", _Transfer)
_RESPONSE = web.RequestKey("response", _Transfer)


class BodyPace:
    """How long to wait for the next piece of a body: it may stall for a while but must be fast enough on average."""

    def __init__(self, stall_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._began_at = clock()

    def patience_s(self, received_bytes: int) -> float:
        """The timeout for the next piece after `received_bytes` have arrived; 0 if they took too long."""
        allowed_s = self._stall_timeout_s + received_bytes / BODY_BYTES_PER_S
        return max(0.0, min(self._stall_timeout_s, self._began_at + allowed_s - self._clock()))


class _HeldBytes:
    """The transfers of one kind, and the bytes that they hold."""

    def __init__(self, limit: int, stall_timeout_s: float, idle_s: float) -> None:
        self._limit = limit
        self._stall_timeout_s = stall_timeout_s
        self._idle_s = idle_s
        self._transfers: set[_Transfer] = set()
        self._of_origin: Counter[str] = Counter()
        self.held_bytes = 0

    def _make_room(self, size: int, transfer: _Transfer) -> bool:
        """Cut off idle callers, the longest idle first, until `size` more bytes fit; return whether they do.

        If only the share of the caller's origin is exceeded, only callers of that origin are cut off.
        """
        share, origin = share_of(self._limit, LEAST_SHARE_BYTES), transfer.origin
        while True:
            full = self.held_bytes + size > self._limit
            held = self._of_origin[origin]
            if not full and (held + size <= share or held == transfer.size):  # One transfer may exceed the share.
                return True
            others = [
                other
                for other in self._transfers
                if not other.complete and other is not transfer and (full or other.origin == origin)
            ]
            oldest = min(others, key=lambda other: other.moved_at, default=None)
            if oldest is None or time.monotonic() - oldest.moved_at < self._idle_s:
                return False
            abort(oldest.request)
            self._forget(oldest)

    def _full(self, size: int, what: str) -> Overloaded:
        is_whole = self.held_bytes + size > self._limit
        return full(self._limit, f"bytes of {what} are held", is_whole=is_whole, least=LEAST_SHARE_BYTES)

    def _grow(self, transfer: _Transfer, size: int) -> None:
        transfer.size += size
        self.held_bytes += size
        self._of_origin[transfer.origin] += size

    def _forget(self, transfer: _Transfer) -> None:
        if transfer in self._transfers:
            self._transfers.remove(transfer)
            self.held_bytes -= transfer.size
            self._of_origin[transfer.origin] -= transfer.size
            if not self._of_origin[transfer.origin]:
                del self._of_origin[transfer.origin]


class RequestBodyLimit(_HeldBytes):
    """The bodies of unanswered requests. One event loop."""

    def __init__(
        self, limit: int = REQUESTS_HELD_BYTES, stall_timeout_s: float = STALL_TIMEOUT_S, idle_s: float = IDLE_S
    ) -> None:
        super().__init__(limit, stall_timeout_s, idle_s)

    async def read(self, request: web.Request, origin: str, limit: int, what: str) -> bytes:
        """The request's whole body, which counts as held until `release`.

        Raises:
            LimitExceeded: it is longer than `limit`; no more than that was read.
            Overloaded: too much is already held for others, and none of them is idle.
            BodyTimeout: nothing arrived for `STALL_TIMEOUT_S`, or the body arrives too slowly (`BodyPace`).
            ConnectionResetError: the caller is gone, or was cut off to make room.
        """
        if request.content_length is not None and request.content_length > limit:
            raise LimitExceeded(what, request.content_length, limit)
        body = request[_BODY] = _Transfer(request, origin)
        self._transfers.add(body)
        pieces: list[bytes] = []
        pace = BodyPace(self._stall_timeout_s)
        while piece := await self._next_piece(request, pace.patience_s(body.size)):
            if body.size + len(piece) > limit:
                raise LimitExceeded(what, body.size + len(piece), limit)
            self._hold(body, len(piece))
            pieces.append(piece)
        body.complete = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self, request: web.Request) -> None:
        """The request is answered."""
        if (body := request.get(_BODY)) is not None:
            del request[_BODY]  # They refer to each other: without this, only the garbage collector frees the body.
            self._forget(body)

    async def _next_piece(self, request: web.Request, patience_s: float) -> bytes:
        if request.content.is_eof():  # All of it has arrived, as for most short bodies: no timer is needed.
            return await request.content.readany()
        try:
            async with asyncio.timeout(patience_s):
                return await request.content.readany()
        except TimeoutError:
            raise BodyTimeout(round(self._stall_timeout_s * 1000)) from None

    def _hold(self, body: _Transfer, size: int) -> None:
        if body not in self._transfers:
            raise ConnectionResetError("the caller was cut off to make room for others")
        body.moved_at = time.monotonic()
        if not self._make_room(size, body) and self.held_bytes > body.size:  # A single one may exceed it.
            raise self._full(size, "request bodies")
        self._grow(body, size)


class ResponseBodyLimit(_HeldBytes):
    """The long responses that are being sent. One event loop."""

    def __init__(
        self, limit: int = RESPONSES_HELD_BYTES, stall_timeout_s: float = STALL_TIMEOUT_S, idle_s: float = IDLE_S
    ) -> None:
        super().__init__(limit, stall_timeout_s, idle_s)

    def reserve(self, request: web.Request, origin: str, size: int) -> None:
        """Count `size` bytes of the response before it is complete; they count as held until `release`.

        Raises:
            Overloaded: too much is held already, and no other caller is idle.
        """
        transfer = request.get(_RESPONSE)
        if transfer is None:
            transfer = _Transfer(request, origin, complete=True)
        more = size - transfer.size
        if not self._make_room(more, transfer) and self.held_bytes > transfer.size:  # A single one may exceed it.
            raise self._full(more, "responses")
        if transfer not in self._transfers:
            request[_RESPONSE] = transfer
            self._transfers.add(transfer)
        self._grow(transfer, more)

    def release(self, request: web.Request) -> None:
        """The response was sent, or will not be."""
        if (transfer := request.get(_RESPONSE)) is not None:
            del request[_RESPONSE]
            self._forget(transfer)

    async def send(
        self, request: web.Request, origin: str, work_of: Callable[[], Work], response: web.StreamResponse
    ) -> web.StreamResponse:
        """Send a long response at the caller's pace; return a short one, or one already started, unchanged.

        Each piece of it waits for its turn, as a part of the request's work.

        Raises:
            Overloaded: too much is held already, and no other caller is idle.
            ConnectionResetError: the caller read nothing for `STALL_TIMEOUT_S`, or was cut off to make room.
        """
        body = response.body if isinstance(response, web.Response) else None
        if not isinstance(body, bytes) or len(body) <= PIECE_BYTES or request.method == "HEAD":
            return response
        self.reserve(request, origin, len(body))
        transfer, work = request[_RESPONSE], work_of()
        work.has_begun = True
        sent = web.StreamResponse(status=response.status, reason=response.reason, headers=response.headers)
        sent.content_length = len(body)
        if response.keep_alive is False:
            sent.force_close()
        try:
            await sent.prepare(request)
            view = memoryview(body)
            for start in range(0, len(body), PIECE_BYTES):
                transfer.complete = True  # It waits for the node, not for the caller.
                await work.turn(0, PIECE_BYTES // SENDING_COST)
                transfer.moved_at, transfer.complete = time.monotonic(), False
                async with asyncio.timeout(self._stall_timeout_s):
                    await sent.write(view[start : start + PIECE_BYTES])
            transfer.moved_at = time.monotonic()
            async with asyncio.timeout(self._stall_timeout_s):
                await sent.write_eof()
        except TimeoutError:
            abort(request)
            raise ConnectionResetError(f"the caller read nothing for {self._stall_timeout_s:g} s") from None
        return sent


async def done_or_stalled(
    request: web.Request, tasks: Collection["asyncio.Task[object]"], is_over: Callable[[], bool]
) -> bool:
    """True once one of a stream's tasks is done or the stream is over; False if a stalled caller was cut off.

    Such a caller gets no closing handshake, which would also wait for it.
    """
    unsent, checks = 0, 0
    while checks < STALL_CHECKS:
        timeout = STALL_TIMEOUT_S / STALL_CHECKS
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if done or is_over():
            return True
        before, unsent = unsent, unsent_bytes(request)
        checks = checks + 1 if unsent and unsent == before else 0
    abort(request)
    return False


async def close(request: web.Request, socket: web.WebSocketResponse) -> None:
    """Close the WebSocket with a handshake; cut the connection if the caller does not answer in time."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await close_socket(socket)
    except TimeoutError:
        abort(request)


def unsent_bytes(request: web.Request) -> int:
    """The bytes that the caller has not read, beyond what the kernel buffers for it."""
    return 0 if request.transport is None else request.transport.get_write_buffer_size()
