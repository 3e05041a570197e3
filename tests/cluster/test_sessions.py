"""Sessions over HTTP, through leader and follower: a repeated command is executed once."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import orjson
import pytest
import pytest_asyncio

from quire.cluster.cli.operating.sessions import idle_sessions
from quire.cluster.client import Client, connect
from tests.cluster.running import Reply, RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
DEADLINE_S = 60.0
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("sessions")) as running:
        yield running


async def opened(cluster: RunningCluster, at: str, name: str | None = None) -> Any:
    body = orjson.dumps({} if name is None else {"name": name})
    reply = await cluster.ask(at, "POST", "/sessions", body, JSON)
    assert reply.status == 200, reply
    return reply.document


async def send(cluster: RunningCluster, at: str, session: int, sequence: int, *commands: Any) -> Reply:
    headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
    return await cluster.ask(at, "POST", "/commands", orjson.dumps({"commands": commands}), JSON, headers)


async def until_idle(client: Client, session: int) -> None:
    """Wait until a session counts as idle for a millisecond."""
    async with asyncio.timeout(DEADLINE_S):
        while session not in [row["session"] for row in await idle_sessions(client, "", 0.001)]:
            pass  # Each look takes a while.


async def state(cluster: RunningCluster) -> Any:
    return (await cluster.ask("n1", "GET", "/state")).document["state"]


async def test_sessions_are_idle_by_the_cluster_s_clock_and_not_by_that_of_who_asks(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    year = 365 * 86_400
    session = await opened(cluster, "n1", "in use")
    assert (await send(cluster, "n1", session["session"], 1, ["add", 0])).status == 200
    async with connect(cluster.address("n1")) as client:
        now = time.time() + year
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time", lambda: now)
            assert await idle_sessions(client, "in use", 3_600) == []
        assert [row["session"] for row in await idle_sessions(client, "in use", 0)] == [session["session"]]
        await until_idle(client, session["session"])


@EVERYWHERE
async def test_a_new_session_begins_at_sequence_one(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster, at)

    assert session["sequence"] == 0
    assert (await send(cluster, at, session["session"], 1, ["add", 0])).status == 200


@EVERYWHERE
async def test_a_repeated_command_is_answered_again_and_executed_once(cluster: RunningCluster, at: str) -> None:
    session = (await opened(cluster, at))["session"]
    before = await state(cluster)

    first = await send(cluster, at, session, 1, ["add", 3], ["add", 4])
    again = await send(cluster, at, session, 1, ["add", 3], ["add", 4])
    regrouped = await send(cluster, at, session, 2, ["add", 4], ["add", 0])

    assert first.document["results"] == again.document["results"]
    assert regrouped.document["results"][0] == first.document["results"][1]
    assert float(await state(cluster)) == float(before) + 7


@EVERYWHERE
async def test_each_line_of_a_range_has_the_session_and_the_sequence_of_its_record(
    cluster: RunningCluster, at: str
) -> None:
    session = (await opened(cluster, at))["session"]
    first = (await send(cluster, at, session, 1, ["add", 1], ["add", 2])).document["index"]
    assert (await send(cluster, at, session, 2, ["add", 2])).document["repeated"]
    again = first + 2
    alone = (await cluster.commands(at, ["add", -3]))["index"]

    reply = await cluster.ask("n1", "GET", f"/records?from={first}&to={alone + 1}")
    async with connect(cluster.address("n1")) as client:
        records = [record async for record in client.read_range(first, alone + 1)]

    expected = [(first, session, 1), (first + 1, session, 2), (again, session, 2), (alone, 0, 0)]
    lines = [orjson.loads(line) for line in reply.body.splitlines()]
    assert [(line["index"], line["session"], line["sequence"]) for line in lines] == expected
    assert [(record.index, record.session, record.sequence) for record in records] == expected


@EVERYWHERE
async def test_each_line_of_a_range_says_whether_its_record_executed(cluster: RunningCluster, at: str) -> None:
    session = (await opened(cluster, at))["session"]
    first = (await send(cluster, at, session, 1, ["add", 1], ["add", 2])).document["index"]
    await send(cluster, at, session, 2, ["add", 2], ["add", -3])  # The first of them is a retry.
    await send(cluster, at, session, 9, ["add", 1])  # A gap.
    await send(cluster, at, session, 1, ["add", 9])  # Another command under the sequence of one that executed.
    alone = (await cluster.commands(at, ["div", "3e-6143"], ["add", 0]))["index"]  # The machine refuses the first.
    await cluster.ask(at, "DELETE", f"/sessions/{session}")
    end = (await cluster.commands(at, ["add", 0]))["index"] + 1

    for node_id, running in cluster.nodes.items():
        await running.node.components.applying.reached(end)
        reply = await cluster.ask(node_id, "GET", f"/records?from={first}&to={end}&kinds=all")
        executed = [orjson.loads(line)["executed"] for line in reply.body.splitlines()]
        assert executed == [True, True, False, True, False, False, True, True, None, True]
        async with connect(cluster.address(node_id)) as client:
            read = [record.executed async for record in client.read_range(first, alone + 1)]
        assert read == executed[:7]


@EVERYWHERE
@pytest.mark.parametrize(
    ("sequence", "command", "code"),
    [(9, ["add", 1], "SEQUENCE_GAP"), (1, ["add", 2], "SEQUENCE_REUSED")],
)
async def test_a_sequence_that_is_not_the_next_executes_nothing(
    cluster: RunningCluster, at: str, sequence: int, command: Any, code: str
) -> None:
    session = (await opened(cluster, at))["session"]
    await send(cluster, at, session, 1, ["add", 0])
    before = await state(cluster)

    reply = await send(cluster, at, session, sequence, command)

    assert (reply.status, reply.problem) == (409, "session-refused")
    assert reply.document["code"] == code
    assert await state(cluster) == before


@EVERYWHERE
async def test_reopening_a_name_continues_its_sequence_and_fences_the_old_session(
    cluster: RunningCluster, at: str
) -> None:
    old = await opened(cluster, at, f"billing-{at}")
    done = await send(cluster, at, old["session"], 1, ["add", 5])
    before = await state(cluster)

    new = await opened(cluster, at, f"billing-{at}")
    fenced = await send(cluster, at, old["session"], 2, ["add", 5])
    again = await send(cluster, at, new["session"], 1, ["add", 5])

    limits = {"session_window": 8192, "max_request_bytes": 1 << 20, "history": old["history"], "epoch": old["epoch"]}
    assert new == {"session": new["session"], "sequence": 1, **limits}
    assert (fenced.status, fenced.document["code"]) == (409, "SESSION_FENCED")
    assert again.document["results"] == done.document["results"]
    assert await state(cluster) == before


@EVERYWHERE
async def test_a_closed_session_is_unknown(cluster: RunningCluster, at: str) -> None:
    session = (await opened(cluster, at, f"closing-{at}"))["session"]
    await send(cluster, at, session, 1, ["add", 0])
    there = await cluster.ask(at, "GET", f"/sessions/{session}")

    closed = await cluster.ask(at, "DELETE", f"/sessions/{session}")

    assert there.document == {"session": session, "name": f"closing-{at}", "sequence": 1, "owner": None}
    assert closed.document == {"session": session, "sequence": 1}
    for method in ("GET", "DELETE"):
        reply = await cluster.ask(at, method, f"/sessions/{session}")
        assert (reply.status, reply.problem) == (404, "session-unknown")
    late = await send(cluster, at, session, 2, ["add", 1])
    assert (late.status, late.document["code"]) == (409, "SESSION_EXPIRED")


@EVERYWHERE
async def test_a_repeated_append_under_its_sequence_is_in_the_state_once(cluster: RunningCluster, at: str) -> None:
    session = (await opened(cluster, at))["session"]
    before = await state(cluster)
    headers = {"Quire-Session": str(session), "Quire-Sequence": "1"}

    for _ in range(2):
        reply = await cluster.ask(at, "POST", "/records", orjson.dumps(["add", 2]), JSON, headers)
        assert reply.status == 200, reply

    assert float(await state(cluster)) == float(before) + 2


@EVERYWHERE
@pytest.mark.parametrize(
    "headers",
    [
        {"Quire-Session": "5"},
        {"Quire-Sequence": "5"},
        {"Quire-Session": "0", "Quire-Sequence": "1"},
        {"Quire-Session": "5", "Quire-Sequence": "0"},
        {"Quire-Session": "five", "Quire-Sequence": "1"},
        {"Quire-Session": "5", "Quire-Sequence": "-1"},
        {"Quire-Session": str(2**64), "Quire-Sequence": "1"},
        {"Quire-Sesion": "5"},
    ],
)
async def test_malformed_session_headers_are_refused(cluster: RunningCluster, at: str, headers: dict[str, str]) -> None:
    before = await state(cluster)

    reply = await cluster.ask(at, "POST", "/commands", b'{"commands": [["add", 1]]}', JSON, headers)

    assert (reply.status, reply.problem) == (400, "malformed")
    assert await state(cluster) == before


@EVERYWHERE
@pytest.mark.parametrize(
    "body", [b"[]", b'{"name": 5}', b'{"name": ""}', b'{"nom": "x"}', b"{", b'{"name": "%s"}' % (b"x" * 201)]
)
async def test_a_session_is_opened_by_its_name_or_nothing(cluster: RunningCluster, at: str, body: bytes) -> None:
    reply = await cluster.ask(at, "POST", "/sessions", body, JSON)

    assert (reply.status, reply.problem) == (400, "malformed")


@EVERYWHERE
async def test_more_commands_than_a_session_remembers_are_too_many_for_one_request(
    cluster: RunningCluster, at: str
) -> None:
    session = (await opened(cluster, at))["session"]

    full = await send(cluster, at, session, 1, *([["add", 0]] * 8192))
    over = await send(cluster, at, session, 8193, *([["add", 0]] * 8193))

    assert full.status == 200
    assert (over.status, over.problem) == (413, "limit-exceeded")
    assert over.document["limit"] == 8192


@EVERYWHERE
async def test_sessions_are_listed_in_pages_and_closed_together(cluster: RunningCluster, at: str) -> None:
    async with connect(cluster.address(at)) as client:
        prefix = f"listed at {at} "
        ids = []
        for number in range(5):
            async with connect(cluster.address(at), session=f"{prefix}{number}") as holder:
                await holder.apply(["add", 0])
                ids.append((await holder.session()).id)
        rows = [row async for row in client.sessions(prefix)]
        assert [(row["session"], row["name"], row["sequence"]) for row in rows] == [
            (session, f"{prefix}{number}", 1) for number, session in enumerate(ids)
        ]
        assert all(row["used_at"] > 1_700_000_000_000_000 for row in rows)
        page = await cluster.ask(at, "GET", f"/sessions?after={ids[0]}&limit=2&prefix={quote(prefix)}")
        assert [row["session"] for row in page.document["sessions"]] == ids[1:3]
        assert page.document["next"] == ids[2]
        assert await client.close_sessions([*ids[:3], 999_999]) == ids[:3]
        assert [row["session"] async for row in client.sessions(prefix)] == ids[3:]
        await client.close_sessions(ids)
