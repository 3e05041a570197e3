"""A replica's links. Arriving messages become events of the core; messages of the core go to sockets.

No protocol state is kept here, only which socket belongs to which peer. The streams are in `streams`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from aiohttp import ClientSession

from ..address import is_address
from ..core import MAX_MEMBERS, events
from ..core.messages import (
    ControlMessage,
    CoreMessage,
    Directory,
    GenesisOffer,
    LagReport,
    PeerMessage,
    PositionReport,
    Probe,
    ProbeEcho,
)
from ..ports import Health, Machine, PeerEvents
from .hello import FOREIGN_CLUSTER, ForeignCluster, PeerInfo, PeerRefused
from .links import Link, LinkServer, PeerReports, failure_of
from .sockets import end_all
from .streams import Streams
from .trust import Trust

GUEST_S = 600.0
"""A peer that is not a member is forgotten when its link has been down for this long."""
DOUBT_S = 60.0
"""How often to log that a caller claims to be a member without proving it."""


class Network:
    """A replica's links; implements `LinkEvents`.

    Members are dialled at their addresses in the configuration or the log. A guest, a peer that proved itself but is
    not a member, is dialled at the address that it reports, while there is room, and forgotten some time after
    its link went down.
    """

    def __init__(
        self,
        me: PeerInfo,
        on_report: Callable[[str, PositionReport | LagReport], None],
        on_foreign: Callable[[set[str]], None],
        next_stream_id: Callable[[], int],
        trust: Trust,
        member_address: Callable[[str], str | None],
        max_frame_bytes: int,
        election_timeout_s: float,
    ) -> None:
        """`member_address` returns a member's address in the log, None for a node that is not a member there."""
        self._me = me
        self._handle: Callable[[events.Event], None]
        self._on_report = on_report
        self._on_foreign = on_foreign
        self._peers: PeerEvents
        self._machine: Machine
        self._health: Health
        self.trust = trust
        self._member_address = member_address
        self._election_timeout_s = election_timeout_s
        self._session: ClientSession | None = None
        self._configured: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._down_since: dict[str, float] = {}
        self._doubted_at: dict[str, float] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.reports = PeerReports()
        self.link_server = LinkServer(self, trust, election_timeout_s)
        self.streams = Streams(
            self.me,
            on_report,
            next_stream_id,
            trust,
            self.address_of,
            self.link_server.admit,
            self.reports,
            max_frame_bytes,
            election_timeout_s,
        )
        self._enforced: frozenset[str] = frozenset()

    def connect(
        self, handle: Callable[[events.Event], None], peers: PeerEvents, machine: Machine, health: Health
    ) -> None:
        """Report to these; `handle` gets what a rule of the core reads."""
        self._handle, self._peers, self._machine, self._health = handle, peers, machine, health
        self.streams.connect(handle)

    def start(self, session: ClientSession, urls: dict[str, str]) -> None:
        """Dial every peer; `urls` are HOST:PORT by node id."""
        self._session = session
        self.streams.start(session)
        self._configured = urls
        for node_id, url in urls.items():
            self._dial(node_id, url)

    async def close(self) -> None:
        """Hang up everywhere."""
        self.streams.hang_up_dialled()
        await end_all(self._ending)
        for link in list(self._links.values()):
            await link.close()
        await self.streams.close()
        await self.link_server.close()

    def _dial(self, node_id: str, url: str | None) -> None:
        if self._session is None or node_id in self._links or url is None or not is_address(url):
            return
        if len(self._links) >= MAX_MEMBERS and not self._make_room(node_id):
            return
        self._urls[node_id] = url
        self._down_since[node_id] = self._now()
        self._links[node_id] = Link(self, self._session, node_id, url, self.trust, self._election_timeout_s)

    def _url_of(self, peer: PeerInfo) -> str | None:
        """Where to dial a peer that dialled this node: a member at its known address, whatever it reports."""
        if self.trust.is_member(peer.node_id):
            return self._configured.get(peer.node_id) or self._member_address(peer.node_id)
        return peer.address if self.trust.proves else None

    def _make_room(self, node_id: str) -> bool:
        """Forget a guest to make room for a member: the one whose link has been down for longest, or a linked one."""
        guests = [other for other in self._links if not self.trust.is_member(other)]
        if not guests or not self.trust.is_member(node_id):
            return False
        self._forget(min(guests, key=lambda guest: self._down_since.get(guest, self._now())))
        return True

    def forget_guests(self) -> None:
        """Forget peers that are not members and whose links have been down for long."""
        latest = self._now() - GUEST_S
        for node_id, since in list(self._down_since.items()):
            if since <= latest and not self.trust.is_member(node_id):
                self._forget(node_id)

    def _forget(self, node_id: str) -> None:
        link = self._links.pop(node_id)
        self._ending.add(task := asyncio.create_task(link.close(), name=f"end of link to {node_id}"))
        task.add_done_callback(self._ending.discard)
        reports = self.reports
        for told in (self._urls, self._down_since, reports.failures, reports.codes):
            told.pop(node_id, None)
        reports.failures.pop(f"stream with {node_id}", None)
        reports.foreign.discard(node_id)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def dial_again(self, reason: str) -> None:
        """End what this node dialled, and dial it again."""
        for link in self._links.values():
            link.hang_up()
        self.streams.end_dialled(reason)

    def enforce_features(self) -> None:
        """Once a feature is in the log, hang up on peers that lack it. They are refused from then on."""
        requires = self.me().requires
        if requires == self._enforced:
            return
        self._enforced = requires
        for link in self._links.values():
            if link.peer is not None and not requires <= link.peer.features:
                link.hang_up()
        self.link_server.hang_up_without(requires)
        self.streams.hang_up_without(requires)

    # Sending

    def send(self, node_id: str, message: PeerMessage) -> None:
        """Send on the link to a node; lost if there is none."""
        link = self._links.get(node_id)
        if link is not None:
            link.send(message)

    def unformatted(self) -> list[str]:
        """The linked nodes that belong to no cluster yet."""
        return [node for node, link in self._links.items() if link.peer is not None and not link.peer.is_formatted]

    def send_to_all(self, message: PeerMessage) -> None:
        """Send on the link to every node; lost where there is none."""
        for link in self._links.values():
            link.send(message)

    def address_of(self, node_id: str) -> str | None:
        """HOST:PORT at which this node dials a peer; None if it knows none."""
        return self._urls.get(node_id)

    # LinkEvents

    def me(self) -> PeerInfo:
        """This node."""
        if self._me.requires != self._machine.features:
            self._me = replace(self._me, requires=self._machine.features)
        return self._me

    def link_up(self, peer: PeerInfo) -> None:
        """Messages to this peer can arrive now."""
        self.reports.failures.pop(peer.node_id, None)
        self.reports.foreign.discard(peer.node_id)
        self._down_since.pop(peer.node_id, None)
        if peer.node_id in self._links:
            self.reports.codes[peer.node_id] = peer.code
        self._handle(events.LinkUp(peer.node_id, peer.disk_id, peer.features))
        self._peers.peer_linked(peer.node_id)

    def link_down(self, node_id: str, reason: str) -> None:
        """Messages to this peer are lost from now on."""
        if node_id in self._links:
            self._down_since[node_id] = self._now()
            self.reports.failures[node_id] = reason
        self._handle(events.LinkDown(node_id))
        self._peers.peer_unlinked(node_id)

    def link_failed(self, node_id: str, error: Exception) -> None:
        """Note the reason; the link redials. A refusal proves nothing if the peer has not proved a secret yet."""
        if node_id not in self._links:
            return
        self.reports.failures[node_id] = failure_of(error)
        if not (isinstance(error, PeerRefused) and error.code == FOREIGN_CLUSTER):
            self.reports.foreign.discard(node_id)
        elif isinstance(error, ForeignCluster) or not self.trust.proves:
            self._is_foreign(node_id)

    def peer_foreign(self, node_id: str) -> None:
        """A peer of another cluster proved itself to this node."""
        if node_id in self._links:
            self._is_foreign(node_id)

    def _is_foreign(self, node_id: str) -> None:
        self.reports.foreign.add(node_id)
        self._on_foreign(self.reports.foreign)

    def peer_dialled(self, peer: PeerInfo) -> None:
        """Dial back at once, even a peer that is not known yet: an observer that is in no configuration."""
        self.reports.failures.pop(f"link from {peer.node_id}", None)
        url = self._url_of(peer)
        if peer.node_id in self._links and self.trust.is_member(peer.node_id) and url != self._urls[peer.node_id]:
            self._forget(peer.node_id)  # It was a guest at another address, and has since become a member in the log.
        self._dial(peer.node_id, url)
        if (link := self._links.get(peer.node_id)) is not None:
            link.redial_now()

    def peer_doubted(self, node_id: str, reason: str) -> None:
        """Log it, rate-limited, so that a caller that keeps claiming a member's id does not fill the journal."""
        self.reports.failures[f"link from {node_id}"] = reason
        now = self._now()
        if now - self._doubted_at.get(node_id, -DOUBT_S) >= DOUBT_S:
            self._doubted_at[node_id] = now
            self._health.alarmed(f"{node_id} was refused: {reason}")

    def is_member(self, node_id: str) -> bool:
        """Whether a node is in `--members` or in the log's members record: only about members is anything reported."""
        return self.trust.is_member(node_id)

    def is_linked(self, node_id: str) -> bool:
        """Whether messages to that node can arrive."""
        return (link := self._links.get(node_id)) is not None and link.peer is not None

    def duplicate_refused(self, peer: PeerInfo) -> None:
        """Rule 10: a copy of a running node's data_dir is also running. It was refused; raise a lasting alarm."""
        if not self.trust.is_member(peer.node_id):
            return
        text = f"a second process of {peer.node_id} ({peer.address}) runs with the same disk: stop it, it is a copy"
        self.reports.alarms[peer.node_id] = text
        self._health.alarmed(text)

    def peer_replaced(self, peer: PeerInfo) -> None:
        """End the streams of a process that was replaced, too."""
        self.streams.server.hang_up(peer)

    def message_received(self, peer: PeerInfo, message: PeerMessage) -> None:
        """Pass on a message: to the core if a rule reads it, else to the replica or the control plane."""
        match message:
            case PositionReport() | LagReport():
                self._on_report(peer.node_id, message)
            case ControlMessage(data):
                self._peers.control_received(peer, data)
            case GenesisOffer() | Directory() | Probe() | ProbeEcho():
                pass  # This node has a genesis; the link server handles probes.
            case _:
                core_message: CoreMessage = message
                self._handle(events.Received(peer.node_id, peer.disk_id, core_message))
