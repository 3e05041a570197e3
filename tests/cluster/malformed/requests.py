"""Requests that are valid HTTP, but malformed."""

import json

from quire.log import pack
from quire.log.packing import ExtType
from tests.cluster.malformed.case import JSON, MSGPACK, NDJSON, OCTETS, Ask, Case

MIB = 1 << 20


def commands(*values: object) -> bytes:
    return json.dumps({"commands": values}).encode()


ADD = commands(["add", 3])
DEEP = "[" * 40 + "]" * 40


def bad(content_type: str | None, body: bytes | None, status: int = 400, problem: str = "malformed") -> Case:
    """A `POST /commands`."""
    return Case(Ask("POST", "/commands", content_type, body), status, problem)


def refused(*values: object) -> Case:
    """Commands that the arithmetic machine refuses."""
    return bad(JSON, commands(*values), 422, "commands-refused")


def record(content_type: str | None, body: bytes, status: int = 400, problem: str = "malformed") -> Case:
    """A `POST /records`."""
    return Case(Ask("POST", "/records", content_type, body), status, problem)


def get(path: str, status: int = 400, problem: str = "malformed") -> Case:
    return Case(Ask("GET", path), status, problem)


def expecting(index: str, status: int = 400, problem: str = "malformed") -> Case:
    """A record with an expected index."""
    return Case(Ask("POST", f"/records?index={index}", JSON, b'["add", 3]'), status, problem)


def under(session: str | None, sequence: str | None) -> Case:
    """A command of a session."""
    headers = {"Quire-Session": session, "Quire-Sequence": sequence}
    return Case(
        Ask("POST", "/commands", JSON, ADD, {name: value for name, value in headers.items() if value is not None}),
        400,
        "malformed",
    )


def other(
    method: str, path: str, body: bytes | None = None, status: int = 400, problem: str = "malformed", says: str = ""
) -> Case:
    return Case(Ask(method, path, None if body is None else JSON, body), status, problem, says)


UNSUPPORTED = "unsupported-media-type"

FORMS = [
    bad(JSON, None),
    bad(JSON, b""),
    bad(JSON, b"{"),
    bad(JSON, b"\x00\xff\xfe"),
    bad(JSON, b"[]"),
    bad(JSON, b'["add", 3]'),
    bad(JSON, b'{"commands": []}'),
    bad(JSON, b'{"commands": {}}'),
    bad(JSON, b'{"commands": null}'),
    bad(JSON, b'{"commands": ["add", 3], "session": 1}'),
    bad(JSON, b'{"command": [["add", 3]]}'),
    bad(JSON, b'{"commands": [["add", 3]],}'),
    bad(JSON, b'{"commands": [["add", 3]]} x'),
    bad(JSON, b'{"commands": [["add", 1]], "commands": [["add", 2]]}'),
    bad(JSON, b'{"commands": [{"a": 1, "a": 2}]}'),
    bad(JSON, b'{"commands": [["add", NaN]]}'),
    bad(JSON, b'{"commands": [["add", -Infinity]]}'),
    bad(JSON, b'{"commands": [["add", 1e400]]}'),
    bad(JSON, b'{"commands": [["add", 18446744073709551616]]}'),
    bad(JSON, b'{"commands": [["add", -9223372036854775809]]}'),
    bad(JSON, b'{"commands": [["add", "\\ud800"]]}'),
    bad(JSON, b'{"commands": [["add", "\xff"]]}'),
    bad(JSON, b'{"commands": [["add", 03]]}'),
    bad(JSON, b"{'commands': [['add', 3]]}"),
    bad(JSON, b"\xef\xbb\xbf" + ADD),
    bad(JSON, ADD.decode().encode("utf-16")),
    Case(Ask("POST", "/commands", JSON, f'{{"commands": [{DEEP}]}}'.encode()), 400, "malformed", "40 nested lists"),
    Case(Ask("POST", "/commands", JSON, b"[" * 30_000), 400, "malformed", "`[` 30,000 times"),
    Case(Ask("POST", "/commands", JSON, b"[" * 33_000), 413, "limit-exceeded", "`[` 33,000 times"),
    bad(NDJSON, b""),
    bad(NDJSON, b"\n"),
    bad(NDJSON, b'["add", 3]\n["add"'),
    bad(NDJSON, b'["add", 3]\n\n["add", 3]\n'),
    bad(NDJSON, b'["add", 3],["add", 3]\n'),
    bad(NDJSON, b'["add", 3]\n{"a": 1, "a": 1}\n'),
    bad(NDJSON, b'["add", 18446744073709551616]\n'),
    bad(MSGPACK, b""),
    bad(MSGPACK, b"\xc1"),
    bad(MSGPACK, pack({"commands": [["add", 3]]}) + b"\x00"),
    bad(MSGPACK, pack({"commands": [["add", 3]]})[:-1]),
    bad(MSGPACK, b"\x82" + 2 * pack({"commands": [["add", 3]]})[1:]),
    bad(MSGPACK, pack({"commands": [["add", float("nan")]]})),
    bad(MSGPACK, pack({"commands": [["add", ExtType(1, b"")]]})),
    bad(MSGPACK, b"\x81\xa8commands\x91\x92\xa3add\xa1\xff"),
    bad(MSGPACK, b"\x81\xa8commands\x91\x81\x90\x01"),
    Case(Ask("POST", "/commands", MSGPACK, b"\x91" * 5000), 400, "malformed", "5,000 nested list headers"),
    Case(
        Ask("POST", "/commands", MSGPACK, b"\xdd\xff\xff\xff\xff"),
        400,
        "malformed",
        "the header of a list of 2^32 - 1 items",
    ),
]

TYPES = [
    bad(None, ADD, 415, UNSUPPORTED),
    bad("", ADD, 415, UNSUPPORTED),
    bad("text/plain", ADD, 415, UNSUPPORTED),
    bad(OCTETS, ADD, 415, UNSUPPORTED),
    bad("application/x-www-form-urlencoded", ADD, 415, UNSUPPORTED),
    bad("multipart/form-data; boundary=x", ADD, 415, UNSUPPORTED),
    bad("application/json; charset=latin-1", ADD, 415, UNSUPPORTED),
    bad("application", ADD, 415, UNSUPPORTED),
    record("text/plain", b"x", 415, UNSUPPORTED),
    Case(Ask("POST", "/commands", JSON, ADD, {"Content-Encoding": "gzip"}), 415, UNSUPPORTED),
    Case(Ask("POST", "/commands", JSON, ADD, {"Content-Encoding": "banana"}), 415, UNSUPPORTED),
    Case(Ask("POST", "/records", OCTETS, b"raw", {"Content-Encoding": "snappy"}), 415, UNSUPPORTED),
    Case(Ask("DELETE", "/sessions/1", None, None, {"Content-Encoding": "br"}), 415, UNSUPPORTED),
]

MACHINE = [
    refused(["pow", 3]),
    refused(["add", 3], ["div", 0]),
    refused(["div", "-0.0e5"]),
    refused(["add"]),
    refused(["add", 1, 2]),
    refused(["add", True]),
    refused(["add", 1.5]),
    refused(["add", None]),
    refused(["add", "three"]),
    refused(["add", "\u0663"]),
    refused(["add", "1" * 35]),
    refused(["add", "1e99999"]),
    refused([["add"], 3]),
    refused({"add": 3}),
    refused("add 3"),
    refused(None),
    record(None, b"raw bytes", 422, "commands-refused"),
    record(JSON, b"7", 422, "commands-refused"),
    other("POST", "/query", b'{"request": "nonsense"}', 422, "query-refused"),
]

RECORDS = [
    record(JSON, b""),
    record(JSON, b'["add", 3] ["add", 3]'),
    record(NDJSON, b""),
    record(MSGPACK, pack({"commands": [["add", 3]]})),
    record(MSGPACK, pack([])),
    expecting("-1"),
    expecting(""),
    expecting("one"),
    expecting("1.0"),
    expecting("%D9%A3"),
    expecting("18446744073709551616"),
    expecting("18446744073709551615", 409, "wrong-index"),
    Case(Ask("POST", "/records?index=1&index=1", JSON, b'["add", 3]'), 400, "malformed"),
    get("/records?from=x"),
    get("/records?from=2&to=1"),
    get("/records?to=-1"),
    get("/records?max_bytes=x"),
    get("/records?max_bytes=999999999"),
    get("/records?wait_ms=60001"),
    get("/records?shard=2/2"),
    get("/records?shard=1"),
    get("/records?shard=0/65537"),
    get("/records?kinds=some"),
    get("/records?boundaries=x"),
    get("/records?from=99999", 404, "out-of-bounds"),
    get("/records/one"),
    get("/records/-1"),
    get("/records/18446744073709551616"),
    get("/records/18446744073709551615", 404, "out-of-bounds"),
]

SESSIONS = [
    other("POST", "/sessions", b"[]"),
    other("POST", "/sessions", b'{"name": 5}'),
    other("POST", "/sessions", b'{"name": ""}'),
    other("POST", "/sessions", b'{"name": "a", "name": "b"}'),
    other("POST", "/sessions", b'{"title": "a"}'),
    other("POST", "/sessions", b'{"name": "' + b"x" * 201 + b'"}', says="a name of 201 characters"),
    other("POST", "/sessions/close", b'{"sessions": ["x"]}'),
    other("GET", "/sessions?after=x"),
    other("GET", "/sessions?limit=1001"),
    other("GET", "/sessions/five"),
    other("GET", "/sessions/18446744073709551616"),
    other("GET", "/sessions/0", None, 404, "session-unknown"),
    other("DELETE", "/sessions/-1"),
    under("1", None),
    under(None, "1"),
    under("0", "1"),
    under("1", "0"),
    under("one", "1"),
    under("1", "1.0"),
    under("18446744073709551616", "1"),
    get("/commands/stream"),
    get("/commands/stream?session=one"),
    get("/commands/stream?session=1&window=9"),
    get("/commands/stream?session=1", 404, "session-unknown"),
]

CURSORS = [
    other("PUT", "/cursors/a", b"[]"),
    other("PUT", "/cursors/a", b"{}"),
    other("PUT", "/cursors/a", b'{"index": -1}'),
    other("PUT", "/cursors/a", b'{"index": 1.5}'),
    other("PUT", "/cursors/a", b'{"index": true}'),
    other("PUT", "/cursors/a", b'{"index": 18446744073709551616}'),
    other("PUT", "/cursors/a", b'{"index": 0, "index": 1}'),
    other("PUT", "/cursors/a", b'{"index": 0, "place": 1}'),
    other("PUT", "/cursors/a", b'{"index": 0, "rewind": 1}'),
    other("PUT", "/cursors/a", b'{"index": 0, "hold_bytes": -1}'),
    other("PUT", "/cursors/a", b'{"index": 0, "token": "a"}'),
    other("PUT", "/cursors/a", b'{"index": 0, "take": true}'),
    other("PUT", "/cursors/a", b'{"index": 0, "owner": 7}'),
    other("PUT", "/cursors/a", b'{"index": 0, "owner": "No Name"}'),
    other("PUT", "/cursors/a%2F..", b'{"index": 0}'),
    other("PUT", "/cursors/a%20b", b'{"index": 0}'),
    other("PUT", "/cursors/a%2F%2Fb", b'{"index": 0}'),
    other("PUT", "/cursors/" + "a" * 201, b'{"index": 0}', says="a name of 201 characters"),
    other("GET", "/cursors/nowhere", None, 404, "cursor-unknown"),
    other("GET", "/cursors?limit=1001"),
    other("GET", "/cursors?limit=x"),
]

SIZES = [
    Case(Ask("POST", "/records", NDJSON, b"1\n" * (1 << 19) + b"1\n"), 413, "limit-exceeded", "1 MiB and two bytes"),
    Case(Ask("POST", "/records", OCTETS, bytes(9 << 20)), 413, "limit-exceeded", "9 MiB"),
    other(
        "POST", "/sessions/close", b'{"sessions": [' + b"1," * 1000 + b"1]}", 413, "limit-exceeded", "1,001 sessions"
    ),
    other("POST", "/admin/snapshot", b"{}", 413, "limit-exceeded"),
    other("POST", "/admin/accept-code", b"{}", 413, "limit-exceeded"),
]

READS = [
    Case(Ask("POST", "/records", JSON, b'["add", 3]', {"Quire-Headers": "{}"}), 400, "malformed"),
    get("/index_bounds?consistency=leader"),
    get("/state?consistency=strong"),
    get("/state?consistency=local&consistency=leader"),
    get("/state?max_lag=5"),
    get("/state?consistency=local&max_lag=-5"),
    get("/state?max_lag_s=0.5"),
    get("/state?consistency=local&max_lag_s=1e3"),
    get("/state?at=5"),
    other("POST", "/query", b"{}"),
    other("POST", "/query", b'{"request": null, "more": 1}'),
    other("POST", "/query", b"[" * 2000, says="`[` 2,000 times"),
    get("/index.html", 404, "http"),
    get("/records/1/2", 404, "http"),
    get("/COMMANDS", 404, "http"),
    get("/commands", 405, "http"),
    get("/peer", 400, "http"),
    get("/peer/stream", 400, "http"),
    get("/peer/snapshot", 400, "http"),
    other("POST", "/peer", b"{}", 405, "http"),
    other("DELETE", "/records", None, 405, "http"),
    other("PUT", "/state", b"1", 405, "http"),
    other("OPTIONS", "/commands", None, 405, "http"),
    other("TRACE", "/index_bounds", None, 405, "http"),
]

OPERATIONS = [
    other("POST", "/members", b""),
    other("POST", "/members", b"{}"),
    other("POST", "/members", b"{"),
    other("POST", "/members", b'"n3"'),
    other("POST", "/members", b'{"members": {}}'),
    other("POST", "/members", b'{"members": ["n4"]}'),
    other("POST", "/members", b'{"members": {"N4": "127.0.0.1:1"}}'),
    other("POST", "/members", b'{"members": {"-n4": "127.0.0.1:1"}}'),
    other("POST", "/members", b'{"members": {"n4": "127.0.0.1"}}'),
    other("POST", "/members", b'{"members": {"n4": 7}}'),
    other("POST", "/members", b'{"members": {"n4": "127.0.0.1:1"}, "role": "joining"}'),
    other("POST", "/members", b'{"members": {"n4": "127.0.0.1:1"}, "promote": true}'),
    other("PATCH", "/members/n2", b""),
    other("PATCH", "/members/n2", b"{}"),
    other("PATCH", "/members/n2", b'"voter"'),
    other("PATCH", "/members/n2", b'{"role": "joining"}'),
    other("PATCH", "/members/n2", b'{"address": "nowhere"}'),
    other("PATCH", "/members/n2", b'{"drained": 1}'),
    other("PATCH", "/members/n2", b'{"role": "voter", "address": "127.0.0.1:1"}'),
    other("PATCH", "/members/n4", b'{"role": "voter"}', 404, "node-unknown"),
    other("DELETE", "/members/n2", b"x", 413, "limit-exceeded"),
    other("DELETE", "/members/n4", b"", 404, "node-unknown"),
    other("POST", "/admin/transfer", b'{"target": "n9"}'),
    other("POST", "/admin/transfer", b'{"to": "n1"}'),
    other("POST", "/admin/expire", b'{"dry_run": 1}'),
]

REQUESTS: list[tuple[str, list[Case]]] = [
    ("The form of commands", FORMS),
    ("Content type and content encoding", TYPES),
    ("What the machine refuses", MACHINE),
    ("Records", RECORDS),
    ("Sessions", SESSIONS),
    ("Cursors", CURSORS),
    ("Sizes", SIZES),
    ("Parameters, routes and methods", READS),
    ("Operations", OPERATIONS),
]
