"""The handshake of every socket between nodes (rule 10): which node is this, of which cluster, and does it prove it?

    dialled -> dialler   Challenge {protocols, nonce}
    dialler -> dialled   Hello {protocol, purpose, info, nonce, mac}
    dialled -> dialler   Welcome {info, mac}   or   Refused {code, reason}, and the end

A peer of another history gets a welcome as well, before the end: both have the other's proof, and a refusal has none.

A challenge has the lowest and the highest protocol of its sender, a hello the one that the dialler chose. An info has
the features that its sender's program offers, and the fingerprint of its machine's code, which no rule reads. A peer
that does not offer a feature in the log is refused.

`mac` is HMAC-SHA256 over the protocol (and the challenge's range), the sender's role, both nonces, the purpose and its
PeerInfo, so neither a replay nor a reflection passes, and no man in the middle can lower the protocol. Without a peer
secret it is empty; a node with a secret refuses a peer without one. A node may accept several secrets (`trust`): it
proves the first one when it dials, and the one that the dialler proved when it is dialled, so that secrets can be
rotated. With certificates, both ends have proved their names before the hello, which must then name the same nodes.
"""

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import (
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
    web,
)

from quire.log import MAX_FEATURE_LENGTH, MAX_FEATURES, PayloadInvalid, check_containers, pack, unpack

from ..address import host_and_port, is_address
from ..core.members import NODE_ID
from ..errors import ReplicationError
from ..names import names_of
from .sockets import HELLO_TIMEOUT_S, Socket, close_socket, drop_frames, of_a_stranger
from .trust import Trust
from .wire import MAX_MESSAGE_BYTES, MAX_U64, BadMessage

LOWEST_PROTOCOL, HIGHEST_PROTOCOL = 1, 1  # Of those that this program speaks.
INFO_FIELDS = 7
PEER_PATH = "/peer"
STREAM_PATH = "/peer/stream"
SNAPSHOT_PATH = "/peer/snapshot"
PATHS = {"peer": PEER_PATH, "stream": STREAM_PATH, "snapshot": SNAPSHOT_PATH}
"""The path of each purpose of a socket. Every socket begins with a hello."""
PEER_PATHS = frozenset(PATHS.values())
NONCE_BYTES = 16
ID_BYTES = 16
NO_CLUSTER = bytes(ID_BYTES)
CODE_BYTES = 32
UNKNOWN_CODE = b""
FOREIGN_CLUSTER = "foreign_cluster"
DUPLICATE = "twin"
SAME_NODE = "same_node"
OTHER_NODE = "other_node"
LACKS_FEATURES = "features"
STRANGER = "stranger"
OTHER_CERTIFICATE = "certificate"
MAX_HELLO_BYTES = 1 << 14
"""Of one message of the hello."""
MAX_HELLO_CONTAINERS = 64
"""Arrays and maps in one message of the hello, nested ones counted."""
MAX_UNPROVED_BYTES = 2 * MAX_HELLO_BYTES + 1024
"""The maximum that either end accepts in a hello, including WebSocket framing. A dialler gets two messages."""
UNPROVED_LIMIT = 64
"""Sockets of one server that are in their hello; a newer one ends the oldest. A hello takes one or two round trips."""
ENDS = frozenset({WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED})
WS_TIMEOUT = ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]  # it does not read attr.ib


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What a node reports about itself. `cluster_id` is all zeros while it is unformatted.

    `features` are those that its program offers. `requires` are those in its log; it does not send them, but refuses a
    peer that lacks one. `code` is the fingerprint of its machine's code, `UNKNOWN_CODE` for a machine without source.
    """

    cluster_id: bytes
    node_id: str
    disk_id: bytes
    incarnation: int
    address: str
    features: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    code: bytes = UNKNOWN_CODE

    @property
    def is_formatted(self) -> bool:
        """Whether it belongs to a cluster."""
        return self.cluster_id != NO_CLUSTER


class PeerRefused(ReplicationError):
    """This node and its peer must not communicate; `code` is stable, `reason` is for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class UnequalSecrets(PeerRefused):
    """The peer does not prove a secret of this node. It claims to be `node_id`."""

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__("peer_secret", f"the peer secrets of {node_id} and of this node do not match: {why}")
        self.node_id = node_id


class OtherCertificate(PeerRefused):
    """The peer claims to be `node_id`, and shows the certificate of another node."""

    def __init__(self, peer: PeerInfo, why: str) -> None:
        super().__init__(OTHER_CERTIFICATE, why)
        self.node_id = peer.node_id


class ForeignCluster(PeerRefused):
    """This node refuses a peer of another cluster, or of another history of this one, which proved what it must.

    A refusal by the peer is a plain `PeerRefused`.
    """

    def __init__(self, peer: PeerInfo) -> None:
        super().__init__(
            FOREIGN_CLUSTER, f"{peer.node_id} is of cluster {peer.cluster_id.hex()}, which is not this one"
        )
        self.peer = peer


LINK_FAILURES = (ClientError, OSError, asyncio.TimeoutError, BadMessage, PeerRefused)
"""Errors that end a socket between nodes and are not bugs of this program."""


def _row(info: PeerInfo) -> list[object]:
    identity = [info.cluster_id, info.node_id, info.disk_id, info.incarnation, info.address]
    return [*identity, sorted(info.features), info.code]


def _peer_info(row: object) -> PeerInfo:
    if type(row) is not list or len(row) != INFO_FIELDS:
        raise BadMessage("a hello of another shape")
    cluster_id, node_id, disk_id, incarnation, address, features, code = row
    ids = type(cluster_id) is bytes and type(disk_id) is bytes and len(cluster_id) == len(disk_id) == ID_BYTES
    named = type(node_id) is str and NODE_ID.fullmatch(node_id) is not None and is_address(address)
    if not ids or not named or type(incarnation) is not int or not 0 <= incarnation <= MAX_U64:
        raise BadMessage("a hello of another shape")
    return PeerInfo(cluster_id, node_id, disk_id, incarnation, address, _features(features), code=_code(code))


def _features(names: object) -> frozenset[str]:
    if type(names) is not list or len(names) > MAX_FEATURES:
        raise BadMessage("a hello of another shape")
    if any(type(name) is not str or not 0 < len(name) <= MAX_FEATURE_LENGTH for name in names):
        raise BadMessage("a hello of another shape")
    return frozenset(names)


def _code(code: object) -> bytes:
    if type(code) is not bytes or len(code) not in (0, CODE_BYTES):
        raise BadMessage("a hello of another shape")
    return code


def mac(
    secret: bytes | None,
    role: str,
    dialled_nonce: bytes,
    dialler_nonce: bytes,
    purpose: str,
    info: PeerInfo,
    protocol: int = HIGHEST_PROTOCOL,
    offered: tuple[int, int] = (LOWEST_PROTOCOL, HIGHEST_PROTOCOL),
) -> bytes:
    """The proof that the sender knows the secret; empty without one. `offered` is the range of the challenge."""
    if secret is None:
        return b""
    said = [[protocol, *offered], role, dialled_nonce, dialler_nonce, purpose, _row(info)]
    return hmac.digest(secret, pack(said), "sha256")


def _is_foreign(me: PeerInfo, peer: PeerInfo) -> bool:
    return me.is_formatted and peer.is_formatted and me.cluster_id != peer.cluster_id


def check_peer(me: PeerInfo, peer: PeerInfo) -> None:
    """Check that this node may communicate with the peer. An unformatted node may with any.

    Raises:
        PeerRefused: the peer is of another cluster, has this node's id, or lacks a feature in the log.
    """
    if _is_foreign(me, peer):
        raise ForeignCluster(peer)
    if me.node_id == peer.node_id:
        raise PeerRefused(SAME_NODE, f"this node is {me.node_id}, too")
    if lacking := sorted(me.requires - peer.features):
        raise PeerRefused(
            LACKS_FEATURES, f"{peer.node_id} lacks {', '.join(lacking)}, which this cluster uses: upgrade that node"
        )


async def _receive(socket: Socket, length: int) -> list[object]:
    """A message of the hello, an array of `length` values. Its sender is untrusted: it is checked before unpacking.

    Raises:
        PeerRefused: it is a refusal. BadMessage, ConnectionResetError.
    """
    message = await socket.receive()
    if message.type is WSMsgType.ERROR:
        drop_frames(message.data)
        raise BadMessage(f"the received data is not a WebSocket message: {message.data}")
    if message.type in ENDS:
        raise ConnectionResetError("the peer closed during the hello")
    if message.type is not WSMsgType.BINARY:
        raise BadMessage(f"a message of the hello is binary, not a {message.type.name}")
    if len(message.data) > MAX_HELLO_BYTES:
        raise BadMessage(f"a message of the hello has {len(message.data)} bytes, more than {MAX_HELLO_BYTES}")
    try:
        check_containers(message.data, MAX_HELLO_CONTAINERS)
        row = unpack(message.data)
    except PayloadInvalid as error:
        raise BadMessage(str(error)) from error
    if type(row) is list and len(row) == 3 and row[0] == "refused":
        raise PeerRefused(str(row[1])[:100], str(row[2])[:1000])
    if type(row) is not list or len(row) != length:
        raise BadMessage("a hello of another shape")
    return row


def _other_protocol(spoken: object) -> PeerRefused:
    ours = f"{LOWEST_PROTOCOL} to {HIGHEST_PROTOCOL}"
    return PeerRefused("protocol", f"the peer speaks protocol {spoken!r:.40}, this node {ours}")


def _protocol_of_hello(spoken: object) -> int:
    """The protocol that a dialler chose."""
    if type(spoken) is int and LOWEST_PROTOCOL <= spoken <= HIGHEST_PROTOCOL:
        return spoken
    raise _other_protocol(spoken)


def _protocol_of_challenge(spoken: object) -> tuple[int, tuple[int, int]]:
    """The protocol to use, which is the highest that both ends know, and the range in the challenge."""
    match spoken:
        case [int(lowest), int(highest)] if lowest <= HIGHEST_PROTOCOL and highest >= LOWEST_PROTOCOL:
            return min(highest, HIGHEST_PROTOCOL), (lowest, highest)
        case _:
            raise _other_protocol(spoken)


def _proved(
    secrets: tuple[bytes, ...], proof: Callable[[bytes | None], bytes], given: object, node_id: str
) -> bytes | None:
    """The secret of these that the peer proved; None if this node has none, and the peer proved none.

    Raises:
        UnequalSecrets: it proved none of them.
    """
    if type(given) is bytes:
        for secret in secrets or (None,):
            if hmac.compare_digest(proof(secret), given):
                return secret
    raise UnequalSecrets(
        node_id, "it gave none" if given == b"" else "they differ" if secrets else "this node has none"
    )


async def dial(
    session: ClientSession,
    address: str,
    me: Callable[[], PeerInfo],
    expected_node_id: str | None,
    purpose: str,
    trust: Trust,
    ping_s: float | None,
) -> tuple[ClientWebSocketResponse, PeerInfo]:
    """Dial a peer at HOST:PORT and shake hands; return the socket and the peer. On an error nothing stays open.

    `expected_node_id` is None if any node may answer; with certificates it must be named. `purpose` is one of `PATHS`.
    `me` is called again after the hello: meanwhile this node may require more features.

    Without `ping_s` the caller pings, and reads the peer's pings and pongs as messages.

    Raises:
        As `dial_hello`; ClientError, TimeoutError: it cannot be reached.
    """
    host, names = host_and_port(address)[0], names_of(session)
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            scheme, context, name = trust.dialling(expected_node_id or "")
            socket = await session.ws_connect(
                f"{scheme}://{address}{PATHS[purpose]}",
                ssl=context,
                server_hostname=name,
                max_msg_size=MAX_MESSAGE_BYTES,
                timeout=WS_TIMEOUT,
                heartbeat=ping_s,
                autoping=ping_s is not None,
            )
            try:
                nonce = os.urandom(NONCE_BYTES)
                with of_a_stranger(socket, MAX_UNPROVED_BYTES):
                    peer = await dial_hello(socket, me(), expected_node_id, purpose, trust.secret, nonce)
                    check_peer(me(), peer)
                    if trust.dialling(expected_node_id or "")[1] is not context:
                        raise ConnectionResetError("the certificates have changed since it was dialled")
                if names is not None:
                    names.proved(host, socket, only_here=not trust.proves)
            except BaseException:
                await close_socket(socket)
                raise
            return socket, peer
    except LINK_FAILURES as error:
        drop_frames(error)  # An address that refuses is dialled for weeks.
        if names is not None and _disproves(error):
            names.disproved(host)
        raise


def _disproves(error: BaseException) -> bool:
    """Whether what answered did so without proving that it is the peer. A node that is busy or stops answers 503."""
    if isinstance(error, WSServerHandshakeError):
        return error.status != HTTPStatus.SERVICE_UNAVAILABLE
    return isinstance(error, BadMessage | PeerRefused)


async def dial_hello(
    socket: ClientWebSocketResponse,
    me: PeerInfo,
    expected_node_id: str | None,
    purpose: str,
    secret: bytes | None,
    nonce: bytes,
) -> PeerInfo:
    """Shake hands on a socket that this node dialled; return the peer.

    Raises:
        PeerRefused: either side refuses the other.
        BadMessage, ConnectionResetError: the peer does not speak this protocol, or is gone.
    """
    spoken, dialled_nonce = await _receive(socket, 2)
    protocol, offered = _protocol_of_challenge(spoken)
    if type(dialled_nonce) is not bytes or len(dialled_nonce) != NONCE_BYTES:
        raise BadMessage("a challenge of another shape")
    proof = mac(secret, "dialler", dialled_nonce, nonce, purpose, me, protocol, offered)
    await socket.send_bytes(pack([protocol, purpose, _row(me), nonce, proof]))
    row, given = await _receive(socket, 2)
    peer = _peer_info(row)
    expected = mac(secret, "dialled", dialled_nonce, nonce, purpose, peer, protocol, offered)
    _proved(() if secret is None else (secret,), lambda _: expected, given, expected_node_id or peer.node_id)
    check_peer(me, peer)
    if expected_node_id not in (None, peer.node_id):
        raise PeerRefused(OTHER_NODE, f"{expected_node_id} was expected there, but {peer.node_id} answered")
    return peer


Admit = Callable[[PeerInfo], Awaitable[None]]
"""Called with an authenticated peer; raises `PeerRefused` if it is not admitted."""


async def answer_hello(
    socket: web.WebSocketResponse,
    me: PeerInfo,
    purpose: str,
    secrets: tuple[bytes, ...],
    nonce: bytes,
    admit: Admit | None = None,
) -> PeerInfo:
    """Answer a hello on a socket that a peer dialled; return the peer.

    The peer must prove one of the secrets; it gets a proof of the same one. `admit` may refuse it.

    Raises:
        ForeignCluster: it is of another cluster or history; it was sent what it needs to refuse this node as well.
        PeerRefused: this node refuses it, and has sent it the reason.
        BadMessage, ConnectionResetError: the peer does not speak this protocol, or is gone.
    """
    await socket.send_bytes(pack([[LOWEST_PROTOCOL, HIGHEST_PROTOCOL], nonce]))
    spoken, asked, row, dialler_nonce, given = await _receive(socket, 5)
    try:
        protocol = _protocol_of_hello(spoken)
        peer = _peer_info(row)
        if asked != purpose or type(dialler_nonce) is not bytes or len(dialler_nonce) != NONCE_BYTES:
            raise BadMessage("a hello of another shape")
        secret = _proved(
            secrets,
            lambda secret: mac(secret, "dialler", nonce, dialler_nonce, purpose, peer, protocol),
            given,
            peer.node_id,
        )
        if not _is_foreign(me, peer):
            check_peer(me, peer)
            if admit is not None:
                await admit(peer)
    except PeerRefused as error:
        await socket.send_bytes(pack(["refused", error.code, error.reason]))
        raise
    proof = mac(secret, "dialled", nonce, dialler_nonce, purpose, me, protocol)
    await socket.send_bytes(pack([_row(me), proof]))
    check_peer(me, peer)
    return peer


class HelloServer:
    """Answers the hellos of one kind of socket. Unproved ones are bounded in number and in time.

    A stranger that leaves sockets in their hello cannot keep members out: beyond the limit, the oldest one is closed.
    """

    def __init__(
        self,
        me: Callable[[], PeerInfo],
        purpose: str,
        trust: Trust,
        admit: Admit | None = None,
        doubted: Callable[[str, str], None] | None = None,
        foreign: Callable[[PeerInfo], None] | None = None,
    ) -> None:
        """`doubted` gets the id that a peer claims, if it is a member's, and why it does not prove that it is that one.

        `foreign` gets a peer of another cluster or history that is believed otherwise.
        """
        self._me = me
        self._purpose = purpose
        self._trust = trust
        self._admit = admit
        self._doubted = doubted
        self._foreign = foreign
        self._unproved: dict[web.WebSocketResponse, web.Request] = {}

    async def answer(self, request: web.Request, socket: web.WebSocketResponse) -> PeerInfo:
        """Answer the hello on a socket that a peer dialled; return the peer.

        Raises:
            TimeoutError: it took too long.
            PeerRefused, BadMessage, ConnectionResetError: as `answer_hello`; or the peer is not trusted, or lacks a
                feature that this node now requires, or too many others arrived before it proved itself.
        """
        self._unproved[socket] = request
        if len(self._unproved) > UNPROVED_LIMIT:
            self._end(next(iter(self._unproved)))
        try:
            with of_a_stranger(socket, MAX_UNPROVED_BYTES):
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    peer = await self._answer(request, socket)
        except (UnequalSecrets, OtherCertificate) as error:
            if self._doubted is not None and self._trust.is_member(error.node_id):
                self._doubted(error.node_id, str(error))
            raise
        except ForeignCluster as error:
            shown = self._trust.shown_by(request)
            if self._foreign is not None and self._trust.doubt_of_peer(error.peer.node_id, shown) is None:
                self._foreign(error.peer)
            raise
        finally:
            self._unproved.pop(socket, None)
        check_peer(self._me(), peer)
        return peer

    async def _answer(self, request: web.Request, socket: web.WebSocketResponse) -> PeerInfo:
        shown = self._trust.shown_by(request)
        if (doubt := self._trust.doubt_of_caller(request.remote, shown)) is not None:
            await socket.send_bytes(pack(["refused", STRANGER, doubt]))
            raise PeerRefused(STRANGER, doubt)
        nonce, admit = os.urandom(NONCE_BYTES), partial(self._believe, socket, shown)
        return await answer_hello(socket, self._me(), self._purpose, self._trust.secrets, nonce, admit)

    async def _believe(self, socket: web.WebSocketResponse, shown: str | None, peer: PeerInfo) -> None:
        """Admit a peer that proved a secret, if this node has one, and shows its own certificate, if peers need one."""
        if (doubt := self._trust.doubt_of_peer(peer.node_id, shown)) is not None:
            raise PeerRefused(STRANGER, doubt) if self._trust.certificates is None else OtherCertificate(peer, doubt)
        self._unproved.pop(socket, None)
        if self._admit is not None:
            await self._admit(peer)
        check_peer(self._me(), peer)  # Features that are required by now; the peer can still be sent a refusal.

    def _end(self, socket: web.WebSocketResponse) -> None:
        transport = self._unproved.pop(socket).transport
        if transport is not None:
            transport.abort()  # No closing handshake with a silent peer.

    def close(self) -> None:
        """End the sockets that are not proved yet."""
        for socket in list(self._unproved):
            self._end(socket)
