"""A node that records the events of its links and streams, and the messages that tests of them send."""

import asyncio
from dataclasses import dataclass, field

from aiohttp import ClientWebSocketResponse, WSMsgType

from quire.replication import Promise
from quire.replication.core.messages import (
    Ack,
    CrcMismatch,
    Heartbeat,
    Open,
    OpenAnswer,
    PeerMessage,
)
from quire.replication.net.hello import PeerInfo
from quire.replication.net.streams import LeaderStream
from quire.replication.net.wire import Assembled, Positions
from tests.replication.loopback import DEADLINE_S

NONCE = bytes(16)
HEARTBEAT = Heartbeat(Promise(3, "n1", 1), 9, 7)
OPENING = Open(Promise(3, "n1", 1), ((0, 0),), 1, 1)
MAX_FRAME_BYTES = 1 << 20


@dataclass
class Recorder:
    """The `LinkEvents` and `StreamEvents` of a node, in order."""

    info: PeerInfo
    up: list[PeerInfo] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    came: list[PeerInfo] = field(default_factory=list)
    duplicates: list[PeerInfo] = field(default_factory=list)
    replaced: list[PeerInfo] = field(default_factory=list)
    doubts: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    said: list[tuple[str, PeerMessage]] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)
    answers: list[OpenAnswer] = field(default_factory=list)
    shipments: list[tuple[bytes, Positions]] = field(default_factory=list)
    opened: list[LeaderStream] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    differs: list[CrcMismatch] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)

    def me(self) -> PeerInfo:
        return self.info

    def link_up(self, peer: PeerInfo) -> None:
        self.up.append(peer)

    def link_down(self, node_id: str, reason: str) -> None:
        self.down.append(node_id)

    def link_failed(self, node_id: str, error: Exception) -> None:
        self.failed.append(str(error))

    def peer_dialled(self, peer: PeerInfo) -> None:
        self.came.append(peer)

    def message_received(self, peer: PeerInfo, message: PeerMessage) -> None:
        self.said.append((peer.node_id, message))

    def duplicate_refused(self, peer: PeerInfo) -> None:
        self.duplicates.append(peer)

    def peer_doubted(self, node_id: str, reason: str) -> None:
        self.doubts.append((node_id, reason))

    def peer_foreign(self, peer: PeerInfo) -> None:
        self.foreign.append(peer.node_id)

    def peer_replaced(self, peer: PeerInfo) -> None:
        self.replaced.append(peer)

    def stream_connected(self, stream_id: int) -> None:
        self.connected.append(stream_id)

    def open_answered(self, stream_id: int, answer: OpenAnswer) -> None:
        self.answers.append(answer)

    def frames_arrived(self, stream_id: int, frames: Assembled, positions: Positions, received_bytes: int) -> None:
        self.shipments.append((frames.raw, positions))

    def stream_opened(self, stream: LeaderStream, opening: Open) -> None:
        stream.stream_id = len(self.opened) + 1
        self.opened.append(stream)

    def ack_arrived(self, stream_id: int, ack: Ack) -> None:
        self.acks.append(ack)

    def crc_mismatch_arrived(self, stream_id: int, differs: CrcMismatch) -> None:
        self.differs.append(differs)

    def shipped(self, stream_id: int, next_index: int, size: int) -> None:
        self.sent.append((next_index, size))

    def stream_closed(self, stream_id: int, reason: str) -> None:
        self.closed.append((stream_id, reason))


async def ended(socket: ClientWebSocketResponse) -> bool:
    """True once the other side hangs up; raises TimeoutError after the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while (await socket.receive()).type is WSMsgType.BINARY:
            pass
    await socket.close()
    return True


async def failing(*_: object) -> None:
    raise RuntimeError("a fault of ours")
