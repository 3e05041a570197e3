"""Every row of the contract, sent to real clusters; and every route and problem has a row."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, web

from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.app import make_app
from quire.cluster.http.problems import ANSWERS
from quire.cluster.node.node import Node
from quire.replication.net.hello import PEER_PATHS
from tests.cluster.contract import ANSWERED, CALLS, NOWHERE_YET, ROWS, Call, Row, filled
from tests.cluster.malformed.case import Ask
from tests.cluster.running import RunningCluster
from tests.cluster.worlds import Worlds
from tests.packed import unpacked

DEADLINE_S = 20.0
PEERS = {("GET", path) for path in PEER_PATHS}
NOTHING_WRITTEN = {400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 417, 422, 429, 503}
DECIDED_IN_THE_LOG = {
    "session-refused",
    "session-unknown",
    "cursor-refused",
    "cursor-unknown",
    "cursors-full",
}  # Only the attempt is in the log.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Worlds, None]:
    worlds = Worlds(tmp_path_factory.mktemp("contract"))
    try:
        yield worlds
    finally:
        await worlds.close()


async def exchanged(cluster: RunningCluster, at: str, ask: Ask) -> tuple[int, str]:
    """The status and problem with which a stream answers a message; 200 for a result."""
    url = f"http://{cluster.address(at)}{ask.path}"
    async with cluster.session.ws_connect(url, headers=ask.headers, max_msg_size=0) as socket:
        return await _answer(socket, ask.message or b"")


async def _answer(socket: ClientWebSocketResponse, message: bytes) -> tuple[int, str]:
    await socket.send_bytes(message)
    answer = unpacked(await socket.receive_bytes(timeout=DEADLINE_S))
    if len(answer) != 2:
        return 200, ""
    assert (await socket.receive(timeout=DEADLINE_S)).data in (1000, 1006), "a problem ends the stream"
    problem = answer[1]
    assert problem["detail"]
    assert problem["request_id"]
    return problem["status"], problem["type"].removeprefix("urn:quire:problem:")


async def asked(cluster: RunningCluster, at: str, ask: Ask, gives: frozenset[str]) -> tuple[int, str]:
    """The status and problem of an answer; its form is checked, too."""
    reply = await cluster.ask(at, ask.method, ask.path, ask.body, ask.content_type, ask.headers)
    assert reply.headers["Quire-Request-Id"]
    leader = cluster.nodes[at].node.leadership.leader_id
    assert reply.headers.get("Quire-Leader", "").partition("=")[0] == (leader or "")
    if reply.status == 200:
        assert not gives or set(reply.document) == gives
        return 200, ""
    assert ("Retry-After" in reply.headers) == (reply.status in (429, 503)), reply
    assert reply.document["title"]
    assert reply.document["request_id"] == reply.headers["Quire-Request-Id"]
    return reply.status, reply.problem


def written(cluster: RunningCluster) -> int:
    """Where the leader's log ends, or the log of a node that has lost its leader."""
    parts = next(iter(cluster.nodes.values())).node.formed
    return 0 if parts is None else parts.log.bounds.highest_index


def named(asked: tuple[Call, Row, str]) -> str:
    call, row, at = asked
    given = row.given.__qualname__.partition(".")[0]
    return f"{' '.join(call.key)} {row.status} {row.problem} in {row.world} with {given} at {at}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("call", "row", "at"), ROWS, ids=[named(asked) for asked in ROWS])
async def test_a_call_answers_as_its_row_says(worlds: Worlds, call: Call, row: Row, at: str) -> None:
    cluster = await worlds.enter(row.world)
    async with row.given(cluster, at) as values:
        ask = filled(row.ask, {"session": "7", "index": "1", "node": "n1", "name": "mail", **values})
        before = written(cluster)
        if ask.message is not None and (ask.method, row.status, row.problem) != ("PUT", 405, "http"):
            answer = await _stream_answer(cluster, at, ask)
        else:
            answer = await asked(cluster, at, ask, row.gives)
        after = written(cluster)

    assert answer == (row.status, row.problem)
    assert after == before or row.status not in NOTHING_WRITTEN or row.problem in DECIDED_IN_THE_LOG


async def _stream_answer(cluster: RunningCluster, at: str, ask: Ask) -> tuple[int, str]:
    """The answer to a message; if the stream is refused, the answer to the same request as a plain GET."""
    plain = await cluster.ask(at, ask.method, ask.path, None, None, ask.headers)
    if plain.problem != "http":
        return plain.status, plain.problem
    return await exchanged(cluster, at, ask)


def test_every_route_has_its_rows(tmp_path: Path) -> None:
    address = "127.0.0.1:7001"
    config = ServeConfig(node="n1", listen=address, members={"n1": address}, data_dir=tmp_path)
    app: web.Application = make_app(Node(config))
    routes = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }

    assert {call.key for call in CALLS} == routes - PEERS
    assert len(CALLS) == len(routes - PEERS)


def test_every_problem_has_a_row_or_a_reason_to_have_none() -> None:
    problems = {answer.name for answer in ANSWERS.values()} | {"http", "internal"}
    shown = {problem for _, problem in ANSWERED} - {""}

    assert shown | set(NOWHERE_YET) == problems
    assert not shown & set(NOWHERE_YET)


def test_a_problem_has_one_status() -> None:
    statuses: dict[str, set[int]] = {}
    for status, problem in ANSWERED:
        statuses.setdefault(problem, set()).add(status)

    assert {problem for problem, found in statuses.items() if len(found) > 1} == {"http"}
    for answer in ANSWERS.values():
        assert statuses.get(answer.name, {answer.status}) == {answer.status}
        assert answer.status in NOTHING_WRITTEN | {500, 504}


def test_every_leader_s_call_is_asked_of_a_leader_that_is_not_there() -> None:
    for call in CALLS:
        problems = {row.problem for row in call.rows()}
        forwards = {"not-leader", "no-leader", "leader-unreachable"}
        assert problems & forwards in (set(), forwards), call.key
