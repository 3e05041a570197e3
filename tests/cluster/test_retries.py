"""What a write under a session is answered: a retry, a mistake, and a part of each, by every route and kind of body."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import WSMsgType

from quire.log import pack, unpack
from tests.cluster.running import Reply, RunningCluster, running_cluster, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 60
JSON, NDJSON = "application/json", "application/x-ndjson"
MSGPACK, OCTETS = "application/msgpack", "application/octet-stream"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
BODIES = pytest.mark.parametrize(
    ("body", "content_type", "count"),
    [
        (b'"one"', JSON, 1),
        (b'"one"\n"two"\n', NDJSON, 2),
        (pack(["one", "two", "three"]), MSGPACK, 3),
        (b"raw", OCTETS, 1),
        (b"x" * ((1 << 20) + 1), OCTETS, 1),  # A blob.
    ],
    ids=["json", "ndjson", "msgpack", "raw", "blob"],
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("retries")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("retried records"), machine="log") as running:
        yield running


async def opened(cluster: RunningCluster, name: str | None = None) -> int:
    body = orjson.dumps({} if name is None else {"name": name})
    async with asyncio.timeout(DEADLINE_S):
        while (reply := await cluster.ask("n1", "POST", "/sessions", body, JSON)).status != 200:
            pass
    return int(reply.document["session"])


async def write(
    cluster: RunningCluster,
    at: str,
    path: str,
    session: int,
    sequence: int,
    body: bytes,
    content_type: str = JSON,
) -> Reply:
    headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
    return await cluster.ask(at, "POST", path, body, content_type, headers)


async def command(cluster: RunningCluster, at: str, session: int, sequence: int, *commands: Any) -> Reply:
    return await write(cluster, at, "/commands", session, sequence, orjson.dumps({"commands": commands}))


async def sequence_of(cluster: RunningCluster, session: int) -> int:
    return int((await cluster.ask("n1", "GET", f"/sessions/{session}")).document["sequence"])


@EVERYWHERE
@BODIES
async def test_a_write_that_its_session_refuses_is_refused_whatever_its_body_is(
    log_cluster: RunningCluster, at: str, body: bytes, content_type: str, count: int
) -> None:
    fenced = await opened(log_cluster, f"writer {at} {content_type} {len(body)}")
    successor = await opened(log_cluster, f"writer {at} {content_type} {len(body)}")
    for session, sequence, code in (
        (fenced, 1, "SESSION_FENCED"),
        (successor, 3, "SEQUENCE_GAP"),
        (999_999, 1, "SESSION_EXPIRED"),
    ):
        reply = await write(log_cluster, at, "/records", session, sequence, body, content_type)

        assert (reply.status, reply.problem) == (409, "session-refused")
        assert [refusal[:2] for refusal in reply.document["refused"]] == [[position, code] for position in range(count)]


@EVERYWHERE
@BODIES
async def test_a_repeated_write_of_records_says_so_and_has_no_index_of_its_copy(
    log_cluster: RunningCluster, at: str, body: bytes, content_type: str, count: int
) -> None:
    session = await opened(log_cluster)

    first = await write(log_cluster, at, "/records", session, 1, body, content_type)
    again = await write(log_cluster, at, "/records", session, 1, body, content_type)

    assert first.document == {"write_index": session + 1, "count": count}  # A session's id is its record's index.
    assert (again.status, again.document) == (200, {"repeated": True, "count": count})


@EVERYWHERE
@BODIES
async def test_a_repeated_write_with_an_index_gets_its_recorded_answer_and_a_first_one_keeps_its_condition(
    log_cluster: RunningCluster, at: str, body: bytes, content_type: str, count: int
) -> None:
    session = await opened(log_cluster)
    index = session + 1

    async def put(expected: int) -> Reply:
        return await write(log_cluster, at, f"/records?index={expected}", session, 1, body, content_type)

    for wrong in (0, index + 1):
        refused = await put(wrong)
        assert (refused.status, refused.problem) == (409, "wrong-index")
    assert await sequence_of(log_cluster, session) == 0
    first = await put(index)
    again = await put(index)

    assert first.document == {"write_index": index, "count": count}
    assert (again.status, again.document) == (200, {"repeated": True, "count": count})
    assert await sequence_of(log_cluster, session) == count


@EVERYWHERE
async def test_a_partly_new_write_with_another_index_is_refused_and_executes_nothing(
    log_cluster: RunningCluster, at: str
) -> None:
    session = await opened(log_cluster)
    first = await write(log_cluster, at, "/records", session, 1, pack(["one"]), MSGPACK)
    index = first.document["write_index"]

    reply = await write(log_cluster, at, f"/records?index={index}", session, 1, pack(["one", "two"]), MSGPACK)

    assert (reply.status, reply.problem) == (409, "wrong-index")
    assert await sequence_of(log_cluster, session) == 1


@EVERYWHERE
async def test_a_write_with_another_index_under_a_closed_session_is_refused_by_the_session(
    log_cluster: RunningCluster, at: str
) -> None:
    session = await opened(log_cluster)
    first = await write(log_cluster, at, "/records", session, 1, pack(["one", "two"]), MSGPACK)
    await log_cluster.ask(at, "DELETE", f"/sessions/{session}")

    path = f"/records?index={first.document['write_index']}"
    reply = await write(log_cluster, at, path, session, 1, pack(["one", "two"]), MSGPACK)

    assert (reply.status, reply.document["code"]) == (409, "SESSION_EXPIRED")
    assert len(reply.document["refused"]) == 2


@pytest.mark.full
async def test_a_retry_whose_original_is_not_committed_is_no_wrong_index(tmp_path: Path) -> None:
    """The original is in the leader's log, and its session does not know it yet."""
    async with running_cluster(tmp_path, election_timeout_ms=120_000, request_timeout_ms=600) as cluster:
        session = await opened(cluster)
        configs = [cluster.nodes[node_id].config for node_id in ("n2", "n3")]
        for config in configs:
            await cluster.stop(config.node)
        index = cluster.nodes["n1"].node.components.log.tail.index

        async def put() -> Reply:
            return await write(cluster, "n1", f"/records?index={index}", session, 1, b'["add", 5]')

        original, retry = await put(), await put()

        assert cluster.nodes["n1"].node.components.log.tail.index == index + 1
        assert [reply.problem for reply in (original, retry)] == ["outcome-unknown"] * 2
        for config in configs:
            cluster.nodes[config.node] = await started(config)
        async with asyncio.timeout(DEADLINE_S):
            while (answer := await put()).status == 504:
                pass
        assert (answer.status, answer.document) == (200, {"repeated": True, "count": 1})
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "47"  # It begins at 42.


async def test_a_later_leader_answers_a_repeated_write_with_an_index_as_the_first_one_would(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        session = await opened(cluster)
        original = await write(cluster, "n1", f"/records?index={session + 1}", session, 1, b'["add", 5]')
        await cluster.lead("n2")
        repeated, other = [
            await write(cluster, "n1", f"/records?index={session + 1}", session, sequence, b'["add", 5]')
            for sequence in (1, 2)
        ]
        state = (await cluster.ask("n1", "GET", "/state")).document["state"]

    assert original.document == {"write_index": session + 1, "count": 1}
    assert (repeated.status, repeated.document) == (200, {"repeated": True, "count": 1})
    assert (other.status, other.problem) == (409, "wrong-index")
    assert state == "47"


@EVERYWHERE
async def test_records_that_are_refused_in_part_are_named_as_commands_are(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster)
    values = [["add", 1], ["mul", "1E+6000"], ["mul", "1E+6000"], ["mul", 0]]

    first = await write(cluster, at, "/records", session, 1, pack(values), MSGPACK)
    again = await write(cluster, at, "/records", session, 1, pack([*values[:3], ["mul", 1]]), MSGPACK)
    same = await command(cluster, at, session, 1, *values[:3], ["mul", 1])

    assert [refusal[:2] for refusal in first.document["refused"]] == [[2, "OVERFLOW"]]
    assert {name: first.document[name] for name in first.document if name != "refused"} == {
        "write_index": first.document["write_index"],
        "count": 4,
    }
    assert [refusal[:2] for refusal in again.document["refused"]] == [[2, "OVERFLOW"], [3, "SEQUENCE_REUSED"]]
    assert again.document["refused"] == same.document["refused"]
    assert set(again.document) == {"repeated", "count", "refused"}


async def test_more_refusals_of_records_than_fit_into_an_answer_are_cut(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, answer_bytes=4096) as cluster:
        session = await opened(cluster)
        await write(cluster, "n1", "/records", session, 1, pack([["add", 1]] * 200), MSGPACK)

        reply = await write(cluster, "n1", "/records", session, 1, pack([["add", 1]] + [["add", 2]] * 199), MSGPACK)

    assert (reply.document["repeated"], reply.document["count"]) == (True, 200)
    assert len(reply.document["refused"]) == reply.document["cut"] - 1 < 199
    assert len(reply.body) < 8192


@EVERYWHERE
async def test_a_repeated_command_says_so_and_has_no_index_of_its_copy(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster)
    first = await command(cluster, at, session, 1, ["mul", 0], ["add", 6])

    again = await command(cluster, at, session, 1, ["mul", 0], ["add", 6])
    partly = await command(cluster, at, session, 2, ["add", 6], ["add", 2])
    others = await command(cluster, at, session, 3, ["add", 3], ["add", 4])

    epoch = first.document["epoch"]
    assert set(first.document) == {"index", "epoch", "results"}
    assert again.document == {"repeated": True, "epoch": epoch, "results": first.document["results"]}
    assert partly.document == {"repeated": True, "epoch": epoch, "results": ["6", "8"]}
    # The last one has no recorded reply: its first command is refused, the other one executes at its own index.
    assert [refusal[:2] for refusal in others.document["refused"]] == [[0, "SEQUENCE_REUSED"]]
    assert others.document["results"] == [None, "12"]
    record = await cluster.ask("n1", "GET", f"/records/{others.document['index'] + 1}")
    assert ("repeated" not in others.document, record.document) == (True, ["add", 4])


@EVERYWHERE
async def test_what_the_machine_refused_is_repeated_and_no_refusal_by_the_session(
    cluster: RunningCluster, at: str
) -> None:
    session = await opened(cluster)
    await command(cluster, at, session, 1, ["add", "1E+6000"])
    first = await command(cluster, at, session, 2, ["mul", "1E+6000"])

    again = await command(cluster, at, session, 2, ["mul", "1E+6000"])
    mixed = await command(cluster, at, session, 1, ["add", 7], ["mul", "1E+6000"])
    await command(cluster, at, session, 3, ["mul", 0])

    assert (first.status, again.status, again.document["repeated"]) == (200, 200, True)
    assert again.document["refused"] == first.document["refused"]
    # The session answered the second one, so this is no refusal of the request as a whole.
    assert (mixed.status, mixed.document["repeated"]) == (200, True)
    assert [refusal[:2] for refusal in mixed.document["refused"]] == [[0, "SEQUENCE_REUSED"], [1, "OVERFLOW"]]


@EVERYWHERE
async def test_a_repeated_message_of_a_stream_has_no_index(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster)
    url = f"http://{cluster.address(at)}/commands/stream?session={session}"
    answers: list[Any] = []
    for _ in range(2):
        async with cluster.session.ws_connect(url, compress=0) as socket, asyncio.timeout(DEADLINE_S):
            await socket.send_bytes(pack([1, [["mul", 0], ["add", 4]]]))
            message = await socket.receive()
            assert message.type is WSMsgType.BINARY
            answers.append(unpack(message.data))

    first, again = answers
    assert float(first[3][1]) == 4
    assert isinstance(first[1], int)
    assert again == [1, None, first[2], first[3], []]
