"""Rule 10's hello over real sockets: which peers are accepted, and what both ends learn."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web

from quire.log import pack, unpack
from quire.replication.net.hello import (
    HIGHEST_PROTOCOL as PROTOCOL,
)
from quire.replication.net.hello import (
    NONCE_BYTES,
    ForeignCluster,
    PeerInfo,
    PeerRefused,
    answer_hello,
    dial_hello,
    mac,
)
from quire.replication.net.wire import BadMessage
from tests.packed import unpacked
from tests.replication.loopback import DEADLINE_S, calling, listening, unformatted, until, who

SECRET, OTHER = b"a secret of the peers", b"another secret"
DIALLED_NONCE, DIALLER_NONCE = b"dialled's nonce.", b"dialler's nonce."

Dial = Callable[[ClientWebSocketResponse], Awaitable[Any]]
Answer = Callable[[web.WebSocketResponse], Awaitable[Any]]


async def meet(dial: Dial, answer: Answer) -> tuple[object, object]:
    """What the two ends of one connection came to: what they returned or raised."""
    ends: list[object] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        ends.append(await outcome(answer(socket)))
        await socket.close()
        return socket

    async with listening({"/peer": serve}) as address, calling() as session, asyncio.timeout(DEADLINE_S):
        socket = await session.ws_connect(f"http://{address}/peer")
        dialled = await outcome(dial(socket))
        await socket.close()
        await until(lambda: ends)
    return dialled, ends[0]


async def outcome(attempt: Awaitable[Any]) -> object:
    """What it returned, or the error that it raised."""
    try:
        return await attempt
    except (PeerRefused, BadMessage, OSError) as error:
        return error


def dialler(me: PeerInfo, secret: bytes | None = None, *, expects: str = "n2", purpose: str = "peer") -> Dial:
    return lambda socket: dial_hello(socket, me, expects, purpose, secret, DIALLER_NONCE)


def dialled(me: PeerInfo, secret: bytes | None = None, *, purpose: str = "peer") -> Answer:
    secrets = () if secret is None else (secret,)
    return lambda socket: answer_hello(socket, me, purpose, secrets, DIALLED_NONCE)


def code(end: object) -> str:
    assert isinstance(end, PeerRefused), end
    return end.code


async def test_two_nodes_of_a_cluster_learn_each_others_identity() -> None:
    assert await meet(dialler(who("n1")), dialled(who("n2"))) == (who("n2"), who("n1"))


async def test_an_address_may_be_as_long_as_its_limit() -> None:
    name = ".".join(["a" * 63] * 3 + ["a" * 61])
    far = replace(who("n1"), address=f"{name}:65535")
    assert await meet(dialler(far), dialled(who("n2"))) == (who("n2"), far)


async def test_two_nodes_with_the_same_secret_accept_each_other() -> None:
    assert await meet(dialler(who("n1"), SECRET), dialled(who("n2"), SECRET)) == (who("n2"), who("n1"))


@pytest.mark.parametrize(
    ("mine", "theirs"), [(SECRET, OTHER), (OTHER, SECRET), (None, SECRET), (SECRET, None), (b"", SECRET), (SECRET, b"")]
)
async def test_nodes_with_unequal_secrets_refuse_each_other_and_both_know_why(
    mine: bytes | None, theirs: bytes | None
) -> None:
    ends = await meet(dialler(who("n1"), mine), dialled(who("n2"), theirs))

    assert [code(end) for end in ends] == ["peer_secret", "peer_secret"]


async def test_a_node_of_another_cluster_is_refused() -> None:
    ends = await meet(dialler(who("n1")), dialled(who("n2", cluster_id=b"another cluster.")))
    assert [code(end) for end in ends] == ["foreign_cluster", "foreign_cluster"]


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_two_nodes_of_unequal_histories_both_have_the_others_proof_and_refuse(secret: bytes | None) -> None:
    other = who("n2", cluster_id=b"another history.")
    ends = await meet(dialler(who("n1"), secret), dialled(other, secret))
    assert [(type(end), getattr(end, "peer", None)) for end in ends] == [
        (ForeignCluster, other),
        (ForeignCluster, who("n1")),
    ]


async def test_a_dialler_that_proves_no_secret_gets_no_proof_of_another_history() -> None:
    ends = await meet(dialler(who("n1"), OTHER), dialled(who("n2", cluster_id=b"another history."), SECRET))
    assert [code(end) for end in ends] == ["peer_secret", "peer_secret"]


async def test_an_unformatted_node_and_any_other_accept_each_other() -> None:
    assert await meet(dialler(unformatted("n1")), dialled(who("n2"))) == (who("n2"), unformatted("n1"))
    assert await meet(dialler(who("n1")), dialled(unformatted("n2"))) == (unformatted("n2"), who("n1"))


async def test_another_node_than_the_one_that_was_dialled_is_refused() -> None:
    mine, _ = await meet(dialler(who("n1"), expects="n2"), dialled(who("n3")))
    assert code(mine) == "other_node"


async def test_a_node_with_this_nodes_name_is_refused() -> None:
    ends = await meet(dialler(who("n2", incarnation=5)), dialled(who("n2")))
    assert [code(end) for end in ends] == ["same_node", "same_node"]


async def test_a_link_is_not_taken_for_a_stream() -> None:
    _, theirs = await meet(dialler(who("n1"), SECRET, purpose="stream"), dialled(who("n2"), SECRET, purpose="peer"))
    assert isinstance(theirs, BadMessage)


# Dialled by something else than a node


async def receive(socket: ClientWebSocketResponse) -> Any:
    message = await socket.receive()
    assert message.type is WSMsgType.BINARY
    return unpack(message.data)


def row(peer: PeerInfo) -> list[Any]:
    identity = [peer.cluster_id, peer.node_id, peer.disk_id, peer.incarnation, peer.address]
    return [*identity, sorted(peer.features), peer.code]


def saying(*hello: Any) -> Dial:
    """Say exactly this, whatever the challenge is; return the answer."""

    async def dial(socket: ClientWebSocketResponse) -> Any:
        await receive(socket)
        await socket.send_bytes(pack(list(hello)))
        return await receive(socket)

    return dial


async def test_another_protocol_is_refused_with_the_one_that_is_spoken() -> None:
    hello = (PROTOCOL + 1, "peer", row(who("n1")), DIALLER_NONCE, b"")

    answer, theirs = await meet(saying(*hello), dialled(who("n2")))

    assert code(theirs) == "protocol"
    assert isinstance(answer, list)
    assert answer[:2] == ["refused", "protocol"]


async def test_a_node_of_another_protocol_is_sent_nothing() -> None:
    async def answer(socket: web.WebSocketResponse) -> object:
        await socket.send_bytes(pack([[PROTOCOL + 1, PROTOCOL + 2], DIALLED_NONCE]))
        return (await socket.receive()).type

    mine, heard = await meet(dialler(who("n1"), SECRET), answer)

    assert code(mine) == "protocol"
    assert heard is not WSMsgType.BINARY


async def test_a_replayed_hello_is_refused_since_the_challenge_is_another() -> None:
    proof = mac(SECRET, "dialler", DIALLED_NONCE, DIALLER_NONCE, "peer", who("n1"))
    replayed = saying(PROTOCOL, "peer", row(who("n1")), DIALLER_NONCE, proof)

    _, first = await meet(replayed, dialled(who("n2"), SECRET))
    _, second = await meet(
        replayed, lambda socket: answer_hello(socket, who("n2"), "peer", (SECRET,), bytes(NONCE_BYTES))
    )

    assert first == who("n1")
    assert code(second) == "peer_secret"


async def test_a_reflected_proof_is_refused_at_either_end() -> None:
    # Whoever does not know the secret sends back what it was sent.
    mine = mac(SECRET, "dialled", DIALLED_NONCE, DIALLER_NONCE, "peer", who("n1"))
    _, theirs = await meet(saying(PROTOCOL, "peer", row(who("n1")), DIALLER_NONCE, mine), dialled(who("n2"), SECRET))
    assert code(theirs) == "peer_secret"

    async def reflect(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(pack([[PROTOCOL, PROTOCOL], DIALLED_NONCE]))
        _, _, peer, _, proof = unpacked((await socket.receive()).data)
        await socket.send_bytes(pack([peer, proof]))

    dialling, _ = await meet(dialler(who("n1"), SECRET, expects="n1"), reflect)
    assert code(dialling) == "peer_secret"


@pytest.mark.parametrize(
    "claim",
    [
        replace(who("n1"), node_id="n3"),
        replace(who("n1"), disk_id=b"another disk id."),
        replace(who("n1"), incarnation=2),
        replace(who("n1"), cluster_id=bytes(16)),
        replace(who("n1"), address="elsewhere:1"),
    ],
)
async def test_a_proof_holds_only_for_its_maker(claim: PeerInfo) -> None:
    proof = mac(SECRET, "dialler", DIALLED_NONCE, DIALLER_NONCE, "peer", who("n1"))
    _, theirs = await meet(saying(PROTOCOL, "peer", row(claim), DIALLER_NONCE, proof), dialled(who("n2"), SECRET))
    assert code(theirs) == "peer_secret"


async def test_a_proof_for_a_link_opens_no_stream() -> None:
    proof = mac(SECRET, "dialler", DIALLED_NONCE, DIALLER_NONCE, "peer", who("n1"))
    hello = saying(PROTOCOL, "stream", row(who("n1")), DIALLER_NONCE, proof)
    _, theirs = await meet(hello, dialled(who("n2"), SECRET, purpose="stream"))
    assert code(theirs) == "peer_secret"


@pytest.mark.parametrize(
    "hello",
    [
        [],
        [PROTOCOL],
        ["refused", "a", "b"],
        [PROTOCOL, "peer", row(who("n1")), b"short", b""],
        [PROTOCOL, "peer", row(who("n1")), "sixteen letters.", b""],
        [PROTOCOL, "peer", row(who("n1"))[:4], DIALLER_NONCE, b""],
        [PROTOCOL, "peer", "n1", DIALLER_NONCE, b""],
        [PROTOCOL, 5, row(who("n1")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), node_id="")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), node_id="n" * 25)), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), node_id="N1")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), disk_id=b"short")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), incarnation=-1)), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), address="a" * 254 + ":1")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), address="n1:" + "0" * 300 + "1")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), address="")), DIALLER_NONCE, b""],
        [
            PROTOCOL,
            "peer",
            row(replace(who("n1"), address="victim/internal/delete?x=1:80")),
            DIALLER_NONCE,
            b"",
        ],
        [
            PROTOCOL,
            "peer",
            row(replace(who("n1"), address="victim:80/internal/delete?x=:80")),
            DIALLER_NONCE,
            b"",
        ],
        [PROTOCOL, "peer", row(replace(who("n1"), address="user@victim:80")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), address="a..b:80")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(replace(who("n1"), address="[victim]:80")), DIALLER_NONCE, b""],
        [PROTOCOL, "peer", row(who("n1")), DIALLER_NONCE, None],
        [PROTOCOL, "peer", row(who("n1")), DIALLER_NONCE, ""],
    ],
)
async def test_a_hello_of_another_shape_is_refused_as_a_peers_fault(hello: list[Any]) -> None:
    async def dial(socket: ClientWebSocketResponse) -> object:
        await receive(socket)
        await socket.send_bytes(pack(hello))
        return (await socket.receive()).type

    _, theirs = await meet(dial, dialled(who("n2")))
    assert isinstance(theirs, BadMessage | PeerRefused)


@pytest.mark.parametrize("data", [b"", b"\xc1", pack("hello"), pack([[1, 1], b"short"]), pack([[1, 1]])])
async def test_a_challenge_of_another_shape_is_refused_as_a_peers_fault(data: bytes) -> None:
    mine, _ = await meet(dialler(who("n1")), lambda socket: socket.send_bytes(data))
    assert isinstance(mine, BadMessage)


async def test_an_end_that_hangs_up_is_disconnected() -> None:
    mine, _ = await meet(dialler(who("n1")), lambda socket: socket.close())
    assert isinstance(mine, ConnectionResetError)
    _, theirs = await meet(lambda socket: socket.close(), dialled(who("n2")))
    assert isinstance(theirs, ConnectionResetError)
