"""An unformatted node on its links, until it has a genesis frame (rule 0)."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiohttp import ClientSession, web

from quire.log import FrameInvalid, Kind, PayloadInvalid, UnknownVersion, decode_system, walk_frames

from ..address import is_address
from ..core.members import Identity, Members
from ..core.membership.formation import Formation
from ..core.messages import Directory, GenesisOffer, PeerMessage
from .book import Book, believed
from .hello import NO_CLUSTER, PeerInfo
from .links import Link, LinkServer, failure_of
from .seeds import Seeds
from .trust import Trust
from .wire import BadMessage


def members_of_genesis(raw: bytes) -> Members:
    """The members in a genesis frame.

    Raises:
        BadMessage: the bytes are not a genesis frame.
    """
    try:
        frames = list(walk_frames(raw))
        first = [(frame.header.index, frame.header.epoch, frame.header.kind) for frame in frames]
        if first != [(0, 0, Kind.SYSTEM)]:
            raise BadMessage("one system frame at index 0, of epoch 0, was expected")
        value: dict[str, Any] = decode_system(frames[0].payload)
        if value.get("type") != "genesis":
            raise BadMessage(f"a genesis was expected, not {value.get('type')!r}")
        members = Members.from_record(value)
        if not all(is_address(member.address) for member in members.members):
            raise BadMessage("a member's address is not HOST:PORT")
        return members
    except (FrameInvalid, UnknownVersion, PayloadInvalid, KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"no genesis frame: {error}") from error


class Forming:
    """Dials the other members; waits until they form the cluster, or until one of them sends a genesis."""

    def __init__(
        self,
        me: Identity,
        address: str,
        initial: list[str],
        book: Book,
        trust: Trust,
        make_genesis: Callable[[Members, frozenset[str]], bytes],
        features: frozenset[str] = frozenset(),
        check_genesis: Callable[[bytes], object] = members_of_genesis,
        seeds: Sequence[str] = (),
    ) -> None:
        """`initial` is empty for a node that joins. `seeds` are addresses of members whose ids are not known.

        `make_genesis` takes the members and the features that all of them offer; `features` are this node's.

        `check_genesis` raises BadMessage for a frame that this node cannot run with; it then waits for another.
        """
        self._me = me
        self._address = address
        self._formation = Formation(me, address, initial)
        self._trust = trust
        self._book = book
        self._seeds = Seeds(seeds, self.me, trust, self._seed_found, self.peer_foreign)
        self._session: ClientSession
        self._make_genesis = make_genesis
        self._found: asyncio.Future[Members | bytes] = asyncio.get_running_loop().create_future()
        """The initial members, once all are connected, or the genesis frame of a cluster formed without this node."""
        self._links: dict[str, Link] = {}
        self._server = LinkServer(self, trust)
        self.failures: dict[str, str] = {}
        self._features = features
        self._check_genesis = check_genesis
        self._offers: dict[str, frozenset[str]] = {}
        self.history = b""
        """Of the cluster, as the peer that sent the genesis says; empty if this node made it."""

    async def run(self, session: ClientSession) -> bytes:
        """Return the genesis frame that this node must store."""
        self._session = session
        self._dial_all()
        self._seeds.start(session)
        self._form_if_due()
        try:
            found = await self._found
            return found if isinstance(found, bytes) else self._make_genesis(found, self._features_of_all())
        finally:
            await self._seeds.close()
            for link in self._links.values():
                await link.close()
            await self._server.close()

    def _dial_all(self) -> None:
        if self._found.done():
            return  # The links are being closed.
        for node_id in self._book.peers() - self._links.keys():
            addresses = partial(self._book.addresses_of, node_id)
            self._links[node_id] = Link(self, self._session, node_id, addresses, self._trust)

    def _seed_found(self, node_id: str, address: str) -> None:
        if node_id != self._me.node_id:
            self._book.found(node_id, address)
            self._dial_all()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle a `/peer` socket."""
        return await self._server.serve(request)

    def awaited(self) -> str:
        """The other initial members, each with its answer; empty if there is no other. Of one that joins, the peers."""
        awaited = [f"{node}: {self._answer_of(node)}" for node in self._formation.others or self._links]
        return ", ".join([*awaited, *(f"{address}: {why}" for address, why in self._seeds.failures.items())])

    def _answer_of(self, node_id: str) -> str:
        for failed in (node_id, f"link from {node_id}"):
            if failed in self.failures:
                return self.failures[failed]
        if node_id not in self._formation.awaited() and node_id in self._formation.others:
            return "reached, waits too"
        return "reached, its cluster is formed" if node_id in self._offers else "not reached yet"

    def _features_of_all(self) -> frozenset[str]:
        return self._features.intersection(*self._offers.values())

    def _form_if_due(self) -> None:
        members = self._formation.members()
        if members is not None and not self._found.done():
            self._found.set_result(members)

    # LinkEvents

    def me(self) -> PeerInfo:
        """This node, of no cluster yet."""
        me = self._me
        return PeerInfo(NO_CLUSTER, me.node_id, me.disk_id, me.incarnation, self._address, self._features)

    def link_up(self, peer: PeerInfo) -> None:
        """Count a peer; form the cluster if it was the last."""
        self.failures.pop(peer.node_id, None)
        self._offers[peer.node_id] = peer.features
        self._formation.linked(peer.node_id, peer.disk_id, peer.address, formatted=peer.is_formatted)
        self._form_if_due()

    def link_down(self, node_id: str, reason: str) -> None:
        """Forget a peer."""
        self.failures[node_id] = reason
        self._formation.unlinked(node_id)

    def link_failed(self, node_id: str, error: Exception) -> None:
        """Note why a peer is not connected."""
        self.failures[node_id] = failure_of(error)

    def peer_dialled(self, peer: PeerInfo) -> None:
        """Only members are dialled."""
        self.failures.pop(f"link from {peer.node_id}", None)
        if (link := self._links.get(peer.node_id)) is not None:
            link.redial_now()

    def peer_doubted(self, node_id: str, reason: str) -> None:
        """Note the refusal: `awaited` reports it, and it is logged while the node waits."""
        self.failures[f"link from {node_id}"] = reason

    def peer_foreign(self, peer: PeerInfo) -> None:
        """No cluster is foreign to a node without one."""

    def duplicate_refused(self, peer: PeerInfo) -> None:
        """Note that a copy of an unformatted node's data_dir is also running."""
        if self._trust.is_member(peer.node_id):
            self.failures[peer.node_id] = "a second process with the same disk runs"

    def peer_replaced(self, peer: PeerInfo) -> None:
        """There are no streams yet to end."""

    def message_received(self, peer: PeerInfo, message: PeerMessage) -> None:
        """Accept a member's genesis, and its directory; an unformatted node ignores everything else."""
        if isinstance(message, Directory) and self._trust.is_member(peer.node_id):
            self._book.learnt(peer.node_id, message.index, believed(self._trust, message))
            self._dial_all()
        if isinstance(message, GenesisOffer) and not self._found.done() and self._trust.is_member(peer.node_id):
            shown = members_of_genesis(message.frame)
            self._check_genesis(message.frame)
            if self._formation.accepts(shown, committed=message.committed):
                self.history = peer.cluster_id if peer.is_formatted else b""
                self._found.set_result(message.frame)
