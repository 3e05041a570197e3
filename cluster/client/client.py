"""The client's face: what DESIGN 7 shows of `quire.connect`, without sessions."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import orjson

from quire.log import PayloadInvalid, pack
from quire.log.packing import ExtType, unpack_trusted

from .errors import BadRequest, ClientError, Refused
from .reading import Pages, Record, range_pages, tail_pages
from .transport import Reply, Transport

MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What a batch of commands came to: they stand at [index, index + len(results)).

    `results` has None in the place of a refused command; `refused` lists those as [place, code, text].
    """

    index: int
    epoch: int
    results: list[Any]
    refused: list[list[Any]]


@dataclass(frozen=True, slots=True)
class State:
    """A machine's whole state after it applied everything below `applied_index`; `digest` is in hex."""

    state: Any
    applied_index: int
    digest: str


class Client:
    """One cluster, as seen from one event loop. Calls may run at the same time.

    Every call ends within `timeout_s`. Without sessions a write is sent again only if it provably did nothing, so it
    may end in OutcomeUnknown.
    """

    def __init__(self, servers: str | Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        named = servers.split(",") if isinstance(servers, str) else servers
        self._servers = tuple(server.strip() for server in named if server.strip())
        if not self._servers:
            raise ValueError("name at least one server, as in 127.0.0.1:7001,127.0.0.1:7002")
        self._timeout_s = timeout_s
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        self._transport = Transport(self._servers, self._timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def apply(self, command: Any) -> Any:
        """Apply one command; return its result.

        Raises:
            Refused: by check (nothing was written, `index` is None) or by apply (`index` is its place in the log).
            OutcomeUnknown, Unavailable, BadRequest: see `quire.cluster.client.errors`.
        """
        reply = await self.apply_batch([command])
        if reply.refused:
            raise Refused(reply.refused, reply.index)
        return reply.results[0]

    async def apply_batch(self, commands: Sequence[Any]) -> BatchReply:
        """Apply commands in their order, as one frame: all of them or none. Raises as `apply`, of checks only."""
        return await self._post_commands(_pack({"commands": list(commands)}), MSGPACK)

    async def apply_lines(self, lines: bytes) -> BatchReply:
        """Apply commands that are NDJSON already, as one frame; the bytes are sent as they are."""
        return await self._post_commands(lines, NDJSON)

    async def append(self, value: Any) -> int:
        """Append one record; return its index. It is on a majority's disks then. Bytes above 1 MiB are a blob."""
        if not isinstance(value, bytes):
            return await self.append_batch([value])
        reply = await self._call("POST", "/records", writes=True, body=value, content_type=OCTETS)
        return int(_document(reply)["write_index"])

    async def append_batch(self, values: Sequence[Any]) -> int:
        """Append records as one frame; return the index of the first."""
        reply = await self._call("POST", "/records", writes=True, body=_pack(list(values)), content_type=MSGPACK)
        return int(_document(reply)["write_index"])

    async def read(self, index: int) -> Any:
        """The value of the record at an index. Raises NotFound."""
        reply = await self._call("GET", f"/records/{index}")
        return _value(reply)

    async def read_range(self, from_index: int | None = None, to_index: int | None = None) -> AsyncIterator[Record]:
        """The records [from_index, to_index) that are visible; from the first and to the last where None is given.

        Raises:
            Unavailable: the servers that are left have not heard of all of them yet.
        """
        async with aclosing(self.range_pages(from_index, to_index)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    async def tail(self, from_index: int | None = None) -> AsyncIterator[Record]:
        """Every record from an index on, each once and in order, for ever; from what comes next where None is given.

        It goes on across lost connections and servers, for as long as one of them answers within `timeout_s`.

        Raises:
            Unavailable: nobody does.
            NotFound: the index has expired, or is ahead of every server for that long.
        """
        async with aclosing(self.tail_pages(from_index)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    def range_pages(self, from_index: int | None, to_index: int | None) -> Pages:
        """`read_range` in pages, as they come from a server: less work a record."""
        return range_pages(self._get, _value, from_index, to_index)

    def tail_pages(self, from_index: int | None) -> Pages:
        """`tail` in pages, as they come from a server."""
        return tail_pages(self._get, _value, from_index, self._timeout_s)

    async def query(self, request: Any, consistency: str = "linearizable", *, server: str | None = None) -> Any:
        """The machine's answer to a request; of one server if it is named, with consistency `local`.

        Raises:
            Refused: the machine does not answer this.
            ServerFault: the machine's own code failed at it.
        """
        path, body = "/query?" + urlencode({"consistency": consistency}), _pack({"request": request})
        return _document(await self._call("POST", path, body=body, content_type=MSGPACK, server=server))["answer"]

    async def state(self, consistency: str = "linearizable", *, server: str | None = None) -> State:
        """The machine's state; of one server if it is named, with consistency `local`."""
        reply = await self._call("GET", "/state?" + urlencode({"consistency": consistency}), server=server)
        return State(**_document(reply))

    async def status(self, server: str | None = None) -> dict[str, Any]:
        """What a server knows of itself; the leader, or the first that answers, where none is named."""
        return _document(await self._call("GET", "/status", server=server))

    async def ready(self, server: str) -> bool:
        """Whether a server says that it is ready. Raises Unavailable if it is not before the deadline."""
        return bool(_document(await self._call("GET", "/readyz", server=server))["ready"])

    async def _get(self, path: str) -> Reply:
        return await self._call("GET", path)

    async def _post_commands(self, body: bytes, content_type: str) -> BatchReply:
        reply = await self._call("POST", "/commands", writes=True, body=body, content_type=content_type)
        document = _document(reply)
        return BatchReply(document["index"], document["epoch"], document["results"], document.get("refused", []))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        writes: bool = False,
        body: bytes | None = None,
        content_type: str | None = None,
        server: str | None = None,
    ) -> Reply:
        if self._transport is None:
            raise RuntimeError("the client is not open; use it as in: async with quire.connect(...) as cluster")
        headers = {"Accept": MSGPACK}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return await self._transport.call(method, path, writes=writes, body=body, headers=headers, server=server)


def connect(servers: str | Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Client:
    """A client for the cluster that these servers (HOST:PORT, comma-separated or a sequence) belong to.

    Use it as `async with quire.connect("127.0.0.1:7001,127.0.0.1:7002") as cluster:`. One server is enough to find the
    leader; more keep working when that one is gone. `timeout_s` bounds every call.
    """
    return Client(servers, timeout_s=timeout_s)


def _pack(value: Any) -> bytes:
    try:
        return pack(value)
    except PayloadInvalid as error:
        raise BadRequest(
            {"type": "about:blank", "status": 400, "detail": f"this cannot be sent: {error.reason}"}
        ) from None


def _document(reply: Reply) -> dict[str, Any]:
    document = _value(reply)
    if not isinstance(document, dict):
        raise ClientError(f"a server answered {reply.content_type} that is no map; is it a quire node?")
    return document


def _value(reply: Reply) -> Any:
    match reply.content_type:
        case "application/msgpack":
            return unpack_trusted(reply.body, ExtType)
        case "application/json":
            return orjson.loads(reply.body)
        case "application/octet-stream":
            return reply.body
        case _:
            raise ClientError(f"a server answered {reply.content_type}, which no quire node does; check the address")
