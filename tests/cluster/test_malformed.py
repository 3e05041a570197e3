"""Malformed input, to leader and follower: each has its answer, never a 500, and nothing is appended."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from quire.cluster.http.problems import problem
from quire.replication.address import host_and_port
from tests.cluster.malformed.case import JSON, Ask, Case, Many, OnStream, Raw
from tests.cluster.malformed.generated import GENERATED
from tests.cluster.malformed.page import TYPE, count_of_inputs, malformed_page
from tests.cluster.malformed.requests import REQUESTS
from tests.cluster.malformed.wire import BODIES, FRAMES, HANDSHAKE, HEAD, LINES, MESSAGES, TAKEN
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.packed import unpacked

PAGE = Path(__file__).parents[2] / "docs" / "malformed.md"
CASES = [case for _, cases in REQUESTS for case in cases]
LEADER_AND_FOLLOWER = pytest.mark.parametrize("at", ["n1", pytest.param("n2", marks=pytest.mark.full)])
DEADLINE_S = 20.0
EXAMPLES = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("malformed"), election_timeout_ms=30_000) as running:
        yield running


def tail(cluster: RunningCluster) -> int:
    """Where the leader's log ends."""
    parts = cluster.nodes["n1"].node.formed
    assert parts is not None
    return parts.log.bounds.highest_index


@contextmanager
def nothing_written(cluster: RunningCluster, caplog: pytest.LogCaptureFixture) -> Generator[None, None, None]:
    """Check that nothing was appended and no error was logged."""
    before = tail(cluster)
    caplog.clear()
    with capture_logs() as said:
        yield
    assert tail(cluster) == before
    assert [line for line in said if line["log_level"] in ("error", "critical")] == []
    assert [line for line in caplog.records if line.levelname in ("ERROR", "CRITICAL")] == []


async def asked(cluster: RunningCluster, at: str, ask: Ask) -> Reply:
    return await cluster.ask(at, ask.method, ask.path, ask.body, ask.content_type, ask.headers)


@pytest.mark.asyncio(loop_scope="module")
@LEADER_AND_FOLLOWER
@pytest.mark.parametrize("case", CASES, ids=[f"{case.ask.method} {case.ask.path} {case.status}" for case in CASES])
async def test_a_malformed_request_has_its_own_answer_and_changes_nothing(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, at: str, case: Case
) -> None:
    with nothing_written(cluster, caplog):
        reply = await asked(cluster, at, case.ask)

    assert (reply.status, reply.problem) == (case.status, case.problem), reply.body
    assert ("Allow" in reply.headers) == (reply.status == 405)


@pytest.mark.asyncio(loop_scope="module")
@LEADER_AND_FOLLOWER
@pytest.mark.parametrize("many", GENERATED, ids=[many.says for many in GENERATED])
@EXAMPLES
@given(data=st.data())
async def test_a_kind_of_malformed_requests_has_one_answer(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, at: str, many: Many, data: st.DataObject
) -> None:
    ask = data.draw(many.asks)

    with nothing_written(cluster, caplog):
        reply = await asked(cluster, at, ask)

    assert (reply.status, reply.problem) == (many.status, many.problem), reply.body


async def answered(cluster: RunningCluster, at: str, pieces: tuple[bytes, ...]) -> tuple[int, str]:
    """The status of the answer to raw bytes, and its problem, if it is one; 'in plain text' if it has no type."""
    reader, writer = await asyncio.open_connection(*host_and_port(cluster.address(at)))
    try:
        async with asyncio.timeout(DEADLINE_S):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await cluster.ask(
                    at, "GET", "/healthz"
                )  # So that the node has read this piece before the next one arrives.
            head, body = await read_answer(reader)
    finally:
        writer.close()
    status = int(head.split()[1])
    if b"application/problem+json" not in head:
        return status, "" if status == 200 else "in plain text"
    document = orjson.loads(body)
    assert document["request_id"]
    assert document["status"] == status
    return status, document["type"].removeprefix(TYPE)


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head, and as much of the body as it announces."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    [length] = [int(value) for name, _, value in lines if name.lower() == b"content-length"]
    return head, await reader.readexactly(length)


RAW = [*BODIES, *LINES, *TAKEN]


@pytest.mark.asyncio(loop_scope="module")
@LEADER_AND_FOLLOWER
@pytest.mark.parametrize("case", RAW, ids=[case.says for case in RAW])
async def test_non_http_input_gets_a_problem_and_affects_nobody_else(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, at: str, case: Raw
) -> None:
    with nothing_written(cluster, caplog):
        answer = await answered(cluster, at, case.pieces)

    assert answer == (case.status, case.problem)


@pytest.mark.asyncio(loop_scope="module")
@LEADER_AND_FOLLOWER
async def test_a_caller_that_disconnects_inside_a_request_leaves_no_trace(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    whole = HEAD + b'Content-Length: 99\r\n\r\n{"com'
    with nothing_written(cluster, caplog):
        for end in range(0, len(whole), 9):
            _, writer = await asyncio.open_connection(*host_and_port(cluster.address(at)))
            writer.write(whole[:end])
            await writer.drain()
            await cluster.ask(at, "GET", "/healthz")
            writer.close()
            await writer.wait_closed()
            await cluster.ask(at, "GET", "/healthz")


async def on_stream(cluster: RunningCluster, at: str, sent: bytes) -> tuple[int, str]:
    """The code with which a stream is closed, and the problem that was sent before."""
    session = (await cluster.ask("n1", "POST", "/sessions", b"{}", JSON)).document["session"]
    reader, writer = await asyncio.open_connection(*host_and_port(cluster.address(at)))
    problem = ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(HANDSHAKE % str(session).encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            with suppress(ConnectionError):  # A message that is too long may be refused before all of it was sent.
                writer.write(sent)
                await writer.drain()
            while (heard := await read_frame(reader))[0] != 0x88:
                problem = unpacked(heard[1])[1]["type"].removeprefix(TYPE)
    finally:
        writer.close()
    return struct.unpack(">H", heard[1])[0], problem


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head, length = await reader.readexactly(2)
    if length == 126:
        [length] = struct.unpack(">H", await reader.readexactly(2))
    return head, await reader.readexactly(length)


STREAMED = [*MESSAGES, *FRAMES]


@pytest.mark.asyncio(loop_scope="module")
@LEADER_AND_FOLLOWER
@pytest.mark.parametrize("case", STREAMED, ids=[case.says for case in STREAMED])
async def test_a_message_that_a_stream_refuses_ends_it_with_a_reason(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, at: str, case: OnStream
) -> None:
    before = tail(cluster)

    with capture_logs() as said:
        answer = await on_stream(cluster, at, case.sent)

    assert answer == (case.code, case.problem)
    assert tail(cluster) == before + 1, "the session was opened, and no more"
    assert [line for line in said if line["log_level"] in ("error", "critical")] == []
    assert [line for line in caplog.records if line.levelname in ("ERROR", "CRITICAL")] == []


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == malformed_page(), "run python -m tests.cluster.malformed.page > docs/malformed.md"
    assert count_of_inputs() > 100


def test_a_problem_is_json_whatever_it_quotes() -> None:
    answer = problem(
        400, "malformed", "Malformed", "it holds \udcff", {"size": 1 << 70, "refused": [[0, "NO", "\ud800"]]}
    )

    assert isinstance(answer.body, bytes)
    document = orjson.loads(answer.body)
    assert (document["detail"], document["size"], document["refused"]) == ("it holds ?", 1 << 70, [[0, "NO", "?"]])
