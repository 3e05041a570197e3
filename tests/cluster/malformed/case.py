"""What is sent, and what is answered."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis.strategies import SearchStrategy

JSON = "application/json"
MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"


class Ask(NamedTuple):
    """A request as an HTTP client sends it."""

    method: str
    path: str
    content_type: str | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class Case(NamedTuple):
    """One input and its answer. `says` stands on the page where the input itself would not be read."""

    ask: Ask
    status: int
    problem: str
    says: str = ""


class Many(NamedTuple):
    """Inputs of one kind, made by hypothesis, and the one answer to all of them."""

    says: str
    asks: "SearchStrategy[Ask]"
    status: int
    problem: str


class Raw(NamedTuple):
    """Bytes on a connection, in pieces that leave one by one. An answer of 200 has no problem."""

    says: str
    pieces: tuple[bytes, ...]
    status: int
    problem: str = ""


class OnStream(NamedTuple):
    """Bytes behind the handshake of a stream. `problem` is what is told, `code` how the stream is closed."""

    says: str
    sent: bytes
    code: int
    problem: str = ""


Group = tuple[str, list[Any]]
