"""The client's face: what `quire.connect` gives."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from quire.log import PayloadInvalid, pack
from quire.log.packing import array_head

from .errors import BadRequest
from .pipeline import Pipeline
from .reading import Pages, Record, range_pages, tail_pages
from .replies import BatchReply
from .session import Session
from .stream import CommandStream
from .transport import MSGPACK, Reply, Transport, document_of, value_of

OCTETS = "application/octet-stream"
DEFAULT_TIMEOUT_S = 30.0
NOT_OPEN = "the client is not open; use it as in: async with quire.connect(...) as cluster"


@dataclass(frozen=True, slots=True)
class State:
    """A machine's whole state after it applied everything below `applied_index`; `digest` is in hex."""

    state: Any
    applied_index: int
    digest: str


class Client:
    """One cluster, as seen from one event loop. Calls may run at the same time.

    Commands go, in the order of the calls, over one pipelined stream under a session, and each executes once: what a
    lost connection or a leader that ends leaves unanswered is sent again until it is answered. They end in
    OutcomeUnknown only if `timeout_s` passes meanwhile. Appended records have no session: theirs is unknown as soon as
    a connection breaks before the answer.

    Every call ends within `timeout_s`.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        session: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        halt_on_failure: bool = False,
    ) -> None:
        named = servers.split(",") if isinstance(servers, str) else servers
        self._servers = tuple(server.strip() for server in named if server.strip())
        if not self._servers:
            raise ValueError("name at least one server, as in 127.0.0.1:7001,127.0.0.1:7002")
        self._name = session
        self._timeout_s = timeout_s
        self._halts = halt_on_failure
        self._transport: Transport | None = None
        self._stream: CommandStream | None = None

    async def __aenter__(self) -> Self:
        self._transport = Transport(self._servers, self._timeout_s)
        pipeline = Pipeline(self._timeout_s, halt_on_failure=self._halts)
        self._stream = CommandStream(self._transport, pipeline, self._name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the answers that are due, unless an error ends the block; then end the stream and the session."""
        transport, self._transport = self._transport, None
        stream, self._stream = self._stream, None
        if transport is None or stream is None:
            return
        try:
            await stream.close(drain=kind is None)
        finally:
            await transport.close()

    async def session(self) -> Session:
        """The session of this client's commands; it is opened now if no command has opened it yet."""
        return await self._commands().session()

    async def resume_at(self, sequence: int) -> Session:
        """Number the next command so, instead of behind what the session had executed when it was opened.

        For who kept what they sent under a named session, and how it was numbered: what was executed is answered as it
        was then, as far as the session keeps replies (else ReplyGone), and the rest executes. Before the first command.

        Raises:
            ValueError: the sequence would leave a gap, or commands were handed in already.
        """
        return await self._commands().resume_at(sequence)

    async def submit(self, command: Any) -> asyncio.Future[Any]:
        """Hand in one command; a future for its result, or for what `apply` raises.

        Waits for room in the window, and not for the answer. What is handed in meanwhile leaves as one message. A
        future that is cancelled drops its answer: the command is executed all the same.

        Raises:
            Unavailable: there was no room within `timeout_s`.
            SessionError, BadRequest: see `quire.cluster.client.errors`.
        """
        packed, stream = _pack(command), self._commands()
        answer = stream.pipeline.submit(packed, 1, batch=False)
        if answer is None:
            return await stream.submit_later(packed, 1, batch=False)
        if stream.pipeline.crowded:
            await asyncio.sleep(0)  # A message is full: the loop gets its turn to send it.
        return answer

    async def submit_batch(self, commands: Sequence[Any]) -> asyncio.Future[BatchReply]:
        """Hand in commands that become one frame; a future for their reply. As `submit` else."""
        count = len(commands)
        if not count:
            raise BadRequest({"status": 400, "detail": "there is no command in the batch; send at least one"})
        packed, stream = _pack(list(commands))[len(array_head(count)) :], self._commands()
        answer = stream.pipeline.submit(packed, count, batch=True)
        return await stream.submit_later(packed, count, batch=True) if answer is None else answer

    async def apply(self, command: Any) -> Any:
        """Apply one command; return its result.

        Raises:
            Refused: by check (nothing was written, `index` is None) or by apply (`index` is its place in the log).
            OutcomeUnknown, Unavailable, SessionError, BadRequest: see `quire.cluster.client.errors`.
        """
        return await (await self.submit(command))

    async def apply_batch(self, commands: Sequence[Any]) -> BatchReply:
        """Apply commands in their order, as one frame: all of them or none. Raises as `apply`, of checks only."""
        return await (await self.submit_batch(commands))

    async def append(self, value: Any) -> int:
        """Append one record; return its index. It is on a majority's disks then. Bytes above 1 MiB are a blob."""
        if not isinstance(value, bytes):
            return await self.append_batch([value])
        reply = await self._call("POST", "/records", writes=True, body=value, content_type=OCTETS)
        return int(document_of(reply)["write_index"])

    async def append_batch(self, values: Sequence[Any]) -> int:
        """Append records as one frame; return the index of the first."""
        reply = await self._call("POST", "/records", writes=True, body=_pack(list(values)), content_type=MSGPACK)
        return int(document_of(reply)["write_index"])

    async def read(self, index: int) -> Any:
        """The value of the record at an index. Raises NotFound."""
        reply = await self._call("GET", f"/records/{index}")
        return value_of(reply)

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
        return range_pages(self._get, value_of, from_index, to_index)

    def tail_pages(self, from_index: int | None) -> Pages:
        """`tail` in pages, as they come from a server."""
        return tail_pages(self._get, value_of, from_index, self._timeout_s)

    async def query(self, request: Any, consistency: str = "linearizable", *, server: str | None = None) -> Any:
        """The machine's answer to a request; of one server if it is named, with consistency `local`.

        Raises:
            Refused: the machine does not answer this.
            ServerFault: the machine's own code failed at it.
        """
        path, body = "/query?" + urlencode({"consistency": consistency}), _pack({"request": request})
        return document_of(await self._call("POST", path, body=body, content_type=MSGPACK, server=server))["answer"]

    async def state(self, consistency: str = "linearizable", *, server: str | None = None) -> State:
        """The machine's state; of one server if it is named, with consistency `local`."""
        reply = await self._call("GET", "/state?" + urlencode({"consistency": consistency}), server=server)
        return State(**document_of(reply))

    async def status(self, server: str | None = None) -> dict[str, Any]:
        """What a server knows of itself; the leader, or the first that answers, where none is named."""
        return document_of(await self._call("GET", "/status", server=server))

    async def transfer(self, target: str | None = None) -> str:
        """Move leadership to a node, or to the one that has most; return who leads then. No write is lost by it.

        Raises:
            Unavailable: it was not moved within `timeout_s`.
        """
        reply = await self._call("POST", "/admin/transfer", body=_pack({"target": target}), content_type=MSGPACK)
        return str(document_of(reply)["leader"])

    async def members(self) -> dict[str, Any]:
        """{"leader", "epoch", "members_index", "commit_index", "members"}; a row is {"node_id", "disk_id", "address",
        "role", "heard", "lag"}.
        """
        return document_of(await self._call("GET", "/admin/members"))

    async def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with the disk that it has; return where the records stand that say so, if any had to.

        What passes by itself is waited for: a node that has not caught up, a leader that has just been elected.

        Raises:
            NotFound: there is no such node.
            Unavailable: it is not a voter within `timeout_s`; said again, it goes on from where it was.
        """
        body = _pack({"promote": node_id})
        return list(document_of(await self._call("POST", "/admin/members", body=body, content_type=MSGPACK))["changes"])

    async def take_snapshot(self, server: str) -> dict[str, Any]:
        """Let a server take a snapshot of all that it has applied: {"node_id", "index", "bytes", "sha256"}.

        Raises:
            Unavailable: there is none within `timeout_s`.
        """
        return document_of(await self._call("POST", "/admin/snapshot", server=server))

    async def expire(self, server: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Let a server remove what may go of its log, or only say so: {"node_id", "segments", "to_index", "bytes"}."""
        body = _pack({"dry_run": dry_run})
        return document_of(await self._call("POST", "/admin/expire", body=body, content_type=MSGPACK, server=server))

    async def session_status(self, session: int) -> dict[str, Any]:
        """{"session", "name", "sequence"} of any open session: its name if it has one, and the last it was answered.

        Raises:
            NotFound: it is not open.
        """
        return document_of(await self._call("GET", f"/sessions/{session}"))

    async def close_session(self, session: int) -> dict[str, Any]:
        """Close any session: {"session", "sequence"}, where it stood. Whoever holds it is answered SessionExpired.

        Raises:
            NotFound: it is not open.
        """
        return document_of(await self._call("DELETE", f"/sessions/{session}", writes=True))

    async def ready(self, server: str) -> bool:
        """Whether a server says that it is ready. Raises Unavailable if it is not before the deadline."""
        return bool(document_of(await self._call("GET", "/readyz", server=server))["ready"])

    async def _get(self, path: str) -> Reply:
        return await self._call("GET", path)

    def _commands(self) -> CommandStream:
        if self._stream is None:
            raise RuntimeError(NOT_OPEN)
        return self._stream

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
            raise RuntimeError(NOT_OPEN)
        headers = {"Accept": MSGPACK}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return await self._transport.call(method, path, writes=writes, body=body, headers=headers, server=server)


def connect(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
) -> Client:
    """A client for the cluster that these servers (HOST:PORT, comma-separated or a sequence) belong to.

    Use it as `async with quire.connect("127.0.0.1:7001,127.0.0.1:7002") as cluster:`. One server is enough to find the
    leader; more keep working when that one is gone.

    `session` names the session of its commands: the client goes on where the last holder of that name stopped, who is
    answered SessionFenced from then on. Without a name it has a session of its own, until it is closed. `timeout_s`
    bounds every call. With `halt_on_failure` nothing is sent behind a command that the machine's check refused, or
    that was not answered in time: what was handed in behind it, and all later, fails as Halted.
    """
    return Client(servers, session=session, timeout_s=timeout_s, halt_on_failure=halt_on_failure)


def _pack(value: Any) -> bytes:
    try:
        return pack(value)
    except PayloadInvalid as error:
        raise BadRequest(
            {"type": "about:blank", "status": 400, "detail": f"this cannot be sent: {error.reason}"}
        ) from None
