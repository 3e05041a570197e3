"""A leader that dies, for the follower that forwards to it, at each step of a call: 503 where nothing was written, 504
where nobody knows, and never a false answer.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from quire.cluster.http.forwarding import LOSSES
from quire.log import pack, unpack
from tests.cluster.hop import Call, Hop, Step, cluster_with_hop
from tests.cluster.running import Reply, RunningCluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
DEADLINE_S = 20.0

Cluster = tuple[RunningCluster, Hop]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reached(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Cluster, None]:
    async with cluster_with_hop(tmp_path_factory.mktemp("dying_leader"), request_timeout_ms=1000) as running:
        yield running


# The steps of a request, and whether the leader has executed it


async def before_it_reads_on(call: Call) -> None:
    """It has the head, and does nothing with it."""


async def in_the_request_s_head(call: Call) -> None:
    call.leader_writer.write(call.head[:-10])
    await call.leader_writer.drain()


async def in_the_body(call: Call) -> None:
    await call.send(max(0, call.body_bytes - 3))


async def behind_the_body(call: Call) -> None:
    await call.send(call.body_bytes)
    await call.leader_reader.read(1)  # It has answered, so it is done; but nobody hears of it.


async def without_a_word(call: Call) -> None:
    await call.send(call.body_bytes)
    await call.reader.read()  # It neither answers nor goes away, until the follower does.


async def in_the_answer_s_head(call: Call) -> None:
    await call.send(call.body_bytes)
    call.writer.write((await call.answer_head())[:40])
    await call.writer.drain()


async def in_the_answer_s_body(call: Call) -> None:
    await call.send(call.body_bytes)
    head = await call.answer_head()
    call.writer.write(head + (await call.leader_reader.read(1 << 16))[:-1])
    await call.writer.drain()


SENT_STEPS = [
    (before_it_reads_on, False),
    (in_the_body, False),
    (behind_the_body, True),
    (without_a_word, True),
    (in_the_answer_s_head, True),
    (in_the_answer_s_body, True),
]
AT_EACH_STEP = pytest.mark.parametrize(("step", "executed"), SENT_STEPS, ids=[step.__name__ for step, _ in SENT_STEPS])
ADD_3 = orjson.dumps({"commands": [["add", 3]]})
WRITES = [("/commands", ADD_3), ("/records", b'["add", 3]')]
READS = [("GET", "/state", None), ("POST", "/query", b'{"request": null}'), ("GET", "/sessions/7", None)]


async def state(reached: Cluster) -> int:
    return int((await reached[0].ask("n1", "GET", "/state")).document["state"])


def is_write(method: str, path: str) -> bool:
    return method == "DELETE" or path in {path for path, _ in WRITES}


async def ask(reached: Cluster, dies: Step | None, method: str, path: str, body: bytes | None) -> Reply:
    """What n2 answers while the leader dies at a step."""
    cluster, hop = reached
    await cluster.ready()
    hop.dies, before = dies, len(hop.calls)
    try:
        reply = await cluster.ask("n2", method, path, body, JSON if body else None)
    finally:
        hop.dies = None
    calls, times = hop.calls[before:], 1 if is_write(method, path) else 1 + LOSSES
    assert len(calls) <= times, "it costs one hop, and a write is sent once"
    return reply


@AT_EACH_STEP
@pytest.mark.parametrize(("path", "body"), WRITES)
async def test_a_write_that_went_out_has_an_unknown_outcome_and_is_sent_once(
    reached: Cluster, path: str, body: bytes, step: Step, executed: bool
) -> None:
    before = await state(reached)

    reply = await ask(reached, step, "POST", path, body)

    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    assert await state(reached) == before + (3 if executed else 0)


@pytest.mark.full
@AT_EACH_STEP
async def test_a_session_whose_close_went_out_is_not_called_unknown(
    reached: Cluster, step: Step, executed: bool
) -> None:
    cluster, _ = reached
    session = await opened(reached)

    reply = await ask(reached, step, "DELETE", f"/sessions/{session}", None)

    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    left = await cluster.ask("n1", "GET", f"/sessions/{session}")
    # A DELETE has no body, so all of it was sent at that step: whether the leader got to it is open.
    if step is not in_the_body:
        assert left.status == (404 if executed else 200)


@pytest.mark.full
@AT_EACH_STEP
@pytest.mark.parametrize(("method", "path", "body"), READS)
async def test_a_read_that_broke_off_is_503(
    reached: Cluster, method: str, path: str, body: bytes | None, step: Step, executed: bool
) -> None:
    reply = await ask(reached, step, method, path, body)

    assert (reply.status, reply.problem) == (503, "leader-unreachable")
    assert reply.headers["Retry-After"] == "1"


@pytest.mark.parametrize(("method", "path", "body"), [*READS, *[("POST", *write) for write in WRITES]])
async def test_a_leader_that_takes_no_connection_is_503_and_nothing_is_written(
    reached: Cluster, method: str, path: str, body: bytes | None
) -> None:
    _, hop = reached
    before = await state(reached)
    await ask(
        reached, before_it_reads_on, "POST", "/query", b'{"request": null}'
    )  # No connection is kept from here on.
    hop.refuse()
    try:
        reply = await ask(reached, None, method, path, body)
    finally:
        await hop.open()

    assert (reply.status, reply.problem) == (503, "leader-unreachable")
    assert await state(reached) == before


@pytest.mark.parametrize(("path", "body"), WRITES)
async def test_a_leader_that_hangs_up_at_once_leaves_a_write_unknown(reached: Cluster, path: str, body: bytes) -> None:
    _, hop = reached
    before = await state(reached)
    await ask(reached, before_it_reads_on, "POST", "/query", b'{"request": null}')
    hop.at_accept = True
    try:
        reply = await ask(reached, None, "POST", path, body)
    finally:
        hop.at_accept = False

    assert (reply.status, reply.problem) == (504, "outcome-unknown")
    assert await state(reached) == before


# Streams


async def opened(reached: Cluster) -> int:
    while True:
        reply = await reached[0].ask("n1", "POST", "/sessions", b"{}", JSON)
        if reply.status == 200:
            return int(reply.document["session"])
        assert reply.status in (503, 504), reply  # The machine stood still for longer than a request may take.


async def connected(reached: Cluster, session: int) -> ClientWebSocketResponse:
    cluster, _ = reached
    url = f"http://{cluster.address('n2')}/commands/stream?session={session}"
    return await cluster.session.ws_connect(url, compress=0)


async def said(socket: ClientWebSocketResponse) -> Any:
    """What the stream says next; None where it was closed."""
    message = await socket.receive(timeout=DEADLINE_S)
    return unpack(message.data) if message.type is WSMsgType.BINARY else None


async def in_the_handshake_s_answer(call: Call) -> None:
    await call.send(0)
    call.writer.write((await call.answer_head())[:20])
    await call.writer.drain()


async def without_a_handshake(call: Call) -> None:
    await call.send(0)
    await call.reader.read()


@pytest.mark.parametrize(
    "step", [before_it_reads_on, in_the_request_s_head, without_a_handshake, in_the_handshake_s_answer]
)
async def test_a_stream_whose_leader_dies_before_it_is_open_is_503(reached: Cluster, step: Step) -> None:
    cluster, _ = reached
    session = await opened(reached)
    await cluster.ready()

    assert await refusal(reached, session, step) == 503


async def refusal(reached: Cluster, session: int, step: Step) -> int:
    """The status that answers a stream for which the leader does this."""
    _, hop = reached
    hop.dies = step
    try:
        with pytest.raises(WSServerHandshakeError) as refused:
            await connected(reached, session)
    finally:
        hop.dies = None
    return refused.value.status


async def test_whoever_answers_in_the_leader_s_place_sends_no_stream_elsewhere(reached: Cluster) -> None:
    cluster, _ = reached
    session = await opened(reached)
    await cluster.ready()
    called: list[object] = []

    def elsewhere(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.append(writer)
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as other:
        location = b"http://127.0.0.1:%d/" % other.sockets[0].getsockname()[1]

        async def redirects(call: Call) -> None:
            call.writer.write(b"HTTP/1.1 307 Elsewhere\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n")
            await call.writer.drain()

        assert await refusal(reached, session, redirects) == 503
    assert called == []


async def open_stream(call: Call) -> None:
    await call.send(0)
    call.writer.write(await call.answer_head())
    await call.writer.drain()


async def before_the_first_message(call: Call) -> None:
    await open_stream(call)


async def with_a_message_that_it_never_gets(call: Call) -> None:
    await open_stream(call)
    await call.reader.read(1 << 16)


async def in_a_message(call: Call) -> None:
    await open_stream(call)
    call.leader_writer.write((await call.reader.read(1 << 16))[:-2])
    await call.leader_writer.drain()


async def behind_a_message(call: Call) -> None:
    await open_stream(call)
    call.leader_writer.write(await call.reader.read(1 << 16))
    await call.leader_reader.read(1)


async def in_an_answer(call: Call) -> None:
    await open_stream(call)
    call.leader_writer.write(await call.reader.read(1 << 16))
    call.writer.write((await call.leader_reader.read(1 << 16))[:-1])
    await call.writer.drain()


async def between_two_messages(call: Call) -> None:
    await open_stream(call)
    call.leader_writer.write(await call.reader.read(1 << 16))
    call.writer.write(await call.leader_reader.read(1 << 16))
    await call.writer.drain()
    await call.reader.read(1 << 16)


@pytest.mark.parametrize(
    ("step", "answered"),
    [
        (before_the_first_message, False),
        (with_a_message_that_it_never_gets, False),
        (in_a_message, False),
        (behind_a_message, False),
        (in_an_answer, False),
        (between_two_messages, True),
    ],
)
async def test_a_stream_whose_leader_dies_says_nothing_false_and_its_session_tells_the_rest(
    reached: Cluster, step: Step, answered: bool
) -> None:
    cluster, hop = reached
    session, before = await opened(reached), await state(reached)
    await cluster.ready()
    hop.dies = step
    try:
        socket = await connected(reached, session)
        with suppress(ConnectionError):
            await socket.send_bytes(pack([1, [["add", 1]]]))
        first = await said(socket)
        if answered:
            await socket.send_bytes(pack([2, [["add", 2]]]))
        end = await said(socket) if first else None
    finally:
        hop.dies = None

    assert (first and (first[0], first[3])) == ((1, [str(before + 1)]) if answered else None)
    assert end is None
    again = await connected(reached, session)
    await again.send_bytes(pack([1, [["add", 1], ["add", 2]]]))
    assert (await said(again))[3] == [str(before + 1), str(before + 3)]
    await again.close()
    assert await state(reached) == before + 3


async def test_a_stream_is_closed_when_the_leader_stops_and_then_refused(reached: Cluster) -> None:
    cluster, _ = reached
    socket = await connected(reached, await opened(reached))
    await cluster.stop("n3")  # so that nobody is elected instead
    await cluster.stop("n1")

    assert await said(socket) is None
    with pytest.raises(WSServerHandshakeError) as refused:
        await connected(reached, 7)
    assert refused.value.status == 503
