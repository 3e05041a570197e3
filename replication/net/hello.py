"""The opening words of every peer connection (rule 10): who is this, of which cluster, and does it know the secret?

    dialled -> dialler   Challenge {protocol, nonce}
    dialler -> dialled   Hello {protocol, purpose, who, nonce, mac}
    dialled -> dialler   Welcome {who, mac}   or   Refused {code, reason}, and the end

`mac` is HMAC-SHA256 over the speaker's role, both nonces, the purpose and who it says it is: neither a replay nor a
reflection passes. Without a peer secret it is empty, and a node with a secret speaks to none without.
"""

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, ClientWSTimeout, WSMsgType, web

from quire.log import PayloadInvalid, pack, unpack

from ..core.members import NODE_ID
from .wire import MAX_MESSAGE_BYTES, MAX_U64, BadMessage

PROTOCOL = 1
PEER_PATH = "/peer"
STREAM_PATH = "/peer/stream"
SNAPSHOT_PATH = "/peer/snapshot"
PEER_PATHS = frozenset({PEER_PATH, STREAM_PATH, SNAPSHOT_PATH})
"""Every path that peers dial; each connection begins with a hello."""
NONCE_BYTES = 16
ID_BYTES = 16
MAX_ADDRESS = 300
NO_CLUSTER = bytes(ID_BYTES)
FOREIGN_CLUSTER = "foreign_cluster"
TWIN = "twin"
HELLO_TIMEOUT_S = 5.0
WS_TIMEOUT = ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]  # it does not read attr.ib

Socket = ClientWebSocketResponse | web.WebSocketResponse


@dataclass(frozen=True, slots=True)
class Who:
    """What a node says of itself. `cluster_id` is zeros while it is not formatted."""

    cluster_id: bytes
    node_id: str
    disk_id: bytes
    incarnation: int
    address: str

    @property
    def is_formatted(self) -> bool:
        """Whether it belongs to a cluster already."""
        return self.cluster_id != NO_CLUSTER


class PeerRefused(Exception):
    """This peer and this node do not go together; `code` is stable, `reason` says why in words."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


LINK_FAILURES = (ClientError, OSError, asyncio.TimeoutError, BadMessage, PeerRefused)
"""What ends a peer connection without a fault of this program."""


def _row(who: Who) -> list[Any]:
    return [who.cluster_id, who.node_id, who.disk_id, who.incarnation, who.address]


def _who(row: Any) -> Who:
    if type(row) is not list or len(row) != 5:
        raise BadMessage("a hello of another shape")
    cluster_id, node_id, disk_id, incarnation, address = row
    ids = type(cluster_id) is bytes and type(disk_id) is bytes and len(cluster_id) == len(disk_id) == ID_BYTES
    named = type(node_id) is str and NODE_ID.fullmatch(node_id) is not None
    reached = type(address) is str and len(address) <= MAX_ADDRESS
    if not ids or not named or not reached or type(incarnation) is not int or not 0 <= incarnation <= MAX_U64:
        raise BadMessage("a hello of another shape")
    return Who(cluster_id, node_id, disk_id, incarnation, address)


def mac(secret: bytes | None, role: str, dialled_nonce: bytes, dialler_nonce: bytes, purpose: str, who: Who) -> bytes:
    """What proves that the speaker knows the secret, here and now; empty without one."""
    if secret is None:
        return b""
    return hmac.digest(secret, pack([PROTOCOL, role, dialled_nonce, dialler_nonce, purpose, _row(who)]), "sha256")


def check_peer(me: Who, peer: Who) -> None:
    """Refuse another cluster's node, and oneself. A node without a cluster speaks to any.

    Raises:
        PeerRefused: with the reason.
    """
    if me.is_formatted and peer.is_formatted and me.cluster_id != peer.cluster_id:
        raise PeerRefused(FOREIGN_CLUSTER, f"{peer.node_id} is of cluster {peer.cluster_id.hex()}, this is another")
    if me.node_id == peer.node_id:
        raise PeerRefused("same_node", f"this node is {me.node_id}, too")


async def _receive(socket: Socket, length: int) -> list[Any]:
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        raise ConnectionResetError("the peer closed before it said who it is")
    try:
        row = unpack(message.data)
    except PayloadInvalid as error:
        raise BadMessage(str(error)) from error
    if type(row) is list and len(row) == 3 and row[0] == "refused":
        raise PeerRefused(str(row[1])[:100], str(row[2])[:1000])
    if type(row) is not list or len(row) != length:
        raise BadMessage("a hello of another shape")
    return row


def _check_protocol(protocol: Any) -> None:
    if protocol != PROTOCOL:
        raise PeerRefused("protocol", f"the peer speaks protocol {protocol!r}, this node {PROTOCOL}")


def _check_mac(secret: bytes | None, expected: bytes, given: Any) -> None:
    if type(given) is not bytes or not hmac.compare_digest(expected, given):
        why = "it gave none" if given == b"" else "this node has none" if secret is None else "they differ"
        raise PeerRefused("peer_secret", f"the peer secrets do not match: {why}")


async def dial(
    session: ClientSession, url: str, me: Who, expected_node_id: str, purpose: str, secret: bytes | None, ping_s: float
) -> tuple[ClientWebSocketResponse, Who]:
    """Dial a peer and say hello; return a socket on which both know the other. Nothing stays open behind an error.

    Raises:
        As `dial_hello`; ClientError, TimeoutError: it cannot be reached.
    """
    async with asyncio.timeout(HELLO_TIMEOUT_S):
        socket = await session.ws_connect(url, max_msg_size=MAX_MESSAGE_BYTES, timeout=WS_TIMEOUT, heartbeat=ping_s)
        try:
            peer = await dial_hello(socket, me, expected_node_id, purpose, secret, os.urandom(NONCE_BYTES))
        except BaseException:
            await socket.close()
            raise
        return socket, peer


async def dial_hello(
    socket: ClientWebSocketResponse, me: Who, expected_node_id: str, purpose: str, secret: bytes | None, nonce: bytes
) -> Who:
    """Say hello on a socket that this node dialled; return whom it reached.

    Raises:
        PeerRefused: either side does not want the other.
        BadMessage, ConnectionResetError: the peer does not speak this, or is gone.
    """
    protocol, dialled_nonce = await _receive(socket, 2)
    _check_protocol(protocol)
    if type(dialled_nonce) is not bytes or len(dialled_nonce) != NONCE_BYTES:
        raise BadMessage("a challenge of another shape")
    proof = mac(secret, "dialler", dialled_nonce, nonce, purpose, me)
    await socket.send_bytes(pack([PROTOCOL, purpose, _row(me), nonce, proof]))
    row, given = await _receive(socket, 2)
    peer = _who(row)
    _check_mac(secret, mac(secret, "dialled", dialled_nonce, nonce, purpose, peer), given)
    check_peer(me, peer)
    if peer.node_id != expected_node_id:
        raise PeerRefused("other_node", f"{expected_node_id} was expected there, {peer.node_id} answered")
    return peer


Admit = Callable[[Who], Awaitable[None]]
"""Told who comes, once that is proved; raises `PeerRefused` if it may not enter."""


async def answer_hello(
    socket: web.WebSocketResponse,
    me: Who,
    purpose: str,
    secret: bytes | None,
    nonce: bytes,
    admit: Admit | None = None,
) -> Who:
    """Answer a hello on a socket that a peer dialled; return who it is. `admit` may refuse a peer that is known.

    Raises:
        PeerRefused: this node does not want it; it was told why.
        BadMessage, ConnectionResetError: it does not speak this, or is gone.
    """
    await socket.send_bytes(pack([PROTOCOL, nonce]))
    protocol, asked, row, dialler_nonce, given = await _receive(socket, 5)
    try:
        _check_protocol(protocol)
        peer = _who(row)
        if asked != purpose or type(dialler_nonce) is not bytes or len(dialler_nonce) != NONCE_BYTES:
            raise BadMessage("a hello of another shape")
        _check_mac(secret, mac(secret, "dialler", nonce, dialler_nonce, purpose, peer), given)
        check_peer(me, peer)
        if admit is not None:
            await admit(peer)
    except PeerRefused as error:
        await socket.send_bytes(pack(["refused", error.code, error.reason]))
        raise
    await socket.send_bytes(pack([_row(me), mac(secret, "dialled", nonce, dialler_nonce, purpose, me)]))
    return peer
