"""`/commands/stream`, through leader and follower."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, WSMessage, WSMsgType, WSServerHandshakeError

import quire
from quire.cluster.client import SessionExpired
from quire.cluster.errors import Overloaded
from quire.cluster.http.admission import slow_callers
from quire.cluster.http.admission.streams import OpenStream, StreamLimit
from quire.cluster.http.api import API
from quire.cluster.http.request import REQUEST_ID_KEY
from quire.cluster.http.routes.stream import CommandStream
from quire.log import pack, unpack
from quire.replication import Write
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 20
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("stream")) as running:
        yield running


async def opened(cluster: RunningCluster, at: str, body: bytes = b"{}") -> int:
    reply = await cluster.ask(at, "POST", "/sessions", body, "application/json")
    return int(reply.document["session"])


def streams_of(cluster: RunningCluster, at: str) -> StreamLimit:
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[API].streams


async def none_open(cluster: RunningCluster) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(len(streams_of(cluster, at)) for at in cluster.nodes):
            await cluster.ask("n1", "GET", "/healthz")


async def refused(cluster: RunningCluster, at: str, session: int) -> tuple[int, str | None]:
    """The status and the code that refuse a stream."""
    with pytest.raises(WSServerHandshakeError) as error:
        async with streaming(cluster, at, session):
            pass
    assert error.value.headers is not None
    return error.value.status, error.value.headers.get("Quire-Session-Code")


@asynccontextmanager
async def streaming(cluster: RunningCluster, at: str, session: int) -> AsyncGenerator[ClientWebSocketResponse, None]:
    url = f"http://{cluster.address(at)}/commands/stream?session={session}"
    async with cluster.session.ws_connect(url, compress=0, max_msg_size=1 << 24) as socket:
        yield socket


async def said(socket: ClientWebSocketResponse) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        message = await socket.receive()
    return unpack(message.data) if message.type is WSMsgType.BINARY else None


async def state(cluster: RunningCluster) -> float:
    return float((await cluster.ask("n1", "GET", "/state")).document["state"])


@EVERYWHERE
async def test_answers_come_in_order_and_name_their_sequence(cluster: RunningCluster, at: str) -> None:
    session, before = await opened(cluster, at), await state(cluster)
    async with streaming(cluster, at, session) as socket:
        for sequence in range(1, 201, 2):
            await socket.send_bytes(pack([sequence, [["add", 1], ["add", 2]]]))

        answers = [await said(socket) for _ in range(100)]

    assert [answer[0] for answer in answers] == list(range(1, 201, 2))
    assert [answer[1] for answer in answers] == sorted(answer[1] for answer in answers)
    assert all(answer[4] == [] and len(answer[3]) == 2 for answer in answers)
    assert await state(cluster) == before + 300


@EVERYWHERE
async def test_what_was_sent_before_is_answered_again_on_a_new_stream(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster, at)
    async with streaming(cluster, at, session) as socket:
        await socket.send_bytes(pack([1, [["add", 1], ["add", 2]]]))
        first = await said(socket)
    before = await state(cluster)

    async with streaming(cluster, at, session) as socket:
        await socket.send_bytes(pack([1, [["add", 1]]]))
        await socket.send_bytes(pack([2, [["add", 2], ["add", 0]]]))
        again = [await said(socket), await said(socket)]

    assert [*again[0][3], again[1][3][0]] == first[3]
    assert await state(cluster) == before


@EVERYWHERE
@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\xc1", "malformed"),
        (b"", "malformed"),
        (pack([2]), "malformed"),
        (pack([2, []]), "malformed"),
        (pack(["2", [["add", 1]]]), "malformed"),
        (pack([-2, [["add", 1]]]), "malformed"),
        (pack([2.0, [["add", 1]]]), "malformed"),
        (pack([2, {"add": 1}]), "malformed"),
        (b"\x92\xcc\x02" + pack([["add", 1]]), "malformed"),
        (b"\x92\x02\xdc\x00\x01" + pack(["add", 1]), "malformed"),
        (pack([2, [["add", 1]]]) + b"\x00", "malformed"),
        (pack([4, [["add", 1]]]), "sequence-refused"),
        (pack([1, [["add", 1]]]), "sequence-refused"),
        (pack([2, [["add", 1], ["div", 0]]]), "commands-refused"),
        (pack([2, [["add", 0]] * 8193]), "limit-exceeded"),
    ],
)
async def test_a_problem_ends_the_stream_and_nothing_from_there_on_is_written(
    cluster: RunningCluster, at: str, message: bytes, problem: str
) -> None:
    session, before = await opened(cluster, at), await state(cluster)
    async with streaming(cluster, at, session) as socket:
        await socket.send_bytes(pack([1, [["add", 1]]]))
        await socket.send_bytes(message)
        await socket.send_bytes(pack([2, [["add", 100]]]))

        answers = [await said(socket), await said(socket)]
        end = await said(socket)

    answered = [answer for answer in answers if answer is not None and len(answer) == 5]
    problems = [answer for answer in answers if answer is not None and len(answer) == 2]
    assert len(answered) + len(problems) == len([answer for answer in answers if answer is not None])
    assert [told[1]["type"] for told in problems] == [f"urn:quire:problem:{problem}"]
    assert problems[0][0] == 2 or problem == "sequence-refused"
    assert end is None
    assert await state(cluster) == before + 1


@EVERYWHERE
async def test_the_stream_of_a_session_that_is_not_open_is_refused_at_the_opening(
    cluster: RunningCluster, at: str
) -> None:
    fenced, holder = [await opened(cluster, at, b'{"name": "held"}') for _ in range(2)]
    closed = await opened(cluster, at)
    await cluster.ask(at, "DELETE", f"/sessions/{closed}")

    answers = {session: await refused(cluster, at, session) for session in (999_999, closed, fenced)}
    async with streaming(cluster, at, holder) as socket:
        await socket.send_bytes(pack([1, [["add", 0]]]))
        assert (await said(socket))[0] == 1

    assert answers == {
        999_999: (404, "SESSION_EXPIRED"),
        closed: (404, "SESSION_EXPIRED"),
        fenced: (409, "SESSION_FENCED"),
    }
    assert len(streams_of(cluster, at)) <= 1


async def test_the_stream_of_a_session_that_was_just_opened_is_not_refused(cluster: RunningCluster) -> None:
    for number in range(30):
        opener, carrier = [("n1", "n3"), ("n3", "n1"), ("n2", "n3")][number % 3]
        async with streaming(cluster, carrier, await opened(cluster, opener)):
            pass


async def test_a_carried_stream_counts_against_an_address_without_certificates(
    cluster: RunningCluster,
) -> None:
    await none_open(cluster)
    url = f"http://{cluster.address('n1')}/commands/stream?session={await opened(cluster, 'n1')}"
    forged = cluster.session.ws_connect(url, headers={"Quire-Forwarded": "nobody"})
    async with streaming(cluster, "n3", await opened(cluster, "n1")), forged:
        origins = {at: sorted(each.origin for each in streams_of(cluster, at)) for at in ("n1", "n3")}

    assert origins == {"n1": ["127.0.0.1", "127.0.0.1"], "n3": ["127.0.0.1"]}, "a header proves nothing"


@EVERYWHERE
async def test_a_stream_without_messages_ends_in_order(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 1.0)  # Ten looks a second.
    monkeypatch.setattr(streams_of(cluster, at), "idle_s", 0.0)
    async with streaming(cluster, at, await opened(cluster, at)) as socket:
        async with asyncio.timeout(DEADLINE_S):
            end = await socket.receive()

    assert (end.type, end.data) == (WSMsgType.CLOSE, 1000)


@EVERYWHERE
async def test_an_idle_stream_makes_room_for_another(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await none_open(cluster)
    monkeypatch.setattr(streams_of(cluster, at), "_limit", 2)
    monkeypatch.setattr(streams_of(cluster, at), "yields_after_s", 0.0)
    sessions = [await opened(cluster, at) for _ in range(3)]
    async with streaming(cluster, at, sessions[0]) as first, streaming(cluster, at, sessions[1]) as second:
        await first.send_bytes(pack([1, [["add", 0]]]))
        assert (await said(first))[0] == 1

        async with streaming(cluster, at, sessions[2]) as third:
            for socket, sequence in ((first, 2), (third, 1)):
                await socket.send_bytes(pack([sequence, [["add", 0]]]))
                assert (await said(socket))[0] == sequence
            assert await said(second) is None, "it was idle for longest"


@EVERYWHERE
@pytest.mark.parametrize("name", [None, "gone"])
async def test_a_client_whose_session_was_closed_meanwhile_opens_another_if_it_has_no_name(
    cluster: RunningCluster, at: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await none_open(cluster)
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 1.0)
    async with quire.connect(cluster.address(at), session=name, timeout_s=DEADLINE_S) as client:
        await client.apply(["add", 1])
        session = (await client.session()).id
        assert (await cluster.ask(at, "DELETE", f"/sessions/{session}")).status == 200
        for limited in (streams_of(cluster, node_id) for node_id in cluster.nodes):
            monkeypatch.setattr(limited, "idle_s", 0.0)
        await none_open(cluster)
        monkeypatch.undo()

        if name is None:
            await client.apply(["add", 1])
            assert (await client.session()).id > session
        else:
            with pytest.raises(SessionExpired):
                await client.apply(["add", 1])


@EVERYWHERE
async def test_a_client_whose_idle_stream_was_ended_notices_nothing(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await none_open(cluster)
    monkeypatch.setattr(slow_callers, "STALL_TIMEOUT_S", 1.0)
    async with quire.connect(cluster.address(at), timeout_s=DEADLINE_S) as client:
        first = await client.apply(["add", 1])
        session = (await client.session()).id
        for limited in (streams_of(cluster, node_id) for node_id in cluster.nodes):
            monkeypatch.setattr(limited, "idle_s", 0.0)
        await none_open(cluster)
        monkeypatch.undo()

        second = await client.apply(["add", 1])

        assert (float(str(second)) - float(str(first)), (await client.session()).id) == (1, session)


@EVERYWHERE
@pytest.mark.parametrize(
    "query", ["", "?session=", "?session=0", "?session=x", "?session=1&session=2", "?session=1&more=1"]
)
async def test_a_stream_without_one_session_is_malformed(cluster: RunningCluster, at: str, query: str) -> None:
    reply = await cluster.ask(at, "GET", f"/commands/stream{query}")

    assert (reply.status, reply.problem) == (400, "malformed")


@EVERYWHERE
async def test_many_streams_share_frames_and_each_gets_its_own_answers(cluster: RunningCluster, at: str) -> None:
    before = await state(cluster)
    frames_before = (await cluster.ask("n1", "GET", "/status")).document["highest_index"]

    async def client(number: int) -> list[Any]:
        session = await opened(cluster, at)
        async with streaming(cluster, at, session) as socket:
            answers = []
            for sequence in range(1, 41, 2):
                await socket.send_bytes(pack([sequence, [["add", number], ["sub", number]]]))
                answers.append(await said(socket))
            return answers

    answers = await asyncio.gather(*(client(number) for number in range(1, 41)))

    assert all([answer[0] for answer in mine] == list(range(1, 41, 2)) for mine in answers)
    assert all(answer[4] == [] for mine in answers for answer in mine)
    indices = [answer[1] for mine in answers for answer in mine]
    assert len(set(indices)) == len(indices) == 800
    assert (await cluster.ask("n1", "GET", "/status")).document["highest_index"] - frames_before >= 1600
    assert await state(cluster) == before


async def test_a_leader_that_stops_closes_the_stream_and_its_successor_knows_what_was_done(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session = await opened(cluster, "n1")
        async with streaming(cluster, "n3", session) as socket:
            await socket.send_bytes(pack([1, [["add", 8]]]))
            first = await said(socket)
            await cluster.restart("n1")
            while await said(socket) is not None:
                pass
        await cluster.ready()

        async with streaming(cluster, "n3", session) as socket:
            await socket.send_bytes(pack([1, [["add", 8]]]))
            again = await said(socket)

        assert again[3] == first[3] == ["50"]
        assert await state(cluster) == 50


class Script:
    """A client's end of a stream: what it sends, in turn; a callable is called first."""

    def __init__(self, *steps: bytes | Callable[[], None]) -> None:
        self.steps = list(steps)

    async def receive(self) -> WSMessage:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, bytes):
                return WSMessage(WSMsgType.BINARY, step, None)
            step()
        return WSMessage(WSMsgType.CLOSE, None, None)

    def send_bytes(self, data: bytes) -> Any:
        raise AssertionError("nothing is answered while an earlier message waits")


class Gone(dict[object, str]):
    """A request whose connection is gone."""

    transport = None


async def test_what_comes_after_a_refused_message_is_not_appended_while_an_earlier_one_waits(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes["n1"].node
    proposed: list[Write[Any]] = []
    monkeypatch.setattr(node.components.replica.driver, "propose", proposed.append)
    messages = [pack([sequence, [["add", 1]]]) for sequence in (1, 2, 3)]
    script = Script(*messages[:2], lambda: proposed[1].owner.fail(Overloaded("full")), messages[2])
    request, socket = cast("Any", Gone({REQUEST_ID_KEY: "a request"})), cast("Any", script)
    stream = CommandStream(node.components, node.config, request, socket, 7, OpenStream(time.monotonic))

    await stream._read()  # pyright: ignore[reportPrivateUsage]

    assert [write.sequence for write in proposed] == [1, 2]
