"""Sessions belong to the name of the token that opened them: nobody else writes under them, or closes or opens them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import WSServerHandshakeError

from quire.cluster.access.roles import Role
from quire.cluster.client import SessionOwned, connect
from quire.log import FEATURES, SESSION_OWNERS, pack
from tests.cluster.acting import Acting
from tests.cluster.conditions import held
from tests.cluster.machines import Gate
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.cluster.test_session_openings import close_all, of_at_most
from tests.cluster.test_slow_machines import BARRIERS, GATE, unapplied, until, waiting
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
DEADLINE_S = 60.0
OWNED = (403, "session-owned", "SESSION_OWNED")

acting = Acting()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    with pytest.MonkeyPatch.context() as patch:
        acting.install(patch)
        async with running_cluster(tmp_path_factory.mktemp("owners")) as running:
            yield running


async def post(cluster: RunningCluster, at: str, name: str | None) -> Reply:
    return await cluster.ask(at, "POST", "/sessions", orjson.dumps({} if name is None else {"name": name}), JSON)


async def opened(cluster: RunningCluster, owner: str, name: str | None = None) -> int:
    with acting.as_caller(owner):
        reply = await post(cluster, "n1", name)
    assert reply.status == 200, reply
    return int(reply.document["session"])


async def send(
    cluster: RunningCluster, at: str, session: int, sequence: int = 1, path: str = "/commands", body: Any = None
) -> Reply:
    headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
    document = {"commands": [["add", 1]]} if body is None else body
    return await cluster.ask(at, "POST", path, orjson.dumps(document), JSON, headers)


async def row_of(cluster: RunningCluster, session: int) -> Any:
    return (await cluster.ask("n3", "GET", f"/sessions/{session}")).document


async def end_of_log(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])


def refusal(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, reply.problem, reply.headers.get("Quire-Session-Code")


async def test_a_session_shows_the_name_that_opened_it(cluster: RunningCluster) -> None:
    session = await opened(cluster, "alice", "shown")
    unnamed = await opened(cluster, "bob")
    unowned = (await post(cluster, "n1", "of a node without tokens")).document["session"]

    assert await row_of(cluster, session) == {"session": session, "name": "shown", "sequence": 0, "owner": "alice"}
    listed = (await cluster.ask("n3", "GET", "/sessions")).document["sessions"]
    owners = {row["session"]: row["owner"] for row in listed}
    assert [owners[each] for each in (session, unnamed, unowned)] == ["alice", "bob", None]


@EVERYWHERE
async def test_a_write_under_another_s_session_is_refused_and_not_appended(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster, "alice")
    before = await end_of_log(cluster)

    with acting.as_caller("bob", Role.ADMIN):
        for path, body in (("/commands", None), ("/records", ["add", 1])):
            assert refusal(await send(cluster, at, session, path=path, body=body)) == OWNED
    assert await end_of_log(cluster) == before
    with acting.as_caller("alice"):
        assert (await send(cluster, at, session)).status == 200


@EVERYWHERE
async def test_raw_records_under_another_s_session_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    acting.install(monkeypatch)
    async with running_cluster(tmp_path, machine="log") as cluster:
        session = await opened(cluster, "alice")
        before = await end_of_log(cluster)
        headers = {"Quire-Session": str(session), "Quire-Sequence": "1"}
        with acting.as_caller("bob"):
            for size in (1, (1 << 20) + 1):  # One record, and one blob.
                body = bytes(size)
                reply = await cluster.ask(at, "POST", "/records", body, "application/octet-stream", headers)
                assert refusal(reply) == OWNED
        assert await end_of_log(cluster) == before


@EVERYWHERE
async def test_a_stream_of_another_s_session_is_not_opened(cluster: RunningCluster, at: str) -> None:
    session = await opened(cluster, "alice")
    url = f"http://{cluster.address(at)}/commands/stream?session={session}"

    with acting.as_caller("bob"), pytest.raises(WSServerHandshakeError) as error:
        await cluster.session.ws_connect(url)
    assert error.value.status == 403
    assert error.value.headers is not None
    assert error.value.headers["Quire-Session-Code"] == "SESSION_OWNED"
    with acting.as_caller("alice"):
        async with cluster.session.ws_connect(url) as socket:
            await socket.send_bytes(pack([1, [["add", 1]]]))
            assert unpacked(await socket.receive_bytes())[0] == 1


@EVERYWHERE
async def test_a_name_is_opened_again_by_its_owner_only(cluster: RunningCluster, at: str) -> None:
    name = f"held at {at}"
    session = await opened(cluster, "alice", name)

    with acting.as_caller("bob", Role.ADMIN):
        assert refusal(await post(cluster, at, name)) == OWNED
    reply = await post(cluster, at, name)  # As at a node without tokens.
    assert refusal(reply) == OWNED
    assert "'alice'" in reply.document["detail"]
    assert f"quire session close {session}" in reply.document["detail"]
    assert (await row_of(cluster, session))["session"] == session
    assert await opened(cluster, "alice", name) > session


@EVERYWHERE
async def test_only_the_owner_and_an_admin_close_a_session(cluster: RunningCluster, at: str) -> None:
    first, second = await opened(cluster, "alice"), await opened(cluster, "alice")

    with acting.as_caller("bob"):
        assert refusal(await cluster.ask(at, "DELETE", f"/sessions/{first}")) == OWNED
    with acting.as_caller("alice"):
        assert (await cluster.ask(at, "DELETE", f"/sessions/{first}")).status == 200
        assert (await cluster.ask(at, "DELETE", f"/sessions/{first}")).problem == "session-unknown"
    with acting.as_caller("bob", Role.ADMIN):
        assert (await cluster.ask(at, "DELETE", f"/sessions/{second}")).status == 200


@EVERYWHERE
async def test_many_are_closed_at_once_unless_one_is_another_s(cluster: RunningCluster, at: str) -> None:
    own, other = await opened(cluster, "bob"), await opened(cluster, "alice")

    async def close(*sessions: int) -> Reply:
        return await cluster.ask(at, "POST", "/sessions/close", orjson.dumps({"sessions": sessions}), JSON)

    with acting.as_caller("bob"):
        assert refusal(await close(own, other)) == OWNED
        assert (await row_of(cluster, own))["session"] == own, "none was closed"
        assert (await close(own, 10**9)).document == {"closed": [own]}
    with acting.as_caller("carol", Role.ADMIN):
        assert (await close(own, other)).document == {"closed": [other]}


async def test_one_name_opens_its_share_of_the_named_sessions_and_no_more(cluster: RunningCluster) -> None:
    await close_all(cluster)
    with of_at_most(cluster, 20):  # Of these, 18 may have names.
        with acting.as_caller("mallory"):
            replies = await asyncio.gather(*(post(cluster, "n3", f"share {number}") for number in range(30)))
            refused = [reply for reply in replies if reply.status != 200]
            assert len(refused) == 21
            assert {(reply.status, reply.problem) for reply in refused} == {(429, "sessions-full")}
            assert (await post(cluster, "n1", None)).status == 200, "there is room without a name"
            own = next(f"share {number}" for number, reply in enumerate(replies) if reply.status == 200)
            assert (await post(cluster, "n1", own)).status == 200, "its own can be opened again"
            detail = (await post(cluster, "n1", "one more")).document["detail"]
        assert "9 named sessions of 'mallory' are open and 0 more" in detail
        with acting.as_caller("carol", Role.ADMIN):
            for number in range(4):
                assert (await post(cluster, "n1", f"an admin's {number}")).status == 200
        for number in range(4):
            await opened(cluster, "alice", f"another's {number}")
    with of_at_most(cluster, 10), acting.as_caller("carol", Role.ADMIN):
        await close_all(cluster)
        for number in range(9):
            assert (await post(cluster, "n1", f"all {number}")).status == 200, "an admin has no share"


async def test_a_node_without_tokens_asks_no_name(cluster: RunningCluster) -> None:
    session = await opened(cluster, "alice")
    assert (await send(cluster, "n3", session)).status == 200
    assert (await cluster.ask("n3", "DELETE", f"/sessions/{session}")).status == 200


@EVERYWHERE
async def test_a_write_under_a_session_that_will_be_opened_is_refused_before_it_is(
    cluster: RunningCluster, at: str
) -> None:
    """If it were appended, it could come after the opening of that session by somebody else."""
    before = await end_of_log(cluster)
    with acting.as_caller("bob"):
        reply = await send(cluster, at, before + 1)
    assert refusal(reply) == (409, "session-refused", "SESSION_EXPIRED")
    assert reply.document["refused"][0][:2] == [0, "SESSION_EXPIRED"]
    assert await end_of_log(cluster) == before


async def test_a_client_gets_the_reason_and_does_not_repeat_the_request(cluster: RunningCluster) -> None:
    session = await opened(cluster, "alice", "a client's")
    before = await end_of_log(cluster)

    with acting.as_caller("bob"):
        async with connect(cluster.address("n3"), session="a client's") as client:
            for _ in range(2):
                with pytest.raises(SessionOwned, match=r"^SESSION_OWNED: session \d+, .* belongs to 'alice'"):
                    await client.apply(["add", 1])
            with pytest.raises(SessionOwned):
                await client.session()
            with pytest.raises(SessionOwned, match="belongs to 'alice'"):
                await client.close_session(session)
    assert await end_of_log(cluster) == before + 3, "only the openings are in the log, each once"


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


async def test_a_write_under_a_session_that_is_not_applied_yet_waits_until_its_owner_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    acting.install(monkeypatch)
    async with (
        running_cluster(tmp_path, 1, machine=GATE, request_timeout_ms=60_000) as cluster,
        asyncio.timeout(DEADLINE_S),
    ):
        session = await end_of_log(cluster) + 1
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)), acting.as_caller("alice"):
            hanging = asyncio.create_task(cluster.commands("n1", "wait"))
            await until(lambda: waiting(cluster) == 1)
            opening = asyncio.create_task(post(cluster, "n1", None))
            await until(lambda: waiting(cluster) == 2)
        await until(lambda: unapplied(cluster) == [2])
        with acting.as_caller("bob"):
            asked = asyncio.create_task(send(cluster, "n1", session, body={"commands": ["next"]}))
            for _ in range(BARRIERS):  # The request arrives long before the session is applied.
                await cluster.ask("n1", "GET", "/healthz")
        gate.opened.set()

        await hanging
        assert (await opening).document["session"] == session
        assert refusal(await asked) == OWNED


async def test_sessions_have_owners_once_every_member_offers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of the version before, whose nodes are upgraded one after the other."""
    acting.install(monkeypatch)
    async with asyncio.timeout(DEADLINE_S):
        with monkeypatch.context() as before:
            before.setattr("quire.cluster.node.components.FEATURES", FEATURES - {SESSION_OWNERS})
            async with running_cluster(tmp_path) as cluster:
                session = await opened(cluster, "alice", "billing")
                assert (await row_of(cluster, session))["owner"] is None
                with acting.as_caller("bob"):
                    assert (await send(cluster, "n3", session)).status == 200
                    assert (await post(cluster, "n3", "billing")).status == 200
                addresses = [cluster.address(node_id) for node_id in cluster.nodes]
        async with running_cluster(tmp_path, addresses=addresses) as cluster:
            components = cluster.nodes["n1"].node.components
            await until_asked(cluster, lambda: SESSION_OWNERS in components.applying.features)
            session = await opened(cluster, "alice", "billing")
            assert await row_of(cluster, session) == {
                "session": session,
                "name": "billing",
                "sequence": 1,
                "owner": "alice",
            }
            with acting.as_caller("bob"):
                assert refusal(await send(cluster, "n3", session, 2)) == OWNED


async def until_asked(cluster: RunningCluster, is_so: Callable[[], bool]) -> None:
    """Until it is so, while requests keep the loop turning."""
    while not is_so():
        await cluster.ask("n1", "GET", "/healthz")
