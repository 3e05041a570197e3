"""`/peer/snapshot` (rule 16): a snapshot's manifest and chunks, requested one by one. The follower dials.

    follower -> leader   [index, number]; number null: the manifest
    leader -> follower   [length], then the bytes in messages of at most 1 MiB; or ["refused", reason], and the end

It has a socket of its own, so that gigabytes of snapshot delay neither frames nor heartbeats. The follower requests
the next chunk before the last one has arrived, so the socket is never idle. The caller verifies what arrives.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import ClientSession, WSMsgType, web

from quire.log import PayloadInvalid, pack, unpack

from ..errors import ReplicationError
from .hello import (
    LINK_FAILURES,
    MAX_HELLO_BYTES,
    Admit,
    HelloServer,
    PeerInfo,
    PeerRefused,
    check_peer,
    dial,
)
from .sockets import Socket, accept, close_socket
from .trust import Trust
from .wire import MAX_REASON, MAX_U64, BadMessage

PIECE_BYTES = 1 << 20
PART_LIMIT_BYTES = 64 << 20
"""Limit of a manifest or a chunk, which this node must hold in memory."""
ASKED_AHEAD = 2
ANSWER_TIMEOUT_S = 30.0
TAKE_TIMEOUT_S = 30.0
"""If a follower does not read a piece within this time, the socket closes; it redials and keeps what it fetched."""
PING_S = 30.0
FETCHES_LIMIT = 4
"""Fetches served at once; excess ones are refused, and the followers retry."""

_PURPOSE = "snapshot"


class SnapshotRefused(ReplicationError):
    """The leader does not have the snapshot, or cannot read it; the text says which."""


class SnapshotSource(Protocol):
    """This node's snapshots, for peers. Both methods block, and raise `SnapshotRefused`."""

    def manifest(self, index: int) -> bytes:
        """The manifest of a whole snapshot."""
        ...

    def chunk(self, index: int, number: int) -> bytes:
        """One chunk, verified."""
        ...


class SnapshotServer:
    """Serves this node's snapshots to peers. Those in `served` must not be removed."""

    def __init__(
        self, me: Callable[[], PeerInfo], source: SnapshotSource, trust: Trust, admit: Admit | None = None
    ) -> None:
        self._me = me
        self.source = source
        self._hellos = HelloServer(me, _PURPOSE, trust, admit)
        self._open: set[web.WebSocketResponse] = set()
        self._serving: dict[web.WebSocketResponse, int] = {}
        self._closed = False

    @property
    def served(self) -> list[int]:
        """Indices of the snapshots that are being fetched."""
        return list(self._serving.values())

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle one socket until it closes."""
        if self._closed or len(self._open) >= FETCHES_LIMIT:
            raise web.HTTPServiceUnavailable
        socket = await accept(request, MAX_HELLO_BYTES)
        try:
            peer = await self._hellos.answer(request, socket)
            if self._closed or len(self._open) >= FETCHES_LIMIT:  # During the hello.
                raise PeerRefused("busy", "as many snapshots are sent as this node sends at once")
            self._open.add(socket)
            await self._serve_parts(socket, peer)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # A close would wait behind data that the follower does not read.
        except LINK_FAILURES:
            pass  # The follower is gone, or does not speak this protocol; it redials.
        finally:
            self._open.discard(socket)
            self._serving.pop(socket, None)
            await close_socket(socket)
        return socket

    async def _serve_parts(self, socket: web.WebSocketResponse, peer: PeerInfo) -> None:
        while not self._closed:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):  # An idle peer must not keep a snapshot from being removed.
                message = await socket.receive()
            if message.type is not WSMsgType.BINARY:
                return
            check_peer(self._me(), peer)
            index, number = _request_of(message.data)
            self._serving[socket] = index
            try:
                if number is None:
                    data = await asyncio.to_thread(self.source.manifest, index)
                else:
                    data = await asyncio.to_thread(self.source.chunk, index, number)
            except SnapshotRefused as error:
                await socket.send_bytes(pack(["refused", str(error)[:MAX_REASON]]))
                return
            await socket.send_bytes(pack([len(data)]))
            for start in range(0, len(data), PIECE_BYTES):
                async with asyncio.timeout(TAKE_TIMEOUT_S):  # Nor one that reads nothing.
                    await socket.send_bytes(data[start : start + PIECE_BYTES])

    async def close(self) -> None:
        """Hang up on all peers, and refuse new ones."""
        self._closed = True
        self._hellos.close()
        for socket in list(self._open):
            await close_socket(socket)


def _request_of(data: bytes) -> tuple[int, int | None]:
    """Raises BadMessage."""
    row = _row(data)
    if type(row) is not list or len(row) != 2:
        raise BadMessage("a request for a part of a snapshot was expected")
    index, number = row
    if type(index) is not int or not 0 <= index <= MAX_U64 or type(number) not in (int, type(None)):
        raise BadMessage("a request for a part of a snapshot was expected")
    return index, number


def _row(data: bytes) -> object:
    try:
        return unpack(data)
    except PayloadInvalid as error:
        raise BadMessage(str(error)) from error


class SnapshotFetch:
    """A socket on which a snapshot is fetched."""

    def __init__(self, socket: Socket, index: int) -> None:
        self._socket = socket
        self._index = index

    @classmethod
    @asynccontextmanager
    async def dialled(
        cls,
        session: ClientSession,
        me: Callable[[], PeerInfo],
        leader: tuple[str, str],
        index: int,
        trust: Trust,
    ) -> AsyncGenerator["SnapshotFetch"]:
        """A socket to a leader, (node id, HOST:PORT), open while the block runs.

        Raises:
            One of LINK_FAILURES: the leader cannot be reached, or refuses this node.
        """
        leader_id, address = leader
        socket, _ = await dial(session, address, me, leader_id, _PURPOSE, trust, PING_S)
        try:
            yield cls(socket, index)
        finally:
            await close_socket(socket)

    async def manifest(self) -> bytes:
        """The manifest's bytes, not verified.

        Raises:
            SnapshotRefused: the leader has no such snapshot.
            One of LINK_FAILURES: the socket closed.
        """
        await self._ask(None)
        return await self._part()

    async def chunks(self, numbers: Sequence[int]) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (number, bytes) of these chunks, in order, not verified; raises as `manifest`."""
        waiting, asked = deque(numbers), deque[int]()
        while waiting or asked:
            while waiting and len(asked) < ASKED_AHEAD:
                asked.append(waiting.popleft())
                await self._ask(asked[-1])
            yield asked.popleft(), await self._part()

    async def _ask(self, number: int | None) -> None:
        await self._socket.send_bytes(pack([self._index, number]))

    async def _part(self) -> bytes:
        match _row(await self._receive()):
            case [int(length)] if 0 <= length <= PART_LIMIT_BYTES:
                pass
            case ["refused", str(reason)]:
                raise SnapshotRefused(reason)
            case _:
                raise BadMessage("a part of a snapshot was expected")
        data = bytearray()
        while len(data) < length:
            if not (piece := await self._receive()):
                raise BadMessage("an empty piece of a snapshot")  # Any number of them would keep this node waiting.
            data += piece
        if len(data) != length:
            raise BadMessage(f"a part of {length} bytes came with {len(data)}")
        return bytes(data)

    async def _receive(self) -> bytes:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            message = await self._socket.receive()
        if message.type is not WSMsgType.BINARY:
            raise ConnectionResetError("the leader closed it")
        data: bytes = message.data
        return data
