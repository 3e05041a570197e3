"""A valid request for each route of a node and of a standalone log, and each of them with one thing changed."""

import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from quire.log import pack
from tests.cluster.malformed.case import JSON, MSGPACK, NDJSON, OCTETS, Ask
from tests.cluster.malformed.changed import TEXTS, changes_of_map

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
VALUES = (
    *TEXTS,
    *("0", "1", "-1", "+1", "01", "1.5", "1e3", "0x1", "nan", "inf", "true", "null", "18446744073709551615"),
    *("18446744073709551616", "9" * 20, "9" * 5000, "1,2", "1/2", "0/1", "2/1", "1/0", "4294967296/4294967295", "%00"),
    *("linearizable", "leader", "local", "records", "records,blob", "blob,blob", "system", "٣", " 1", "1 "),
)
CONTENT_TYPES = ("", JSON, MSGPACK, NDJSON, OCTETS, "text/plain", "application/json; charset=utf-16", "/", "a" * 4000)
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Accept": (*CONTENT_TYPES[1:], "*/*;q=x", "application/vnd.quire.frames", "image/png"),
    "Content-Encoding": ("gzip", "identity", "deflate, gzip", "x" * 100),
    "Quire-Session": ("", "0", "1", "-1", "x", "18446744073709551615", "18446744073709551616"),
    "Quire-Sequence": ("", "0", "1", "-1", "x", "18446744073709551615", "18446744073709551616"),
    "Quire-Forwarded": ("", "n1", "n2", "no-such-node", "x" * 1000),
    "Quire-Request-Id": ("", "a", "a b", "x" * 1000),
    "Quire-Unheard-Of": ("1",),
    "Range": ("bytes=0-", "bytes=-1", "records=1-2"),
    "If-Match": ("*", '"x"'),
    "Expect": ("100-continue",),
    "X-Forwarded-For": ("1.2.3.4", "x" * 1000),
    "Cookie": ("a=b", "=", "\\", "x" * 4000),
    "Authorization": ("Basic", "Bearer " + "x" * 1000),
    "Upgrade": ("websocket", "h2c"),
}


class Known(NamedTuple):
    """A valid request of a route: the values of its path and query, its body's map."""

    method: str
    path: str
    segments: Mapping[str, str] = {}
    parameters: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None

    def ask(
        self,
        segments: Mapping[str, str] = {},
        query: str | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
        headers: Mapping[str, str] = {},
        method: str = "",
    ) -> Ask:
        path = self.path
        for name, value in {**self.segments, **segments}.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        query = "&".join(f"{name}={value}" for name, value in self.parameters.items()) if query is None else query
        if body is None and self.body is not None:
            body, content_type = orjson.dumps(self.body), JSON if content_type is None else content_type
        return Ask(method or self.method, f"{path}?{query}" if query else path, content_type, body, headers)


NODE = (
    Known("POST", "/commands", body={"commands": [["add", 0]]}),
    Known("GET", "/commands/stream", parameters={"session": "1"}),
    Known("POST", "/sessions", body={"name": "a"}),
    Known("GET", "/sessions", parameters={"after": "1", "limit": "1", "prefix": "a"}),
    Known("POST", "/sessions/close", body={"sessions": [1]}),
    Known("GET", "/sessions/{session}", {"session": "1"}),
    Known("DELETE", "/sessions/{session}", {"session": "1"}),
    Known("POST", "/records", parameters={"index": "1"}, body={"a": 1}),
    Known("GET", "/records", parameters={"from": "1", "to": "2", "max_bytes": "9", "wait_ms": "1", "kinds": "blob"}),
    Known("GET", "/records", parameters={"from": "1", "shard": "0/1"}),
    Known("GET", "/records", parameters={"from": "1", "to": "2", "boundaries": "9"}),
    Known("GET", "/records/{index}", {"index": "1"}),
    Known("GET", "/index_bounds", parameters={"consistency": "local"}),
    Known("POST", "/rpc/truncate", body={"lowest_index": 1}),
    Known("GET", "/state", parameters={"consistency": "local", "max_lag": "1", "max_lag_s": "1"}),
    Known("POST", "/query", parameters={"consistency": "local", "max_lag": "1"}, body={"request": None}),
    Known("GET", "/status"),
    Known("GET", "/cluster"),
    Known("GET", "/leader", parameters={"epoch": "1", "wait_ms": "1"}),
    Known("POST", "/admin/transfer", body={"target": "n2"}),
    Known("GET", "/members"),
    Known("POST", "/members", body={"members": {"n2": "127.0.0.1:1"}}),
    Known("PATCH", "/members/{node}", {"node": "n9"}, body={"role": "voter"}),
    Known("DELETE", "/members/{node}", {"node": "n9"}),
    Known("POST", "/admin/snapshot"),
    Known("POST", "/admin/expire", body={"dry_run": True}),
    Known("POST", "/admin/accept-code"),
    Known("GET", "/admin/genesis"),
    Known("GET", "/admin/snapshots/{index}", {"index": "1"}),
    Known("GET", "/admin/snapshots/{index}/{chunk}", {"index": "1", "chunk": "0"}),
    Known("GET", "/healthz"),
    Known("GET", "/readyz"),
    Known("GET", "/metrics"),
    Known("GET", "/"),
    Known("GET", "/cursors", parameters={"after": "a", "limit": "1", "prefix": "a"}),
    Known("PUT", "/cursors/{name}", {"name": "a"}, body={"index": 0, "hold_bytes": 1}),
    Known("GET", "/cursors/{name}", {"name": "a"}),
    Known("DELETE", "/cursors/{name}", {"name": "a"}),
)
STANDALONE = (
    Known("GET", "/index_bounds"),
    Known("GET", "/records/{index}", {"index": "1"}),
    Known("POST", "/records", parameters={"index": "1"}, body={"a": 1}),
    Known("POST", "/rpc/truncate", body={"lowest_index": 1}),
    Known("GET", "/healthz"),
    Known("GET", "/"),
)
WAITS = frozenset({"wait_ms"})
"""What keeps a valid request for a minute: its values are those that no node accepts."""


def changes_of_request(known: Known, chance: random.Random) -> Iterator[tuple[str, Ask]]:
    """(what, request) of each change."""
    yield "nothing", known.ask()
    yield from (("method", known.ask(method=method)) for method in METHODS if method != known.method)
    for name in known.segments:
        yield from ((f"{{{name}}}", known.ask({name: value})) for value in VALUES if value not in ("", ".", ".."))
    for name, given in {**known.parameters, "unheard-of": "1"}.items():
        for query in _queries(known, name, given):
            yield f"?{name}", known.ask(query=query)
    for name, values in HEADERS.items():
        yield from ((name, known.ask(headers={name: value})) for value in values)
    yield from (("Content-Type", known.ask(content_type=value, body=b"{}")) for value in CONTENT_TYPES)
    body = dict(known.body or {"unheard-of": 1})
    for change in changes_of_map(body, chance):
        yield f"body.{change.where}", known.ask(body=change.data, content_type=MSGPACK)
    for change in changes_of_map(body, chance):
        if change.where == "bytes":
            text = bytes(byte ^ chance.getrandbits(8) if chance.random() < 0.1 else byte for byte in orjson.dumps(body))
            yield "body.text", known.ask(body=text, content_type=JSON)
    yield "body.whole", known.ask(body=pack(body), content_type=JSON)
    yield "body.whole", known.ask(body=orjson.dumps(body), content_type=MSGPACK)


def _queries(known: Known, name: str, given: str) -> Iterator[str]:
    rest = [f"{other}={value}" for other, value in known.parameters.items() if other != name]
    values = [value for value in VALUES if name not in WAITS or not value.isascii() or not value.strip().isdigit()]
    yield from ("&".join([*rest, f"{name}={quote(value, safe='%')}"]) for value in values)
    yield "&".join(rest)
    yield "&".join([*rest, name])
    yield "&".join([*rest, f"{name}={given}", f"{name}={given}"])
