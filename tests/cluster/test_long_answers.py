"""Answers that are too long: results are cut, states are refused before they are encoded."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from quire.cluster.client import CommandRefused, ResultsCut, connect
from quire.cluster.http.answer_size import VALUES_LIMIT, results_within, size_up_to
from quire.cluster.node.writing import WriteReply
from quire.log import pack
from quire.log.json_text import to_json
from tests.cluster.running import RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON, MSGPACK = "application/json", "application/msgpack"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
LIMIT = 10_000
VALUE = "x" * 900


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    folder: Path = tmp_path_factory.mktemp("answers")
    async with running_cluster(folder, machine="kv", answer_bytes=LIMIT, state_limit_bytes=LIMIT) as running:
        await running.commands("n1", ["put", "k", VALUE], ["put", "n", "text"])
        yield running


@EVERYWHERE
@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
async def test_results_are_cut_to_the_limit_and_the_answer_says_where(
    cluster: RunningCluster, at: str, content_type: str
) -> None:
    body = orjson.dumps({"commands": [["incr", "n"], *[["get", "k"]] * 200, ["put", f"{at}{content_type}", 1]]})
    reply = await cluster.ask(at, "POST", "/commands", body, JSON, {"Accept": content_type})
    document: dict[str, Any] = orjson.loads(reply.body) if content_type == JSON else unpacked(reply.body)
    assert document["results"] == [None, *[VALUE] * (document["cut"] - 1)]
    assert [position for position, _, _ in document["refused"]] == [0]
    assert LIMIT - 2 * len(VALUE) < len(reply.body) < LIMIT + 200
    found = await cluster.ask(at, "POST", "/query", orjson.dumps({"request": ["get", f"{at}{content_type}"]}), JSON)
    assert found.document["answer"] == 1  # All were executed.
    whole = await cluster.ask(at, "POST", "/commands", orjson.dumps({"commands": [["get", "k"]] * 9}), JSON)
    assert (whole.document["results"], "cut" in whole.document) == ([VALUE] * 9, False)


async def test_a_client_is_told_which_of_its_commands_have_no_result_and_goes_on(cluster: RunningCluster) -> None:
    async with connect(cluster.address("n2")) as client:
        answers = [await client.submit(["get", "k"]) for _ in range(100)]
        outcomes: list[Any] = []
        for answer in answers:
            try:
                outcomes.append(await answer)
            except ResultsCut as cut:
                outcomes.append(cut)
        assert set(map(type, outcomes)) == {str, ResultsCut}
        assert all(outcome == VALUE for outcome in outcomes if isinstance(outcome, str))
        with pytest.raises(ResultsCut):
            await client.apply_batch([["get", "k"]] * 20)
        assert await client.apply(["get", "k"]) == VALUE
        with pytest.raises(CommandRefused):
            await client.apply(["incr", "n"])


@EVERYWHERE
async def test_a_state_or_answer_above_the_limit_is_refused_before_it_is_encoded(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.commands("n1", *[["put", f"key{number}", VALUE] for number in range(20)])

    def encoded(*_: object) -> bytes:
        raise AssertionError("it was encoded")

    with monkeypatch.context() as watched:
        watched.setattr("quire.cluster.http.routes.state.answer", encoded)
        state = await cluster.ask(at, "GET", "/state")
        scan = await cluster.ask(at, "POST", "/query", b'{"request": ["scan", "key"]}', JSON)
    assert (state.status, state.problem, state.document["limit"]) == (413, "limit-exceeded", LIMIT)
    assert (scan.status, scan.problem) == (413, "limit-exceeded")


async def test_no_more_than_the_limit_is_encoded_to_find_the_cut() -> None:
    encoded = 0

    def encode(value: Any) -> bytes:
        nonlocal encoded
        packed = pack(value)
        encoded += len(packed)
        return packed

    results: list[Any] = [VALUE] * 10_000
    assert 100 <= results_within(WriteReply(0, 1, 10_000, results, [], 9_000_000), 100_000, encode) < 111
    assert encoded < 400_000
    refused = [[position, "NO", VALUE] for position in range(10_000)]
    refusals = WriteReply(0, 1, 10_000, [None] * 10_000, refused, 9_000_000)
    assert 100 <= results_within(refusals, 100_000, encode) < 111


async def test_results_that_fit_as_msgpack_may_be_too_long_as_json() -> None:
    results: list[Any] = ["\x01" * 900] * 10
    size = len(pack(results))
    assert WriteReply(0, 1, 10, results, [], size).surely_fits(6 * size)
    assert not WriteReply(0, 1, 10, results, [], size).surely_fits(6 * size - 1)
    assert results_within(WriteReply(0, 1, 10, results, [], size), 2 * size, to_json) == 3


async def test_the_size_of_a_value_is_counted_up_to_the_limit_and_no_further() -> None:
    assert size_up_to({"a": [1, "bc", b"d"]}, 100) <= len(pack({"a": [1, "bc", b"d"]}))
    assert size_up_to(["x" * 50] * 1_000, 100) > 100
    assert size_up_to([[]] * (VALUES_LIMIT + 1), 1 << 40) > 1 << 40
    endless: list[Any] = []
    endless.append(endless)
    endless.append(endless)
    assert size_up_to(endless, 1_000) > 1_000
