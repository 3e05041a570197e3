"""Calls that name a history: a cluster refuses those of another one, and compares nothing if none is named."""

from collections.abc import AsyncGenerator

import orjson
import pytest
import pytest_asyncio

from tests.cluster.running import Reply, RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
OTHER = "0" * 32
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("histories")) as running:
        yield running


async def send(cluster: RunningCluster, at: str, path: str, session: int, history: str | None) -> Reply:
    headers = {"Quire-Session": str(session), "Quire-Sequence": "1"}
    if history is not None:
        headers["Quire-History"] = history
    body = orjson.dumps({"commands": [["add", 1]]} if path == "/commands" else ["add", 1])
    return await cluster.ask(at, "POST", path, body, JSON, headers)


@EVERYWHERE
@pytest.mark.parametrize("path", ["/commands", "/records"])
async def test_a_write_of_another_history_is_refused_and_appends_nothing(
    cluster: RunningCluster, at: str, path: str
) -> None:
    opened = (await cluster.ask(at, "POST", "/sessions", b"{}", JSON)).document
    status = (await cluster.ask(at, "GET", "/status")).document
    before = (await cluster.ask(at, "GET", "/index_bounds?consistency=linearizable")).document

    refused = await send(cluster, at, path, opened["session"], OTHER)

    assert refused.status == 409, refused
    assert opened["history"] == status["history"] == status["cluster_id"]
    assert (refused.status, refused.problem, refused.headers["Quire-Session-Code"]) == (
        409,
        "history-changed",
        "HISTORY_CHANGED",
    )
    assert opened["history"] in refused.document["detail"]
    assert (await cluster.ask(at, "GET", "/index_bounds?consistency=linearizable")).document == before
    for history in (opened["history"], None):
        assert (await send(cluster, at, path, opened["session"], history)).status == 200


@EVERYWHERE
async def test_a_reader_s_next_page_comes_from_the_same_history_or_is_refused(cluster: RunningCluster, at: str) -> None:
    page = await cluster.ask(at, "GET", "/records?from=0")
    history = page.headers["Quire-History"]

    assert (await cluster.ask(at, "GET", f"/records?from=0&history={history}")).status == 200
    refused = await cluster.ask(at, "GET", f"/records?from=0&history={OTHER}")

    assert (refused.status, refused.problem) == (409, "history-changed")


@EVERYWHERE
async def test_a_stream_of_another_history_is_not_opened(cluster: RunningCluster, at: str) -> None:
    session = (await cluster.ask(at, "POST", "/sessions", b"{}", JSON)).document["session"]

    refused = await cluster.ask(at, "GET", f"/commands/stream?session={session}&history={OTHER}")

    assert (refused.status, refused.problem) == (409, "history-changed")
