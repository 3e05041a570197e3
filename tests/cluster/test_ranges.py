"""Ranges of a real cluster, from leader and follower: long polls, shards, kinds, long frames."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from quire.cluster.http.admission.concurrency import LongPollLimit
from quire.cluster.http.api import API
from quire.cluster.http.routes.ranges import BOUNDARIES_LIMIT, RANGE_RECORDS, SHARDS_LIMIT, WAIT_LIMIT_MS
from quire.log import Kind, walk_frames
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

NDJSON, MSGPACK, RAW_FRAMES = "application/x-ndjson", "application/msgpack", "application/vnd.quire.frames"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
DEADLINE_S = 20.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(
        tmp_path_factory.mktemp("ranges"), machine="log", election_timeout_ms=5000, max_commands=100_000
    ) as running:
        yield running


async def append(cluster: RunningCluster, *values: Any) -> int:
    """Append a batch; the index of its first record."""
    body = b"".join(orjson.dumps(value) + b"\n" for value in values)
    reply = await cluster.ask("n1", "POST", "/records", body, NDJSON)
    assert reply.status == 200, reply
    return int(reply.document["write_index"])


async def end_of(cluster: RunningCluster, at: str) -> int:
    """The end of the log, once the node `at` shows it."""
    highest = int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])
    async with asyncio.timeout(DEADLINE_S):
        while (await cluster.ask(at, "GET", "/index_bounds")).document["highest_index"] < highest:
            pass
    reply = await cluster.ask(at, "GET", f"/records?from={highest}&wait_ms=10")
    assert reply.headers["Quire-Next-Index"] == str(highest)
    return highest


async def waiting(cluster: RunningCluster, at: str, query: str, accept: str = NDJSON) -> "asyncio.Task[Reply]":
    """A request that waits at the end of the log; on return the node handles it."""
    places = cluster.nodes[at].runner.app
    assert places is not None
    before = len(places[API].long_polls)
    task = asyncio.create_task(cluster.ask(at, "GET", f"/records?{query}", headers={"Accept": accept}))
    async with asyncio.timeout(DEADLINE_S):
        while len(places[API].long_polls) == before:
            await cluster.ask(at, "GET", "/healthz")
    return task


def waiting_of(cluster: RunningCluster, at: str) -> LongPollLimit:
    app = cluster.nodes[at].runner.app
    assert app is not None
    return app[API].long_polls


def values(reply: Reply) -> list[Any]:
    assert reply.status == 200, reply
    return [orjson.loads(line)["value"] for line in reply.body.splitlines()]


@EVERYWHERE
async def test_a_reader_at_the_end_is_answered_when_a_record_becomes_visible(cluster: RunningCluster, at: str) -> None:
    end = await end_of(cluster, at)

    reader = await waiting(cluster, at, f"from={end}&wait_ms=60000")
    assert not reader.done()
    await append(cluster, "new")

    async with asyncio.timeout(DEADLINE_S):
        reply = await reader
    assert (values(reply), reply.headers["Quire-Next-Index"]) == (["new"], str(end + 1))


@EVERYWHERE
async def test_a_reader_at_the_end_gets_msgpack_and_raw_frames_alike(cluster: RunningCluster, at: str) -> None:
    end = await end_of(cluster, at)

    packed = await waiting(cluster, at, f"from={end}&wait_ms=60000", MSGPACK)
    raw = await waiting(cluster, at, f"from={end}&wait_ms=60000", RAW_FRAMES)
    await append(cluster, "new")

    async with asyncio.timeout(DEADLINE_S):
        assert [line["value"] for line in unpacked((await packed).body)] == ["new"]
        assert [frame.header.index for frame in walk_frames((await raw).body)] == [end]


@EVERYWHERE
@pytest.mark.parametrize(("to", "frames"), [(0, []), (1, [0]), (3, [0]), (4, [0, 3])])
async def test_raw_frames_end_with_the_one_that_holds_the_last_record_that_is_asked_for(
    cluster: RunningCluster, at: str, to: int, frames: list[int]
) -> None:
    first = await append(cluster, 1, 2, 3)
    await append(cluster, 4)
    await append(cluster, 5)
    await end_of(cluster, at)

    path = f"/records?from={first}&to={first + to}"
    reply = await cluster.ask(at, "GET", path, headers={"Accept": RAW_FRAMES})

    given = list(walk_frames(reply.body))
    assert [frame.header.index - first for frame in given] == frames
    assert int(reply.headers["Quire-Next-Index"]) == (given[-1].header.next_index if given else first)


async def boundaries(cluster: RunningCluster, at: str, query: str) -> list[list[int]]:
    """Index and bytes of each boundary that a node names."""
    reply = await cluster.ask(at, "GET", f"/records?{query}")
    assert reply.status == 200, reply
    found: list[list[int]] = reply.document["boundaries"]
    asked_from = int(query.partition("from=")[2].split("&")[0])
    assert int(reply.headers["Quire-Next-Index"]) == (found[-1][0] if found else asked_from)
    return found


@EVERYWHERE
async def test_a_range_is_cut_at_frames_into_parts_of_at_most_so_many_bytes(cluster: RunningCluster, at: str) -> None:
    first = await append(cluster, *range(10))
    for values in ([b"x" * 300] * 3, [1], [b"x" * 3000], [2, 3]):
        await append(cluster, *(str(value) for value in values))
    end = await end_of(cluster, at)
    raw = await cluster.ask(at, "GET", f"/records?from={first}&to={end}", headers={"Accept": RAW_FRAMES})
    headers = [frame.header for frame in walk_frames(raw.body)]
    of_frames = [[header.next_index, header.size] for header in headers]

    for max_bytes in (0, 1):
        assert await boundaries(cluster, at, f"from={first}&boundaries={max_bytes}") == of_frames
    assert await boundaries(cluster, at, f"from={first + 3}&boundaries=1") == of_frames
    assert await boundaries(cluster, at, f"from={first}&to={end - 1}&boundaries=1") == of_frames
    assert await boundaries(cluster, at, f"from={first}&to={headers[1].index}&boundaries=1") == of_frames[:1]
    assert await boundaries(cluster, at, f"from={first}&boundaries={2**64 - 1}") == [[end, len(raw.body)]]
    pair = headers[0].size + headers[1].size
    assert (await boundaries(cluster, at, f"from={first}&boundaries={pair}"))[0] == [headers[1].next_index, pair]
    assert (await boundaries(cluster, at, f"from={first}&boundaries={pair - 1}"))[0] == of_frames[0]
    assert await boundaries(cluster, at, f"from={end}&boundaries=1") == []
    beyond = await cluster.ask(at, "GET", f"/records?from={end + 1}&boundaries=1")
    assert (beyond.status, beyond.problem) == (404, "out-of-bounds")


async def test_an_answer_has_as_many_boundaries_as_the_limit_and_the_next_one_goes_on_there(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.cluster.http.routes.ranges.BOUNDARIES_LIMIT", 3)
    assert BOUNDARIES_LIMIT == 1024
    first = await append(cluster, 0)
    ends = [await append(cluster, number) for number in range(1, 5)]
    await end_of(cluster, "n3")

    assert [index for index, _ in await boundaries(cluster, "n3", f"from={first}&boundaries=1")] == ends[:3]
    rest = await boundaries(cluster, "n3", f"from={ends[2]}&boundaries=1")
    assert [index for index, _ in rest] == [ends[3], ends[3] + 1]


@EVERYWHERE
async def test_a_reader_that_waits_in_vain_gets_nothing_and_the_same_index(cluster: RunningCluster, at: str) -> None:
    end = await end_of(cluster, at)

    for accept, nothing in ((NDJSON, b""), (MSGPACK, b"\x90"), (RAW_FRAMES, b"")):
        reply = await cluster.ask(at, "GET", f"/records?from={end}&wait_ms=20", headers={"Accept": accept})
        assert (reply.status, reply.body, reply.headers["Quire-Next-Index"]) == (200, nothing, str(end))


@EVERYWHERE
async def test_a_range_that_is_there_or_empty_is_answered_at_once(cluster: RunningCluster, at: str) -> None:
    first = await append(cluster, 1, 2)
    end = await end_of(cluster, at)

    async with asyncio.timeout(DEADLINE_S):
        there = await cluster.ask(at, "GET", f"/records?from={first}&wait_ms={WAIT_LIMIT_MS}")
        empty = await cluster.ask(at, "GET", f"/records?from={end}&to={end}&wait_ms={WAIT_LIMIT_MS}")

    assert (values(there), values(empty)) == ([1, 2], [])


@EVERYWHERE
async def test_a_reader_of_a_range_that_is_not_all_there_waits_for_a_part_of_it(
    cluster: RunningCluster, at: str
) -> None:
    end = await end_of(cluster, at)

    reader = await waiting(cluster, at, f"from={end}&to={end + 1}&wait_ms=60000")
    await append(cluster, "in", "behind")

    reply = await reader
    assert (values(reply), reply.headers["Quire-Next-Index"]) == (["in"], str(end + 1))


@EVERYWHERE
async def test_a_reader_ahead_of_the_end_waits_for_its_index(cluster: RunningCluster, at: str) -> None:
    end = await end_of(cluster, at)

    in_vain = await cluster.ask(at, "GET", f"/records?from={end + 1}&wait_ms=20")
    reader = await waiting(cluster, at, f"from={end + 1}&wait_ms=60000")
    await append(cluster, "before")
    await append(cluster, "wanted")

    assert (in_vain.status, in_vain.problem) == (404, "out-of-bounds")
    assert values(await reader) == ["wanted"]


@EVERYWHERE
async def test_the_shards_together_are_the_whole_log(cluster: RunningCluster, at: str) -> None:
    first = await append(cluster, *range(10))
    end = await end_of(cluster, at)

    shards = [await cluster.ask(at, "GET", f"/records?from={first}&shard={part}/3") for part in range(3)]

    lines = [[orjson.loads(line) for line in shard.body.splitlines()] for shard in shards]
    assert all({line["index"] % 3 for line in lines[part]} == {part} for part in range(3))
    assert sorted(line["value"] for shard in lines for line in shard) == list(range(10))
    assert {shard.headers["Quire-Next-Index"] for shard in shards} == {str(end)}


@EVERYWHERE
async def test_a_waiting_reader_of_a_shard_ignores_the_other_shards(cluster: RunningCluster, at: str) -> None:
    end = await end_of(cluster, at)
    shard = (end + 2) % 4

    reader = await waiting(cluster, at, f"from={end}&shard={shard}/4&wait_ms=60000")
    for value in ("zero", "one", "two"):
        await append(cluster, value)

    reply = await reader
    assert (values(reply), reply.headers["Quire-Next-Index"]) == (["two"], str(end + 3))


@EVERYWHERE
async def test_a_waiting_reader_whose_filter_matches_nothing_is_sent_on_after_bounded_work(
    cluster: RunningCluster, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await append(cluster, *range(100))
    await append(cluster, *range(100))
    end = await end_of(cluster, at)
    monkeypatch.setattr("quire.cluster.http.routes.ranges.SCANNED_RECORDS", 100)

    nothing = f"shard={SHARDS_LIMIT - 1}/{SHARDS_LIMIT}&max_bytes=1&wait_ms=60000"
    reply = await cluster.ask(at, "GET", f"/records?from={first}&{nothing}")
    assert (values(reply), int(reply.headers["Quire-Next-Index"])) == ([], first + 100)

    reader = await waiting(cluster, at, f"from={end}&{nothing}")
    await append(cluster, *range(100))
    assert (await reader).headers["Quire-Next-Index"] == str(end + 100)


@EVERYWHERE
async def test_an_empty_range_of_a_shard_says_where_the_next_begins(cluster: RunningCluster, at: str) -> None:
    first = await append(cluster, "a", "b")
    await end_of(cluster, at)

    reply = await cluster.ask(at, "GET", f"/records?from={first}&to={first + 1}&shard={(first + 1) % 2}/2")

    assert (values(reply), reply.headers["Quire-Next-Index"]) == ([], str(first + 1))


@EVERYWHERE
async def test_system_records_are_shown_with_kinds_all(cluster: RunningCluster, at: str) -> None:
    reply = await cluster.ask(at, "GET", "/records?from=0&to=2&kinds=all")
    packed = await cluster.ask(at, "GET", "/records?from=0&to=2&kinds=all", headers={"Accept": MSGPACK})
    raw = await cluster.ask(at, "GET", "/records?from=0&to=2&kinds=all", headers={"Accept": RAW_FRAMES})

    lines = [orjson.loads(line) for line in reply.body.splitlines()]
    assert [(line["index"], line["kind"], line["value"]["type"]) for line in lines] == [
        (0, "system", "genesis"),
        (1, "system", "epoch_start"),
    ]
    assert [line["value"]["type"] for line in unpacked(packed.body)] == ["genesis", "epoch_start"]
    assert next(walk_frames(raw.body)).header.kind == Kind.SYSTEM


@EVERYWHERE
@pytest.mark.parametrize(
    "query",
    [
        f"wait_ms={WAIT_LIMIT_MS + 1}",
        "wait_ms=-1",
        "wait_ms=1.5",
        "shard=0",
        "shard=2/2",
        "shard=0/0",
        "shard=-1/2",
        "shard=1/2/3",
        f"shard=0/{SHARDS_LIMIT + 1}",
        "kinds=system",
        "kinds=",
        "from=5&to=4",
        "boundaries=",
        "boundaries=-1",
        "boundaries=1&max_bytes=1",
        "boundaries=1&from=5&to=4",
        "from=1&from=2",
        "until=3",
    ],
)
async def test_a_range_that_makes_no_sense_is_malformed(cluster: RunningCluster, at: str, query: str) -> None:
    reply = await cluster.ask(at, "GET", f"/records?{query}")

    assert (reply.status, reply.problem) == (400, "malformed")


@EVERYWHERE
async def test_as_many_shards_as_the_limit_are_fine_and_raw_frames_have_none(cluster: RunningCluster, at: str) -> None:
    most = await cluster.ask(at, "GET", f"/records?from=0&shard=0/{SHARDS_LIMIT}")
    raw = await cluster.ask(at, "GET", "/records?from=0&shard=0/2", headers={"Accept": RAW_FRAMES})

    assert most.status == 200
    assert (raw.status, raw.problem) == (400, "malformed")


async def test_as_many_readers_as_the_limit_wait_and_one_more_is_overloaded(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_of(cluster, "n3"), "_limit", 3)
    end = await end_of(cluster, "n3")
    readers = [await waiting(cluster, "n3", f"from={end}&wait_ms=60000") for _ in range(3)]

    refused = await cluster.ask("n3", "GET", f"/records?from={end}&wait_ms=60000")
    at_once = await cluster.ask("n3", "GET", f"/records?from={end}")
    await append(cluster, "new")

    assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (429, "overloaded", "1")
    assert at_once.status == 200
    assert [values(await reader) for reader in readers] == [["new"]] * 3
    assert len(waiting_of(cluster, "n3")) == 0


async def test_a_reader_that_hung_up_gives_its_slot_to_the_next(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_of(cluster, "n3"), "_limit", 2)
    end = await end_of(cluster, "n3")
    gone = [await waiting(cluster, "n3", f"from={end}&wait_ms=60000") for _ in range(2)]
    for reader in gone:
        reader.cancel()
    await asyncio.gather(*gone, return_exceptions=True)

    async with asyncio.timeout(DEADLINE_S):
        while (reply := await cluster.ask("n3", "GET", f"/records?from={end}&wait_ms=20")).status == 429:
            pass

    assert (reply.status, reply.headers["Quire-Next-Index"]) == (200, str(end))


async def test_a_node_that_stops_releases_its_waiting_readers(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=1) as one:
        end = await end_of(one, "n1")
        reader = await waiting(one, "n1", f"from={end}&wait_ms=60000")

        async with asyncio.timeout(DEADLINE_S):
            await one.stop("n1")
            reply = await reader

    assert (values(reply), reply.headers["Quire-Next-Index"]) == ([], str(end))


# Long frames


async def pages(cluster: RunningCluster, at: str, query: str, from_index: int, accept: str) -> list[list[Any]]:
    """The lines of each answer, up to the end of the log."""
    end, index = await end_of(cluster, at), from_index
    found: list[list[Any]] = []
    while index < end:
        reply = await cluster.ask(at, "GET", f"/records?from={index}{query}", headers={"Accept": accept})
        assert reply.status == 200, reply
        found.append(
            unpacked(reply.body) if accept == MSGPACK else [orjson.loads(line) for line in reply.body.splitlines()]
        )
        index = int(reply.headers["Quire-Next-Index"])
    return found


@EVERYWHERE
@pytest.mark.parametrize("accept", [NDJSON, MSGPACK])
async def test_a_long_frame_is_given_in_as_many_answers_as_it_takes(
    cluster: RunningCluster, at: str, accept: str
) -> None:
    at_limit = await append(cluster, *range(RANGE_RECORDS))
    [page] = await pages(cluster, at, "", at_limit, accept)
    past_limit = await append(cluster, *range(RANGE_RECORDS + 1))
    whole, rest = await pages(cluster, at, "", past_limit, accept)
    long = await append(cluster, *range(3 * RANGE_RECORDS))
    parts = await pages(cluster, at, "", long + 7, accept)

    assert [line["value"] for line in page] == list(range(RANGE_RECORDS))
    assert ([line["value"] for line in whole], [line["value"] for line in rest]) == (
        list(range(RANGE_RECORDS)),
        [RANGE_RECORDS],
    )
    assert [len(part) for part in parts] == [RANGE_RECORDS, RANGE_RECORDS, RANGE_RECORDS - 7]
    assert [line["index"] for part in parts for line in part] == list(range(long + 7, long + 3 * RANGE_RECORDS))


@EVERYWHERE
async def test_a_shard_of_long_frames_has_as_many_records_as_an_answer_holds(cluster: RunningCluster, at: str) -> None:
    first = await append(cluster, *range(2 * RANGE_RECORDS))
    await append(cluster, *range(2 * RANGE_RECORDS))

    parts = [await pages(cluster, at, f"&shard={shard}/3", first, NDJSON) for shard in range(3)]

    found = [line["index"] for shard in parts for page in shard for line in page]
    assert sorted(found) == list(range(first, first + 4 * RANGE_RECORDS))
    assert {line["index"] % 3 for line in parts[2][0]} == {2}
    assert max(len(page) for shard in parts for page in shard) <= RANGE_RECORDS
    assert [len(shard) for shard in parts] == [2, 2, 2]
