"""Malformed input, at leader and follower: each its own answer, never a 500, and the log stays as it was."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from quire.cluster.config import host_and_port
from quire.log import pack
from quire.log.packing import ExtType
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON, MSGPACK, NDJSON, OCTETS = (
    "application/json",
    "application/msgpack",
    "application/x-ndjson",
    "application/octet-stream",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("malformed")) as running:
        yield running


def commands(*values: object) -> bytes:
    return json.dumps({"commands": values}).encode()


POST = b"POST /commands HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
DEEP = "[" * 40 + "]" * 40

# method, path, content type, body -> status, problem
TABLE: list[tuple[str, str, str | None, bytes | None, int, str]] = [
    # The body's form.
    ("POST", "/commands", JSON, None, 400, "malformed"),
    ("POST", "/commands", JSON, b"", 400, "malformed"),
    ("POST", "/commands", JSON, b"{", 400, "malformed"),
    ("POST", "/commands", JSON, b"\x00\xff\xfe", 400, "malformed"),
    ("POST", "/commands", JSON, b"[]", 400, "malformed"),
    ("POST", "/commands", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": []}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": ["add", 3], "session": 1}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"command": [["add", 3]]}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": [["add", NaN]]}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": [["add", 1e400]]}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": [["add", 18446744073709551616]]}', 400, "malformed"),
    ("POST", "/commands", JSON, b'{"commands": [["add", -9223372036854775809]]}', 400, "malformed"),
    ("POST", "/commands", JSON, f'{{"commands": [{DEEP}]}}'.encode(), 400, "malformed"),
    ("POST", "/commands", NDJSON, b"", 400, "malformed"),
    ("POST", "/commands", NDJSON, b"\n", 400, "malformed"),
    ("POST", "/commands", NDJSON, b'["add", 3]\n["add"', 400, "malformed"),
    ("POST", "/commands", NDJSON, b'["add", 3]\n\n["add", 3]\n', 400, "malformed"),
    ("POST", "/commands", NDJSON, b'["add", 3],["add", 3]\n', 400, "malformed"),
    ("POST", "/commands", MSGPACK, b"", 400, "malformed"),
    ("POST", "/commands", MSGPACK, b"\xc1", 400, "malformed"),
    ("POST", "/commands", MSGPACK, pack({"commands": [["add", 3]]}) + b"\x00", 400, "malformed"),
    ("POST", "/commands", MSGPACK, pack({"commands": [["add", 3]]})[:-1], 400, "malformed"),
    ("POST", "/commands", MSGPACK, pack({"commands": [["add", float("nan")]]}), 400, "malformed"),
    ("POST", "/commands", MSGPACK, pack({"commands": [["add", ExtType(1, b"")]]}), 400, "malformed"),
    ("POST", "/commands", MSGPACK, b"\x81\xa8commands\x91\x92\xa3add\xa1\xff", 400, "malformed"),
    # The content type.
    ("POST", "/commands", None, commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/commands", "", commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/commands", "text/plain", commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/commands", OCTETS, commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/commands", "application/x-www-form-urlencoded", commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/commands", "application/json; charset=latin-1", commands(["add", 3]), 415, "unsupported-media-type"),
    ("POST", "/records", "text/plain", b"x", 415, "unsupported-media-type"),
    # The machine's own rules.
    ("POST", "/commands", JSON, commands(["pow", 3]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", 3], ["div", 0]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["div", "-0.0e5"]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add"]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", 1, 2]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", True]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", 1.5]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", None]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", "three"]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", "\u0663"]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(["add", "1" * 35]), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands({"add": 3}), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands("add 3"), 422, "commands-refused"),
    ("POST", "/commands", JSON, commands(None), 422, "commands-refused"),
    ("POST", "/records", None, b"raw bytes", 422, "commands-refused"),
    ("POST", "/records", JSON, b"7", 422, "commands-refused"),
    # Records.
    ("POST", "/records", JSON, b"", 400, "malformed"),
    ("POST", "/records", JSON, b'["add", 3] ["add", 3]', 400, "malformed"),
    ("POST", "/records", NDJSON, b"", 400, "malformed"),
    ("POST", "/records", MSGPACK, pack({"commands": [["add", 3]]}), 400, "malformed"),
    ("POST", "/records", MSGPACK, pack([]), 400, "malformed"),
    # Size.
    ("POST", "/commands", JSON, b" " * ((1 << 20) + 1), 413, "limit-exceeded"),
    ("POST", "/records", NDJSON, b"1\n" * (1 << 19) + b"1\n", 413, "limit-exceeded"),
    ("POST", "/records", OCTETS, bytes(9 << 20), 413, "limit-exceeded"),
    # Query parameters.
    ("POST", "/commands?wait=1", JSON, commands(["add", 3]), 400, "malformed"),
    ("POST", "/records?idx=1", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=1&index=1", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=-1", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=one", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=1.0", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=%D9%A3", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=18446744073709551616", JSON, b'["add", 3]', 400, "malformed"),
    ("POST", "/records?index=18446744073709551615", JSON, b'["add", 3]', 409, "wrong-index"),
    ("GET", "/records?from=x", None, None, 400, "malformed"),
    ("GET", "/records?from=2&to=1", None, None, 400, "malformed"),
    ("GET", "/records?to=-1", None, None, 400, "malformed"),
    ("GET", "/records?max_bytes=x", None, None, 400, "malformed"),
    ("GET", "/records?max_bytes=999999999", None, None, 400, "malformed"),
    ("GET", "/records?wait_ms=60001", None, None, 400, "malformed"),
    ("GET", "/records?from=99999", None, None, 404, "out-of-bounds"),
    ("GET", "/records/one", None, None, 400, "malformed"),
    ("GET", "/records/-1", None, None, 400, "malformed"),
    ("GET", "/records/18446744073709551616", None, None, 400, "malformed"),
    ("GET", "/records/18446744073709551615", None, None, 404, "out-of-bounds"),
    ("GET", "/records/0?x=1", None, None, 400, "malformed"),
    ("GET", "/index_bounds?x=1", None, None, 400, "malformed"),
    ("GET", "/state?consistency=strong", None, None, 400, "malformed"),
    ("GET", "/state?consistency=local&consistency=leader", None, None, 400, "malformed"),
    ("GET", "/state?max_lag=5", None, None, 400, "malformed"),
    ("GET", "/state?consistency=local&max_lag=-5", None, None, 400, "malformed"),
    ("GET", "/state?at=5", None, None, 400, "malformed"),
    ("GET", "/status?x=1", None, None, 400, "malformed"),
    ("GET", "/healthz?x=1", None, None, 400, "malformed"),
    ("GET", "/readyz?x=1", None, None, 400, "malformed"),
    # Routes.
    ("GET", "/", None, None, 404, "http"),
    ("GET", "/records/1/2", None, None, 404, "http"),
    ("GET", "/commands", None, None, 405, "http"),
    ("DELETE", "/records", None, None, 405, "http"),
    ("PUT", "/state", JSON, b"1", 405, "http"),
]


@pytest.mark.parametrize("at", ["n1", "n2"])
@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "status", "problem"),
    TABLE,
    ids=[f"{place}-{row[0]} {row[1]} {row[4]}" for place, row in enumerate(TABLE)],
)
async def test_malformed_input_has_its_own_answer_and_changes_nothing(
    cluster: RunningCluster,
    at: str,
    method: str,
    path: str,
    content_type: str | None,
    body: bytes | None,
    status: int,
    problem: str,
) -> None:
    before = (await cluster.ask("n1", "GET", "/state")).document

    reply = await cluster.ask(at, method, path, body, content_type)

    assert (reply.status, reply.problem) == (status, problem), reply.body
    assert (await cluster.ask("n1", "GET", "/state")).document == before


@pytest.mark.parametrize("at", ["n1", "n2"])
async def test_a_header_of_a_later_version_is_refused_not_dropped(cluster: RunningCluster, at: str) -> None:
    for header in ("Quire-Session", "quire-sequence", "Quire-Headers"):
        reply = await cluster.ask(at, "POST", "/commands", commands(["add", 3]), JSON, {header: "1"})
        assert (reply.status, reply.problem) == (400, "malformed")


@pytest.mark.parametrize("at", ["n1", "n2"])
@pytest.mark.parametrize(
    "raw",
    [
        POST + b"Content-Length: 100\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"NONSENSE\r\n\r\n",
        b"GET /records/" + b"9" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
    ],
)
async def test_broken_http_is_no_500_and_harms_nobody(cluster: RunningCluster, at: str, raw: bytes) -> None:
    before = (await cluster.ask("n1", "GET", "/state")).document
    reader, writer = await asyncio.open_connection(*host_and_port(cluster.address(at)))

    writer.write(raw)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)

    writer.close()
    assert not answer or answer.split()[1].startswith(b"4"), answer
    assert (await cluster.ask(at, "GET", "/state")).document == before


@pytest.mark.parametrize("at", ["n1", "n2"])
async def test_a_body_that_inflates_beyond_the_limit_is_refused(cluster: RunningCluster, at: str) -> None:
    bomb = gzip.compress(b'{"commands": [' + b" " * (4 << 20) + b'["add", 3]]}')
    reply = await cluster.ask(at, "POST", "/commands", bomb, JSON, {"Content-Encoding": "gzip"})

    assert (reply.status, reply.problem) == (413, "limit-exceeded")
