"""A replica's links. Arriving messages become events of the core; messages of the core go to sockets.

No protocol state is kept here, only which socket belongs to which peer. The streams are in `streams`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from ssl import SSLError

from aiohttp import ClientConnectorError, ClientSession

from quire.log import MEMBERSHIP

from ..address import is_here
from ..core import MAX_MEMBERS, Members, events
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
    Removal,
)
from ..ports import Health, Machine, PeerEvents
from .book import Book, believed
from .hello import (
    FOREIGN_CLUSTER,
    LINK_FAILURES,
    OTHER_NODE,
    SAME_NODE,
    ForeignCluster,
    PeerInfo,
    PeerRefused,
    dial,
)
from .links import Link, LinkServer, OtherHistory, PeerReports, failure_of
from .seeds import Seeds
from .sockets import close_socket, end_all
from .streams import Streams
from .trust import Trust

GUEST_S = 600.0
"""A peer that is not a member is forgotten when its link has been down for this long."""
HISTORY_S = 60.0
"""For how long the alarm about a peer of another history lasts after it was heard last. It is dialled every 2 s."""
DOUBT_S = 60.0
"""How often to log that a caller claims to be a member without proving it."""


class Network:
    """A replica's links; implements `LinkEvents`.

    A member is dialled at its address in the log, else at those of other sources (`Book`). A guest, a peer that proved
    itself but is not a member, is dialled at the address that it reports, while there is room, and forgotten some time
    after its link went down.
    """

    def __init__(
        self,
        me: PeerInfo,
        on_report: Callable[[str, PositionReport | LagReport], None],
        on_foreign: Callable[[set[str]], None],
        next_stream_id: Callable[[], int],
        trust: Trust,
        book: Book,
        seeds: Sequence[str],
        max_frame_bytes: int,
        election_timeout_s: float,
    ) -> None:
        """`seeds` are addresses of members whose ids are not known."""
        self._me = me
        self._handle: Callable[[events.Event], None]
        self._on_report = on_report
        self._on_foreign = on_foreign
        self._peers: PeerEvents
        self._machine: Machine
        self._health: Health
        self.trust = trust
        self.book = book
        self._election_timeout_s = election_timeout_s
        self._session: ClientSession | None = None
        self._seeds = Seeds(seeds, self.me, trust, self._seed_found, self._history_met)
        self._directories: dict[str, tuple[PeerInfo, int]] = {}
        """To which peer, and of which record, a directory was sent last."""
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

    def start(self, session: ClientSession) -> None:
        """Dial every peer that the book names, and find out who answers at the seeds."""
        self._session = session
        self.streams.start(session)
        self.follow_book()
        self._seeds.start(session)

    def follow_book(self) -> None:
        """Dial the peers that are named now, and forget the removed that are not connected.

        One that is connected only by its own call stays: the link to it will tell it that it was removed.
        """
        named = self.book.peers()
        for node_id in named:
            self._dial(node_id)
        for node_id, link in list(self._links.items()):
            is_gone = link.peer is None and not self.link_server.is_called_by(node_id)
            if node_id not in named and is_gone and self.book.was_removed(node_id):
                self._forget(node_id)

    def _seed_found(self, node_id: str, address: str) -> None:
        if node_id != self._me.node_id:
            self.book.found(node_id, address)
            self._dial(node_id)

    async def close(self) -> None:
        """Hang up everywhere; nobody is dialled from here on."""
        self._session = None
        self.streams.hang_up_dialled()
        await self._seeds.close()
        await end_all(self._ending)
        for link in list(self._links.values()):
            await link.close()
        await self.streams.close()
        await self.link_server.close()

    def _dial(self, node_id: str) -> None:
        if self._session is None or node_id in self._links or not self.book.addresses_of(node_id):
            return
        if len(self._links) >= MAX_MEMBERS and not self._make_room(node_id):
            return
        self._down_since[node_id] = self._now()
        addresses = partial(self.book.addresses_of, node_id)
        self._links[node_id] = Link(self, self._session, node_id, addresses, self.trust, self._election_timeout_s)

    def _make_room(self, node_id: str) -> bool:
        """Forget a guest to make room for a member: the one whose link has been down for longest, or a linked one."""
        guests = [other for other in self._links if not self.book.is_certain(other)]
        if not guests or not self.book.is_certain(node_id):
            return False
        self._forget(min(guests, key=lambda guest: self._down_since.get(guest, self._now())))
        return True

    def forget_guests(self) -> None:
        """Forget peers that are not members, or no longer, and whose links have been down for long.

        Also those of other histories that are heard no more.
        """
        now, met = self._now(), self.reports.histories
        for node_id, since in list(self._down_since.items()):
            if since <= now - GUEST_S and node_id not in self.book.peers():
                self._forget(node_id)
        for node_id in [node_id for node_id, other in met.items() if other.heard_at <= now - HISTORY_S]:
            del met[node_id]

    def _forget(self, node_id: str) -> None:
        link = self._links.pop(node_id)
        self._ending.add(task := asyncio.create_task(link.close(), name=f"end of link to {node_id}"))
        task.add_done_callback(self._ending.discard)
        reports = self.reports
        for told in (self._down_since, self._directories, reports.failures, reports.codes):
            told.pop(node_id, None)
        self.book.forget(node_id)
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

    def offer_genesis(self, offer: GenesisOffer) -> None:
        """Offer it to the members that belong to no cluster yet; nobody else gets the log."""
        for node_id, link in self._links.items():
            if link.peer is not None and not link.peer.is_formatted and node_id in self.book.peers():
                link.send(offer)

    def send_directory(self, index: int, members: Members) -> None:
        """Tell each peer where the members of the record at `index` are, once per link."""
        for node_id, link in self._links.items():
            peer = link.peer
            if peer is None or MEMBERSHIP not in peer.features or self._directories.get(node_id) == (peer, index):
                continue
            self._directories[node_id] = (peer, index)
            link.send(Directory(index, tuple((member.node_id, member.address) for member in members.members)))

    def send_to_all(self, message: PeerMessage) -> None:
        """Send on the link to every node; lost where there is none."""
        for link in self._links.values():
            link.send(message)

    def address_of(self, node_id: str) -> str | None:
        """HOST:PORT at which this node dials a peer; None if it does not."""
        link = self._links.get(node_id)
        if link is not None and link.peer is not None:
            return link.address
        return None if link is None else next(iter(self.book.addresses_of(node_id)), None)

    async def probe(self, address: str, node_id: str) -> str | None:
        """Why an address must not become that node's: another node or another cluster answers there; None if not.

        Nobody may answer yet. An answer that refuses this node says nothing about who it is.
        """
        if self._session is None:
            return None
        try:
            socket, _ = await dial(self._session, address, self.me, node_id, "peer", self.trust, None)
        except PeerRefused as error:
            return str(error.reason) if error.code in (OTHER_NODE, FOREIGN_CLUSTER, SAME_NODE) else None
        except LINK_FAILURES as error:
            of_another = isinstance(error, ClientConnectorError) and isinstance(error.os_error, SSLError)
            return failure_of(error) if of_another and isinstance(error, Exception) else None
        await close_socket(socket)
        return None

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
        self.reports.histories.pop(peer.node_id, None)
        self._down_since.pop(peer.node_id, None)
        if peer.node_id in self._links:
            self.reports.codes[peer.node_id] = peer.code
        self._handle(events.LinkUp(peer.node_id, peer.disk_id, peer.features, peer.code))
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
        if isinstance(error, ForeignCluster):
            self._history_met(error.peer)
        if not (isinstance(error, PeerRefused) and error.code == FOREIGN_CLUSTER):
            self.reports.foreign.discard(node_id)
        elif isinstance(error, ForeignCluster) or not self.trust.proves:
            self._is_foreign(node_id)

    def peer_foreign(self, peer: PeerInfo) -> None:
        """Raise an alarm. A member's word counts for more if it proved itself: this node may have a wrong disk."""
        self._history_met(peer)
        if peer.node_id in self._links and self.trust.proves:
            self._is_foreign(peer.node_id)

    def _history_met(self, peer: PeerInfo) -> None:
        """Rule 10: a believed peer is of another history. Which of the two goes on, an operator must decide."""
        met = self.reports.histories
        known = met.get(peer.node_id)
        if known is None and len(met) >= MAX_MEMBERS:
            return
        met[peer.node_id] = other = OtherHistory(peer.cluster_id, self._now())
        if known is None:
            self._health.alarmed(other.alarm(peer.node_id))

    def _is_foreign(self, node_id: str) -> None:
        self.reports.foreign.add(node_id)
        self._on_foreign(self.reports.foreign)

    def peer_dialled(self, peer: PeerInfo) -> None:
        """Dial back at once, even a peer that is not known yet: an observer that is in no configuration."""
        self.reports.failures.pop(f"link from {peer.node_id}", None)
        if self.trust.proves or (self.book.was_removed(peer.node_id) and is_here(peer.address)):
            self.book.told(peer.node_id, peer.address)
        self._dial(peer.node_id)
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

    def _removal_claimed(self, node_id: str, index: int) -> None:
        """A peer that proves nothing stops no node: an operator must look."""
        self.reports.alarms["removal"] = (
            f"{node_id} says that this node was removed at index {index}, but proves nothing: compare it with "
            "`quire members`, and stop this node if it is so"
        )

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
            case Directory() if peer.node_id in self.book.peers():
                self.book.learnt(peer.node_id, message.index, believed(self.trust, message))
                self.follow_book()
            case Removal(index) if not self.trust.proves:
                self._removal_claimed(peer.node_id, index)
            case ControlMessage(data):
                self._peers.control_received(peer, data)
            case GenesisOffer() | Directory() | Probe() | ProbeEcho():
                pass  # This node has a genesis; the link server handles probes.
            case _:
                core_message: CoreMessage = message
                self._handle(events.Received(peer.node_id, peer.disk_id, core_message))
