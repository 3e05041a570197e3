"""A request's id: in its response, its problem, and each log line about it, on both sides of the hop."""

from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import WSMsgType
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from quire.cluster.http import app
from quire.cluster.http.request import FORWARDED, REQUEST_ID_CHARACTERS
from quire.cluster.request_id import REQUEST_ID
from quire.log import pack
from tests.cluster.running import RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
JSON = "application/json"
LONGEST = "a" * REQUEST_ID_CHARACTERS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    machine = "tests.cluster.machines:Notes"
    async with running_cluster(tmp_path_factory.mktemp("request_ids"), machine=machine) as running:
        yield running


def commands(*values: Any) -> bytes:
    return orjson.dumps({"commands": values})


@EVERYWHERE
async def test_every_response_has_its_own_id(cluster: RunningCluster, at: str) -> None:
    names = set()
    for method, path in [("POST", "/commands"), ("GET", "/status"), ("GET", "/state"), ("GET", "/nowhere")] * 2:
        names.add((await cluster.ask(at, method, path)).headers[REQUEST_ID])

    assert len(names) == 8


@EVERYWHERE
@pytest.mark.parametrize("given", ["order-17", "a:b_c.D-9", LONGEST])
async def test_a_caller_s_own_id_is_kept(cluster: RunningCluster, at: str, given: str) -> None:
    good = await cluster.ask(at, "POST", "/commands", commands("x"), JSON, {REQUEST_ID: given})
    bad = await cluster.ask(at, "POST", "/commands", commands("no x"), JSON, {REQUEST_ID: given})

    assert (good.status, good.headers[REQUEST_ID]) == (200, given)
    assert (bad.status, bad.headers[REQUEST_ID], bad.document["request_id"]) == (422, given, given)


@EVERYWHERE
@pytest.mark.parametrize("given", ["", "two words", 'quo"te', "\u00e4", LONGEST + "a"])
async def test_an_id_that_is_unsafe_is_replaced(cluster: RunningCluster, at: str, given: str) -> None:
    reply = await cluster.ask(at, "POST", "/commands", commands("x"), JSON, {REQUEST_ID: given})

    assert reply.status == 200
    assert reply.headers[REQUEST_ID] not in ("", given)


@pytest.mark.parametrize(
    ("given", "callers"),
    [("order:17:1f", "order:17"), ("order", "order"), ("order:x", "order:x"), (LONGEST + ":1f", LONGEST)],
)
async def test_a_forwarded_id_is_returned_whole_and_its_caller_s_part_is_shown(
    cluster: RunningCluster, given: str, callers: str
) -> None:
    reply = await cluster.ask("n1", "GET", "/nowhere", headers={REQUEST_ID: given, FORWARDED: "n2"})

    assert (reply.headers[REQUEST_ID], reply.document["request_id"]) == (given, callers)


@EVERYWHERE
async def test_a_failure_is_logged_with_the_id_where_it_happened(cluster: RunningCluster, at: str) -> None:
    with capture_logs(processors=[merge_contextvars]) as lines:
        reply = await cluster.ask(at, "POST", "/commands", commands("check fails"), JSON, {REQUEST_ID: f"order-{at}"})

    assert (reply.status, reply.problem) == (500, "check-failed")
    [line] = [line for line in lines if line["event"] == "request failed"]
    assert (line["request_id"], line["problem"], line["path"]) == (f"order-{at}", "check-failed", "/commands")


@EVERYWHERE
async def test_a_failure_is_logged_with_the_trace_of_its_request_and_of_no_other(
    cluster: RunningCluster, at: str
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with capture_logs(processors=[merge_contextvars]) as lines:
        for given in ({"traceparent": trace}, {}, {"traceparent": "no trace"}):
            await cluster.ask(at, "POST", "/commands", commands("check fails"), JSON, given)

    failed = [line for line in lines if line["event"] == "request failed"]
    assert [line.get("traceparent") for line in failed] == [trace, None, None]


@EVERYWHERE
async def test_a_successful_request_is_not_logged(cluster: RunningCluster, at: str) -> None:
    with capture_logs() as lines:
        await cluster.commands(at, "quiet")
        await cluster.ask(at, "GET", "/records?from=0&wait_ms=1000")
        await cluster.ask(at, "GET", "/nowhere")

    assert lines == []


async def test_a_slow_request_is_logged_but_one_that_waits_on_purpose_is_not(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "SLOW_REQUEST_S", 0.0)
    with capture_logs(processors=[merge_contextvars]) as lines:
        await cluster.ask("n1", "GET", "/records?from=0&wait_ms=1")
        await cluster.ask("n1", "GET", "/status", headers={REQUEST_ID: "slow-1"})

    [line] = [line for line in lines if line["event"] == "slow request"]
    assert (line["request_id"], line["path"], line["status"]) == ("slow-1", "/status", 200)
    assert line["took_s"] >= 0


@EVERYWHERE
async def test_a_stream_s_problem_has_its_request_id(cluster: RunningCluster, at: str) -> None:
    session = (await cluster.ask(at, "POST", "/sessions", b"{}", "application/json")).document["session"]
    url = f"http://{cluster.address(at)}/commands/stream?session={session}"
    async with cluster.session.ws_connect(url, headers={REQUEST_ID: "stream-1"}) as socket:
        await socket.send_bytes(pack([1, []]))
        message = await socket.receive(timeout=20)

    assert message.type is WSMsgType.BINARY
    assert unpacked(message.data)[1]["request_id"] == "stream-1"
