"""Kinds of malformed requests; hypothesis generates examples of each."""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from quire.log import pack
from quire.log.packing import ExtType
from tests.cluster.malformed.case import JSON, MSGPACK, NDJSON, OCTETS, Ask, Many

BATCH: dict[str, Any] = {"commands": [["add", 3], ["mul", "1.5"], ["sub", -7]]}
AS_JSON, AS_MSGPACK, AS_LINES = json.dumps(BATCH).encode(), pack(BATCH), b'["add", 3]\n["mul", "1.5"]\n["sub", -7]'
ADD = b'{"commands": [["add", 0]]}'
OPERAND = re.compile(r"-?[0-9]{1,34}(\.[0-9]{1,34})?([eE][+-]?[0-9]{1,4})?")

Asks = SearchStrategy[Ask]


def post(bodies: SearchStrategy[bytes], content_type: str = JSON, path: str = "/commands") -> Asks:
    return bodies.map(lambda body: Ask("POST", path, content_type, body))


def commanding(commands: SearchStrategy[Any]) -> Asks:
    """Requests with one command each."""
    return post(commands.map(lambda command: json.dumps({"commands": [command]}).encode()))


def with_header(names: SearchStrategy[str], values: SearchStrategy[str], **more: str) -> Asks:
    headers = st.tuples(names, values).map(lambda header: {**more, header[0]: header[1]})
    return headers.map(lambda found: Ask("POST", "/commands", JSON, ADD, found))


def get(path: str, texts: SearchStrategy[str]) -> Asks:
    """GET requests with a text in place of the {} in the path."""
    return texts.map(lambda text: Ask("GET", path.format(quote(text, safe=""))))


def cut(whole: bytes, by: int) -> SearchStrategy[bytes]:
    """The whole without its last 1 to `by` bytes."""
    return st.integers(1, by).map(lambda count: whole[:-count])


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def is_index(text: str) -> bool:
    return re.fullmatch("[0-9]{1,20}", text) is not None and int(text) < 1 << 64


def is_batch(value: object) -> bool:
    return isinstance(value, dict) and list(value) == ["commands"]


def beside(key: str) -> bytes:
    return json.dumps({**BATCH, key: 1}).encode()


def nested(depth: int) -> bytes:
    return b'{"commands": [' + b"[" * depth + b"]" * depth + b"]}"


def twice(key: str) -> bytes:
    return b'{"commands": [{"%b": 1, "b": 2, "%b": 1}]}' % (key.encode(), key.encode())


def half_a_pair(code: int) -> bytes:
    return b'{"commands": [["add", "\\u%x"]]}' % code


def no_text(text: str) -> bytes:
    return b'{"commands": ["' + text.encode() + b'\xff"]}'


def other_than(texts: SearchStrategy[str], *known: str) -> SearchStrategy[str]:
    return texts.filter(lambda text: text not in known)


def no_match(texts: SearchStrategy[str], matches: Callable[[str], object]) -> SearchStrategy[str]:
    return texts.filter(lambda text: not matches(text))


WORDS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e9, 1e9) | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
BEYOND = st.integers(min_value=2**64, max_value=2**80)
NO_INDEX = no_match(st.text(min_size=1, max_size=8), is_index)
NO_SEGMENT = NO_INDEX.filter(lambda text: text not in (".", "..") and not set("/{}") & set(text))  # Others: no route.
ROUTES = ("commands", "records", "sessions", "state", "query", "status", "cluster", "healthz", "readyz", "metrics")
PARAMETERS = ("from", "to", "max_bytes", "wait_ms", "shard", "kinds", "boundaries")
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]


def malformed(says: str, asks: Asks) -> Many:
    return Many(says, asks, 400, "malformed")


def unsupported(says: str, asks: Asks) -> Many:
    return Many(says, asks, 415, "unsupported-media-type")


def refused(says: str, commands: SearchStrategy[Any]) -> Many:
    return Many(says, commanding(commands), 422, "commands-refused")


GENERATED = [
    malformed("JSON that is truncated anywhere", post(cut(AS_JSON, len(AS_JSON)))),
    malformed("msgpack that is truncated anywhere", post(cut(AS_MSGPACK, len(AS_MSGPACK)), MSGPACK)),
    malformed("msgpack with bytes after it", post(st.binary(min_size=1).map(AS_MSGPACK.__add__), MSGPACK)),
    malformed("lines of which the last is truncated", post(cut(AS_LINES, 10), NDJSON)),
    malformed("bytes that are not JSON", post(st.binary().filter(lambda data: not is_json(data)))),
    malformed(
        "JSON that is not a map of commands",
        post(VALUES.filter(lambda value: not is_batch(value)).map(lambda value: json.dumps(value).encode())),
    ),
    malformed("commands and another key", post(other_than(WORDS, "commands").map(beside))),
    malformed("an integer above 64 bits", commanding(BEYOND.map(lambda number: ["add", number]))),
    malformed("an integer below 64 bits", commanding(BEYOND.map(lambda number: ["add", -number]))),
    malformed(
        "a float that is not finite",
        post(st.sampled_from(NOT_FINITE).map(lambda number: pack({"commands": [["add", number]]})), MSGPACK),
    ),
    malformed("lists more than 32 deep", post(st.integers(33, 5000).map(nested))),
    malformed("a map with a key twice", post(WORDS.map(twice))),
    malformed("half a surrogate pair", post(st.integers(0xD800, 0xDFFF).map(half_a_pair))),
    malformed("text that is not UTF-8", post(WORDS.map(no_text))),
    malformed(
        "a reserved ext type",
        post(st.builds(ExtType, st.integers(0, 15), st.binary()).map(lambda ext: pack([ext])), MSGPACK, "/records"),
    ),
    malformed("an unknown parameter", get("/records?{}=1", other_than(WORDS, *PARAMETERS))),
    malformed(
        "an unknown `Quire-` header",
        with_header(
            other_than(WORDS, "session", "sequence", "forwarded", "request-id").map("Quire-{}".format), st.just("1")
        ),
    ),
    malformed("a `from` that is not a number", get("/records?from={}", NO_INDEX)),
    malformed("a `wait_ms` that is not a number", get("/records?wait_ms={}", NO_INDEX)),
    malformed(
        "a `shard` that is not i/n", get("/records?shard={}", no_match(NO_INDEX, re.compile("[0-9]+/[0-9]+").match))
    ),
    malformed("an index that is not a number", get("/records/{}", NO_SEGMENT)),
    malformed("an index beyond 64 bits", get("/records/{}", BEYOND.map(str))),
    malformed("a session that is not a number", get("/sessions/{}", NO_SEGMENT)),
    malformed(
        "an unknown consistency", get("/state?consistency={}", other_than(WORDS, "linearizable", "leader", "local"))
    ),
    malformed(
        "a `Quire-Sequence` that is not a number",
        with_header(
            st.just("Quire-Sequence"),
            no_match(st.text("0123456789.-+ex", min_size=1, max_size=9), is_index),
            **{"Quire-Session": "1"},
        ),
    ),
    unsupported(
        "an unsupported content type",
        other_than(WORDS.map("application/{}".format), JSON, MSGPACK, NDJSON, OCTETS).flatmap(
            lambda name: post(st.just(ADD), name)
        ),
    ),
    unsupported("a content encoding", with_header(st.just("Content-Encoding"), other_than(WORDS, "identity"))),
    refused("an unknown operation", other_than(WORDS, "add", "sub", "mul", "div").map(lambda name: [name, 3])),
    refused("an operand that is not a number", no_match(st.text(), OPERAND.fullmatch).map(lambda text: ["add", text])),
    refused("a division by zero", st.sampled_from([0, "0", "-0", "0.00", "0e99"]).map(lambda zero: ["div", zero])),
    Many("an unknown route", get("/{}", other_than(WORDS, "peer", *ROUTES)), 404, "http"),
    Many(
        "a method that the route does not have",
        st.tuples(
            st.sampled_from(["PUT", "PATCH", "DELETE", "OPTIONS"]), st.sampled_from(ROUTES).map("/{}".format)
        ).map(lambda found: Ask(*found)),
        405,
        "http",
    ),
]
