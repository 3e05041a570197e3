"""A replica's links and streams: what arrives becomes events, what the core asks to send leaves.

It keeps no protocol state: only which socket has which number.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Never

from aiohttp import ClientSession

from ..core import MAX_MEMBERS, actions, events
from ..core.messages import (
    Ack,
    ControlMessage,
    CoreMessage,
    CrcMismatch,
    GenesisOffer,
    LagReport,
    Open,
    OpenAnswer,
    PeerMessage,
    PositionReport,
    Probe,
    ProbeEcho,
)
from ..owner import Owner
from .hello import FOREIGN_CLUSTER, PeerRefused, Who
from .links import Link, LinkServer
from .streams import DownstreamSocket, StreamServer, UpstreamSocket
from .wire import Assembled, Positions, Shipment


@dataclass(slots=True)
class UpstreamProgress:
    """The stream that this node follows, for status: where it began, what came since."""

    stream_id: int
    from_index: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class PeerReports:
    """What peers said that no rule reads."""

    failures: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    alarms: dict[str, str] = field(default_factory=dict)
    upstream: UpstreamProgress | None = None


class Network:
    """Implements `LinkOwner` and `StreamOwner` for a replica."""

    def __init__(
        self,
        who: Who,
        handle: Callable[[events.Event], None],
        on_aside: Callable[[Who, PositionReport | LagReport], None],
        on_foreign: Callable[[set[str]], None],
        owner: Owner[Never],
        stream_id: Callable[[], int],
        secret: bytes | None,
        max_frame_bytes: int,
    ) -> None:
        self._who = who
        self._handle = handle
        self._on_aside = on_aside
        self._on_foreign = on_foreign
        self._owner = owner
        self._stream_id = stream_id
        self._secret = secret
        self._max_frame_bytes = max_frame_bytes
        self._session: ClientSession | None = None
        self._urls: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._upstreams: dict[int, UpstreamSocket] = {}
        self._downstreams: dict[int, DownstreamSocket] = {}
        self.link_server = LinkServer(self, secret)
        self.stream_server = StreamServer(self, secret, self.link_server.admit)
        self.reports = PeerReports()

    def start(self, session: ClientSession, urls: dict[str, str]) -> None:
        """Dial every peer; `urls` are HOST:PORT by node id."""
        self._session = session
        for node_id, url in urls.items():
            self._dial(node_id, url)

    async def close(self) -> None:
        """Hang up everywhere."""
        hung_up = [upstream.close() for upstream in self._upstreams.values()]
        await asyncio.gather(*hung_up, return_exceptions=True)
        for link in list(self._links.values()):
            await link.close()
        await self.stream_server.close()
        await self.link_server.close()

    def _dial(self, node_id: str, url: str) -> None:
        if self._session is not None and node_id not in self._links and len(self._links) < MAX_MEMBERS:
            self._urls[node_id] = url
            self._links[node_id] = Link(self, self._session, node_id, url, self._secret)

    # What the core and the replica send

    def send(self, node_id: str, message: PeerMessage) -> None:
        """Send on the link to a node; lost if there is none."""
        link = self._links.get(node_id)
        if link is not None:
            link.send(message)

    def dial_stream(self, action: actions.DialStream) -> None:
        """Dial the leader; a leader that this node has no address of is a closed stream."""
        url = self._urls.get(action.leader_id)
        if url is None or self._session is None:
            self._handle(events.StreamClosed(action.stream_id))
            return
        self._upstreams[action.stream_id] = UpstreamSocket(
            self, self._session, action.stream_id, (action.leader_id, url), self._secret, self._max_frame_bytes
        )

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        """Say something to the leader."""
        if (upstream := self._upstreams.get(stream_id)) is not None:
            upstream.send(message)

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> None:
        """Say something to a follower."""
        if (downstream := self._downstreams.get(stream_id)) is not None:
            downstream.send(message)

    def close_stream(self, stream_id: int) -> None:
        """Hang up one stream, whichever end it is."""
        if (upstream := self._upstreams.pop(stream_id, None)) is not None:
            upstream.close()
        if (downstream := self._downstreams.pop(stream_id, None)) is not None:
            downstream.hang_up()

    def unformatted(self) -> list[str]:
        """The linked nodes that have no cluster yet."""
        return [node for node, link in self._links.items() if link.peer is not None and not link.peer.is_formatted]

    def show_genesis(self, node_id: str, frame: bytes, *, committed: bool) -> None:
        """Show an unformatted node what cluster there is."""
        self.send(node_id, GenesisOffer(frame, committed))

    def address_of(self, node_id: str) -> str | None:
        """Where this node dials a peer, None of one that it does not know."""
        return self._urls.get(node_id)

    # LinkOwner

    def who(self) -> Who:
        """This node."""
        return self._who

    def link_up(self, peer: Who) -> None:
        """What is sent to it now can arrive."""
        self.reports.failures.pop(peer.node_id, None)
        self.reports.foreign.discard(peer.node_id)
        self._handle(events.LinkUp(peer.node_id, peer.disk_id))
        self._owner.peer_linked(peer.node_id)

    def link_down(self, node_id: str, reason: str) -> None:
        """What is sent to it is lost."""
        self.reports.failures[node_id] = reason
        self._handle(events.LinkDown(node_id))
        self._owner.peer_unlinked(node_id)

    def link_failed(self, node_id: str, error: Exception) -> None:
        """Note why; it is dialled again."""
        self.reports.failures[node_id] = str(error) or type(error).__name__
        foreign = isinstance(error, PeerRefused) and error.code == FOREIGN_CLUSTER
        (self.reports.foreign.add if foreign else self.reports.foreign.discard)(node_id)
        if foreign:
            self._on_foreign(self.reports.foreign)

    def peer_came(self, peer: Who) -> None:
        """Dial back whoever is not known yet: an observer that no configuration names."""
        self._dial(peer.node_id, peer.address)

    def twin_came(self, peer: Who) -> None:
        """Rule 10: a copy of a running node's data_dir runs, too. It was refused; the alarm stays."""
        text = f"a second process of {peer.node_id} ({peer.address}) runs with the same disk: stop it, it is a copy"
        self.reports.alarms[peer.node_id] = text
        self._owner.alarmed(text)

    def peer_replaced(self, peer: Who) -> None:
        """The streams of a process that does not answer end with its link."""
        self.stream_server.hang_up(peer)

    def peer_said(self, peer: Who, message: PeerMessage) -> None:
        """Pass on what concerns a rule, and set the rest aside."""
        match message:
            case PositionReport() | LagReport():
                self._on_aside(peer, message)
            case ControlMessage(data):
                self._owner.control_received(peer, data)
            case GenesisOffer() | Probe() | ProbeEcho():
                pass  # this node has a genesis; the link server has taken the others
            case _:
                core_message: CoreMessage = message
                self._handle(events.Received(peer.node_id, peer.disk_id, core_message))

    # StreamOwner

    def stream_connected(self, stream_id: int) -> None:
        """The stream that this node dialled stands."""
        self.reports.upstream = UpstreamProgress(stream_id)
        self.reports.failures.pop(f"stream with {self._upstreams[stream_id].peer_id}", None)
        self._handle(events.StreamConnected(stream_id))

    def open_answered(self, stream_id: int, answer: OpenAnswer) -> None:
        """The leader answered the opening."""
        if self.reports.upstream is not None and self.reports.upstream.stream_id == stream_id:
            self.reports.upstream.from_index = answer.index
        self._handle(events.OpenAnswered(stream_id, answer))

    def frames_arrived(self, stream_id: int, frames: Assembled, positions: Positions, received_bytes: int) -> None:
        """A shipment arrived."""
        if self.reports.upstream is not None and self.reports.upstream.stream_id == stream_id:
            self.reports.upstream.received_bytes += received_bytes
        self._handle(
            events.FramesArrived(
                stream_id, frames.raw, frames.last_epoch, positions.commit_index, positions.durable_index
            )
        )

    def stream_opened(self, downstream: DownstreamSocket, opening: Open) -> None:
        """A follower opened a stream."""
        stream_id = self._stream_id()
        downstream.stream_id = stream_id
        self._downstreams[stream_id] = downstream
        peer = downstream.peer
        self.reports.failures.pop(f"stream with {peer.node_id}", None)
        self._handle(events.StreamOpened(stream_id, peer.node_id, peer.disk_id, opening))

    def ack_arrived(self, stream_id: int, ack: Ack) -> None:
        """A follower acknowledged."""
        downstream = self._downstreams.get(stream_id)
        if downstream is not None:
            self._on_aside(downstream.peer, PositionReport(ack.plain_durable_index, ack.applied_index, ack.digest))
            self._handle(events.AckArrived(stream_id, ack))

    def crc_mismatch_arrived(self, stream_id: int, differs: CrcMismatch) -> None:
        """A follower's frame is not this leader's."""
        if stream_id in self._downstreams:
            self._handle(events.CrcMismatchArrived(stream_id, differs))

    def shipped(self, stream_id: int, next_index: int, size: int) -> None:
        """A shipment left."""
        self._handle(events.Shipped(stream_id, next_index, size))

    def stream_closed(self, stream_id: int, reason: str) -> None:
        """A stream ended."""
        known = self._upstreams.pop(stream_id, None) or self._downstreams.pop(stream_id, None)
        if known is not None:
            self.reports.failures[f"stream with {known.peer_id}"] = reason
            self._handle(events.StreamClosed(stream_id))
