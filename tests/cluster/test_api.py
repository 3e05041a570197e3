"""The HTTP API of a real cluster, through leader and follower."""

import base64
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from quire.log import Kind, pack, walk_frames
from quire.log.packing import ExtType, unpack_trusted
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON, MSGPACK, NDJSON, OCTETS = (
    "application/json",
    "application/msgpack",
    "application/x-ndjson",
    "application/octet-stream",
)
RAW_FRAMES = "application/vnd.quire.frames"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("arithmetic")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("log"), machine="log") as running:
        yield running


async def state(cluster: RunningCluster, at: str = "n1") -> str:
    return str((await cluster.ask(at, "GET", "/state")).document["state"])


async def reset(cluster: RunningCluster) -> None:
    """Bring the machine to 42."""
    await cluster.commands("n1", ["sub", await state(cluster)], ["add", 42])


@EVERYWHERE
async def test_42_add_3_div_5_gives_9(cluster: RunningCluster, at: str) -> None:
    await reset(cluster)

    answer = await cluster.commands(at, ["add", 3], ["div", 5])

    assert answer["results"] == ["45", "9"]
    assert set(answer) == {"index", "epoch", "results"}
    assert await state(cluster, at) == "9"


@EVERYWHERE
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, orjson.dumps({"commands": [["add", 3], ["div", "5"]]})),
        ("application/json; charset=utf-8", orjson.dumps({"commands": [["add", 3], ["div", "5"]]})),
        (MSGPACK, pack({"commands": [["add", 3], ["div", "5"]]})),
        (NDJSON, b'["add", 3]\n["div", "5"]\n'),
    ],
)
async def test_commands_come_in_three_encodings(
    cluster: RunningCluster, at: str, content_type: str, body: bytes
) -> None:
    await reset(cluster)

    reply = await cluster.ask(at, "POST", "/commands", body, content_type)

    assert (reply.status, reply.document["results"]) == (200, ["45", "9"])


@EVERYWHERE
async def test_commands_are_answered_in_msgpack_if_that_is_accepted(cluster: RunningCluster, at: str) -> None:
    await reset(cluster)

    reply = await cluster.ask(at, "POST", "/commands", b'["add", 3]', NDJSON, {"Accept": f"text/html, {MSGPACK};q=0.9"})

    assert reply.headers["Content-Type"] == MSGPACK
    assert unpacked(reply.body)["results"] == ["45"]


@EVERYWHERE
async def test_a_command_that_apply_refuses_is_named_by_its_position_in_the_answer(
    cluster: RunningCluster, at: str
) -> None:
    await reset(cluster)

    answer = await cluster.commands(at, ["add", 1], ["mul", "9e6144"], ["sub", 1])

    assert answer["results"] == ["43", None, "42"]
    [[position, code, text]] = answer["refused"]
    assert (position, code) == (1, "OVERFLOW")
    assert text


@EVERYWHERE
async def test_a_batch_with_one_command_that_check_refuses_is_refused_whole(cluster: RunningCluster, at: str) -> None:
    await reset(cluster)
    body = orjson.dumps({"commands": [["add", 1], ["div", 0], ["pow", 2]]})

    reply = await cluster.ask(at, "POST", "/commands", body, JSON)

    assert (reply.status, reply.problem) == (422, "commands-refused")
    assert [refused[:2] for refused in reply.document["refused"]] == [[1, "DIVISION_BY_ZERO"], [2, "OPERATION_UNKNOWN"]]
    assert await state(cluster) == "42"


@EVERYWHERE
async def test_every_answer_names_the_leader(cluster: RunningCluster, at: str) -> None:
    named = f"n1={cluster.address('n1')}"
    for method, path in (("GET", "/status"), ("GET", "/healthz"), ("GET", "/nowhere"), ("POST", "/commands")):
        reply = await cluster.ask(at, method, path)
        assert reply.headers["Quire-Leader"] == named, (method, path)


@EVERYWHERE
async def test_records_are_commands_too(cluster: RunningCluster, at: str) -> None:
    await reset(cluster)

    reply = await cluster.ask(at, "POST", "/records", b'["add", 3]\n["div", 5]\n', NDJSON)

    assert reply.document["count"] == 2
    assert await state(cluster) == "9"
    record = await cluster.ask("n1", "GET", f"/records/{reply.document['write_index']}")
    assert (record.document, record.headers["Quire-Kind"]) == (["add", 3], "records")


@EVERYWHERE
async def test_records_that_the_machine_refuses_are_refused(cluster: RunningCluster, at: str) -> None:
    for body, content_type in ((b'["div", 0]', JSON), (b"\x00\x01", OCTETS), (pack([["add", 1], 7]), MSGPACK)):
        reply = await cluster.ask(at, "POST", "/records", body, content_type)
        assert (reply.status, reply.problem) == (422, "commands-refused")


@EVERYWHERE
async def test_an_expected_index_is_kept_or_nothing_is_written(cluster: RunningCluster, at: str) -> None:
    bounds = (await cluster.ask("n1", "GET", "/index_bounds")).document

    wrong = await cluster.ask(at, "POST", f"/records?index={bounds['highest_index'] + 1}", b'["add", 1]', JSON)
    right = await cluster.ask(at, "POST", f"/records?index={bounds['highest_index']}", b'["add", 1]', JSON)

    assert (wrong.status, wrong.problem) == (409, "wrong-index")
    assert wrong.document["expected"] == bounds["highest_index"] + 1
    assert wrong.document["highest_index"] == bounds["highest_index"]
    assert right.document == {"write_index": bounds["highest_index"], "count": 1}


@EVERYWHERE
async def test_raw_bytes_come_back_as_they_were(log_cluster: RunningCluster, at: str) -> None:
    for body, kind in ((b"", "records"), (b"\x00\xff" * 500, "records"), (b"x" * (1 << 20), "records")):
        written = await log_cluster.ask(at, "POST", "/records", body)
        record = await log_cluster.ask("n1", "GET", f"/records/{written.document['write_index']}")
        assert (record.body, record.headers["Quire-Kind"]) == (body, kind)
        assert record.headers["Content-Type"] == OCTETS


@EVERYWHERE
async def test_raw_bytes_above_a_mebibyte_are_a_blob(log_cluster: RunningCluster, at: str) -> None:
    body = bytes(range(256)) * 4097

    written = await log_cluster.ask(at, "POST", "/records", body, OCTETS)

    assert written.document["count"] == 1
    record = await log_cluster.ask("n1", "GET", f"/records/{written.document['write_index']}")
    assert (record.body == body, record.headers["Quire-Kind"]) == (True, "blob")


@EVERYWHERE
async def test_only_the_log_machine_takes_a_blob(cluster: RunningCluster, at: str) -> None:
    reply = await cluster.ask(at, "POST", "/records", b"x" * ((1 << 20) + 1), OCTETS)

    assert (reply.status, reply.problem) == (409, "not-in-this-mode")


@EVERYWHERE
async def test_a_json_body_is_one_record(log_cluster: RunningCluster, at: str) -> None:
    written = await log_cluster.ask(at, "POST", "/records", b'[1, {"a": null}, "x"]', JSON)

    assert written.document["count"] == 1
    record = await log_cluster.ask("n1", "GET", f"/records/{written.document['write_index']}")
    assert record.document == [1, {"a": None}, "x"]


@EVERYWHERE
async def test_values_that_json_cannot_express_are_exact_in_msgpack(log_cluster: RunningCluster, at: str) -> None:
    value = {"$ext": {"b": b"\x00", "t": ExtType(20, b"\x01")}}
    index = (await log_cluster.ask(at, "POST", "/records", pack([value]), MSGPACK)).document["write_index"]

    exact = await log_cluster.ask("n1", "GET", f"/records/{index}", headers={"Accept": MSGPACK})
    shown = await log_cluster.ask("n1", "GET", f"/records/{index}")

    assert unpack_trusted(exact.body, ExtType) == value
    assert shown.document == {"$map": [["$ext", {"b": {"$bin": "AA=="}, "t": {"$ext": [20, "AQ=="]}}]]}


@EVERYWHERE
async def test_a_map_with_a_key_that_is_no_text_is_refused_and_not_written(
    log_cluster: RunningCluster, at: str
) -> None:
    before = (await log_cluster.ask("n1", "GET", "/index_bounds")).document

    reply = await log_cluster.ask(at, "POST", "/records", pack([{}, {1: "a", "1": "b"}]), MSGPACK)

    assert (reply.status, reply.problem) == (422, "commands-refused")
    assert [(position, code) for position, code, _ in reply.document["refused"]] == [(1, "VALUE_INVALID")]
    assert (await log_cluster.ask("n1", "GET", "/index_bounds")).document == before


async def append(cluster: RunningCluster, *bodies: bytes) -> int:
    """Append NDJSON batches, each one frame; the index of the first record."""
    first = None
    for body in bodies:
        reply = await cluster.ask("n1", "POST", "/records", body, NDJSON)
        first = reply.document["write_index"] if first is None else first
    assert first is not None
    return int(first)


async def test_a_range_is_read_as_lines(log_cluster: RunningCluster) -> None:
    first = await append(log_cluster, b'1\n"two"\n', b"[3]\n")

    reply = await log_cluster.ask("n1", "GET", f"/records?from={first}&to={first + 3}")

    lines = [orjson.loads(line) for line in reply.body.splitlines()]
    assert [(line["index"], line["value"]) for line in lines] == [(first, 1), (first + 1, "two"), (first + 2, [3])]
    names = ["index", "epoch", "timestamp", "kind", "session", "sequence", "executed", "headers", "value"]
    assert all(list(line) == names for line in lines)
    assert (lines[0]["kind"], lines[0]["headers"]) == ("records", {})
    assert reply.headers["Content-Type"] == NDJSON
    assert reply.headers["Quire-Next-Index"] == str(first + 3)


async def test_a_range_may_begin_and_end_inside_a_frame(log_cluster: RunningCluster) -> None:
    first = await append(log_cluster, b"0\n1\n2\n3\n")

    reply = await log_cluster.ask("n1", "GET", f"/records?from={first + 1}&to={first + 3}")

    assert [orjson.loads(line)["value"] for line in reply.body.splitlines()] == [1, 2]
    assert reply.headers["Quire-Next-Index"] == str(first + 3)


async def test_a_range_is_read_as_msgpack(log_cluster: RunningCluster) -> None:
    body = pack([b"\x01\x02"])
    first = (await log_cluster.ask("n1", "POST", "/records", body, MSGPACK)).document["write_index"]

    reply = await log_cluster.ask("n1", "GET", f"/records?from={first}", headers={"Accept": MSGPACK})
    lines = await log_cluster.ask("n1", "GET", f"/records?from={first}")

    assert [(line["index"], line["value"]) for line in unpacked(reply.body)] == [(first, b"\x01\x02")]
    assert orjson.loads(lines.body)["value"] == {"$bin": base64.b64encode(b"\x01\x02").decode()}


async def test_a_range_is_read_as_raw_frames(log_cluster: RunningCluster) -> None:
    first = await append(log_cluster, b"1\n2\n", b"3\n")

    reply = await log_cluster.ask("n1", "GET", f"/records?from={first}", headers={"Accept": RAW_FRAMES})

    frames = list(walk_frames(reply.body))
    assert [(frame.header.index, frame.header.count, frame.header.kind) for frame in frames] == [
        (first, 2, Kind.RECORDS),
        (first + 2, 1, Kind.RECORDS),
    ]
    assert reply.headers["Quire-Next-Index"] == str(first + 3)


async def test_max_bytes_bounds_a_range_but_never_starves_it(log_cluster: RunningCluster) -> None:
    first = await append(log_cluster, b"1\n", b"2\n", b"3\n")
    values: list[int] = []
    index = first

    while index < first + 3:
        reply = await log_cluster.ask("n1", "GET", f"/records?from={index}&to={first + 3}&max_bytes=1")
        values += [orjson.loads(line)["value"] for line in reply.body.splitlines()]
        index = int(reply.headers["Quire-Next-Index"])
        assert len(values) == index - first

    assert values == [1, 2, 3]


async def test_a_range_at_the_end_is_empty_and_beyond_it_an_error(log_cluster: RunningCluster) -> None:
    highest = (await log_cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]

    at_end = await log_cluster.ask("n1", "GET", f"/records?from={highest}")
    beyond = await log_cluster.ask("n1", "GET", f"/records?from={highest + 1}")

    assert (at_end.status, at_end.body, at_end.headers["Quire-Next-Index"]) == (200, b"", str(highest))
    assert (beyond.status, beyond.problem, beyond.document["highest_index"]) == (404, "out-of-bounds", highest)


async def test_a_range_leaves_out_system_records_but_raw_frames_hold_them(log_cluster: RunningCluster) -> None:
    lines = await log_cluster.ask("n1", "GET", "/records?from=0&to=2")
    frames = await log_cluster.ask("n1", "GET", "/records?from=0&to=2", headers={"Accept": RAW_FRAMES})
    genesis = await log_cluster.ask("n1", "GET", "/records/0")

    assert (lines.body, lines.headers["Quire-Next-Index"]) == (b"", "2")
    assert [frame.header.kind for frame in walk_frames(frames.body)][:2] == [Kind.SYSTEM, Kind.SYSTEM]
    assert (genesis.document["type"], genesis.headers["Quire-Kind"]) == ("genesis", "system")


@EVERYWHERE
async def test_a_record_that_is_not_there_is_named_with_the_bounds(cluster: RunningCluster, at: str) -> None:
    reply = await cluster.ask(at, "GET", "/records/999999")

    assert (reply.status, reply.problem) == (404, "out-of-bounds")
    assert reply.document["index"] == 999_999
    assert reply.document["lowest_index"] == 0


@EVERYWHERE
@pytest.mark.parametrize("consistency", ["linearizable", "leader", "local"])
async def test_a_state_names_its_applied_index(cluster: RunningCluster, at: str, consistency: str) -> None:
    index = (await cluster.commands("n1", ["add", 1]))["index"]

    reply = await cluster.ask(at, "GET", f"/state?consistency={consistency}")

    assert set(reply.document) == {"state", "applied_index", "digest"}
    assert len(bytes.fromhex(reply.document["digest"])) == 16
    if consistency != "local" or at == "n1":
        assert reply.document["applied_index"] == index + 1


@EVERYWHERE
async def test_status_and_health_are_answered_by_the_node_itself(cluster: RunningCluster, at: str) -> None:
    status = await cluster.ask(at, "GET", "/status")
    health = await cluster.ask(at, "GET", "/healthz")
    ready = await cluster.ask(at, "GET", "/readyz")

    assert (status.document["node_id"], status.document["leader"]) == (at, "n1")
    assert (health.status, ready.status, ready.document) == (200, 200, {"ready": True, "alarms": []})


async def test_a_batch_may_be_as_large_as_the_limit_and_no_larger(log_cluster: RunningCluster) -> None:
    limit = 1 << 20
    at_limit = b'"' + b"x" * (limit - 2) + b'"'

    passes = await log_cluster.ask("n1", "POST", "/records", b'"' + b"x" * (limit - 8) + b'"', JSON)
    too_large = await log_cluster.ask("n3", "POST", "/records", at_limit + b" ", JSON)

    assert passes.status == 200
    assert (too_large.status, too_large.problem) == (413, "limit-exceeded")
    assert (too_large.document["size"], too_large.document["limit"]) == (limit + 1, limit)


async def test_a_blob_may_be_as_large_as_a_frame_and_no_larger(log_cluster: RunningCluster) -> None:
    limit = log_cluster.nodes["n1"].config.max_frame_bytes

    too_large = await log_cluster.ask("n1", "POST", "/records", bytes(limit + 1), OCTETS)

    assert (too_large.status, too_large.problem) == (413, "limit-exceeded")
    assert too_large.document["limit"] <= limit


async def test_a_state_above_its_limit_is_413(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=1, machine="tests.cluster.machines:Long", state_limit_bytes=1024) as one:
        reply: Reply = await one.ask("n1", "GET", "/state")

    assert (reply.status, reply.problem) == (413, "limit-exceeded")
    assert reply.document["limit"] == 1024
