"""The asyncio client, as returned by `quire.connect`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlencode

from quire.log import Bounds, PayloadInvalid, pack
from quire.log.packing import array_head

from .errors import BadRequest
from .forks import closed, opened, refuse_fork
from .message import BatchReply
from .pipeline import Pipeline
from .records import Pages, Record, history_pages, range_pages, tail_pages
from .stream import CommandStream, Session
from .transport import MSGPACK, Reply, Transport, document_of, value_of

OCTETS = "application/octet-stream"
DEFAULT_TIMEOUT_S = 30.0
NOT_OPEN = "the client is not open; use it as in: async with quire.connect(...) as cluster"

Consistency = Literal["linearizable", "leader", "local"]
"""How fresh a read is.

- linearizable: it sees every command that was acknowledged before the read began
- leader: the state of the node that believes it leads; stale by at most an election timeout
- local: the state of the node that is asked, however stale
"""


@dataclass(frozen=True, slots=True)
class State:
    """The machine's state after all records below `applied_index`, and its `digest` in hex."""

    state: Any
    applied_index: int
    digest: str


class Client:
    """A connection to a cluster, for one event loop. Calls may run concurrently.

    Commands (`apply`, `submit` and their batches) go over one pipelined stream, in the order of the calls, numbered in
    a session. Each executes exactly once: after a lost connection or a change of leader, the client resends unanswered
    commands until they are answered. A command fails with OutcomeUnknown only if `timeout_s` passes first, if its
    session is gone by then, or if a server refuses the resent message, as a node with other code or limits may.

    Appended records are not numbered in a session. An append fails with OutcomeUnknown as soon as its connection breaks
    before the answer.

    Every call returns or raises within `timeout_s`.

    It belongs to the process that opened it. In a forked child its calls raise ForkedClient, and leaving the block does
    nothing; the parent can continue to use it.
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
        self._opened_in: int | None = None

    async def __aenter__(self) -> Self:
        self._opened_in = os.getpid()
        self._transport = Transport(self._servers, self._timeout_s)
        pipeline = Pipeline(self._timeout_s, halt_on_failure=self._halts)
        self._stream = CommandStream(self._transport, pipeline, self._name)
        opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for outstanding answers, unless the block raised; then close the stream and an unnamed session.

        In a forked child it does nothing: they belong to the parent.
        """
        closed(self)
        transport, self._transport = self._transport, None
        stream, self._stream = self._stream, None
        if transport is None or stream is None:
            return
        try:
            await stream.close(drain=kind is None)
        finally:
            await transport.close()

    def forked(self) -> None:
        """In a child, every call from here on raises ForkedClient. The transport closes its copied sockets itself."""
        self._left_to_parent = self._transport, self._stream  # Their finalizers would report them as unclosed.
        self._transport = self._stream = None

    async def session(self) -> Session:
        """The session that numbers this client's commands. Opens it if no command has done so yet.

        Raises:
            Unavailable: no server could open it within `timeout_s`. No command was executed; but if an attempt was not
                answered, its name may have been taken over from another holder.
        """
        return await self._open_stream().session()

    async def resume_at(self, sequence: int) -> Session:
        """Give the next command this sequence, instead of the one after the session's last executed command.

        For callers that recorded what they sent under a named session, and under which sequences. Commands that were
        already executed get the reply they got then (ReplyGone if the session no longer keeps it); the others execute.
        Call it before the first command. Unless the sequence is the next one anyway, this turns on `halt_on_failure`:
        commands after a failed one would get different sequences than they had, and might execute again.

        Raises:
            ValueError: the sequence would leave a gap, or commands were already submitted.
            Unavailable: no server could open the session within `timeout_s`.
        """
        return await self._open_stream().resume_at(sequence)

    async def submit(self, command: Any) -> asyncio.Future[Any]:
        """Submit one command; return a future that resolves to its result, or fails with what `apply` raises.

        Waits only for space in the session's window, not for the answer. Commands submitted while others are in flight
        are sent together, as one message. Cancelling the future drops the answer; the command still executes.

        Raises:
            Unavailable: the window had no space within `timeout_s`.
            BadRequest: the command cannot be packed, or exceeds a limit.
            SessionError: the session is fenced or gone.
            Halted: an earlier command failed, under `halt_on_failure`.
        """
        packed, stream = _pack(command), self._open_stream()
        answer = stream.pipeline.submit(packed, 1, batch=False)
        if answer is None:
            return await stream.submit_later(packed, 1, batch=False)
        if stream.pipeline.message_full:
            await asyncio.sleep(0)  # Lets the loop send it.
        return answer

    async def submit_batch(self, commands: Sequence[Any]) -> asyncio.Future[BatchReply]:
        """Submit commands that become one frame; return a future for their reply. Otherwise like `submit`."""
        count = len(commands)
        if not count:
            raise BadRequest({"status": 400, "detail": "the batch is empty; send at least one command"})
        packed, stream = _pack(list(commands))[len(array_head(count)) :], self._open_stream()
        answer = stream.pipeline.submit(packed, count, batch=True)
        return await stream.submit_later(packed, count, batch=True) if answer is None else answer

    async def apply(self, command: Any) -> Any:
        """Apply one command; return its result. It is then on a majority's disks, and applied on the leader.

        Raises:
            CommandRefused: by the machine's `check` (nothing was written, `index` is None) or `apply` (`index` is that
                of the command in the log).
            OutcomeUnknown: it was sent, and no answer came within `timeout_s`, or it was resent and then refused.
            ReplyGone: an earlier copy was executed, and its reply is gone.
            Unavailable, BadRequest, other SessionErrors, ServerFault, Halted: it was not executed.
        """
        return await (await self.submit(command))

    async def apply_batch(self, commands: Sequence[Any]) -> BatchReply:
        """Apply commands in order, as one frame: all of them or none. Their results are in the reply.

        Raises as `apply`, but CommandRefused only if `check` refused a command. Commands that `apply` refused are
        listed in the reply.
        """
        return await (await self.submit_batch(commands))

    async def append(self, value: Any) -> int:
        """Append one record; return its index. It is then on a majority's disks.

        Bytes are stored as they are, above 1 MiB as a blob; any other value is stored as msgpack.

        Raises:
            CommandRefused: by the machine's `check`; nothing was written.
            OutcomeUnknown: it was sent, and no answer came.
            Unavailable, BadRequest, ServerFault: nothing was written.
        """
        if not isinstance(value, bytes):
            return await self.append_batch([value])
        reply = await self._call("POST", "/records", writes=True, body=value, content_type=OCTETS)
        return int(document_of(reply)["write_index"])

    async def append_batch(self, values: Sequence[Any]) -> int:
        """Append records as one frame; return the index of the first. Raises as `append`."""
        reply = await self._call("POST", "/records", writes=True, body=_pack(list(values)), content_type=MSGPACK)
        return int(document_of(reply)["write_index"])

    async def read(self, index: int) -> Any:
        """The value of the record at an index.

        Raises:
            NotFound: the log does not have the record yet, or no longer has it.
            Unavailable: no server answered within `timeout_s`.
        """
        reply = await self._call("GET", f"/records/{index}")
        return value_of(reply)

    async def read_range(
        self, from_index: int | None = None, to_index: int | None = None
    ) -> AsyncGenerator[Record, None]:
        """The visible records [from_index, to_index). None stands for the first and the last visible record.

        Raises:
            NotFound: `from_index` has expired.
            Unavailable: the servers that answer do not yet have all of the range.
        """
        async with aclosing(self.range_pages(from_index, to_index)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    async def tail(self, from_index: int | None = None) -> AsyncGenerator[Record, None]:
        """Every record from an index on, each once and in order, without end. None starts after the last visible one.

        It survives lost connections and servers as long as one server answers within `timeout_s`.

        Raises:
            Unavailable: no server answered within `timeout_s`.
            NotFound: the index has expired, or no server reached it within `timeout_s`.
        """
        async with aclosing(self.tail_pages(from_index)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    async def bounds(self) -> Bounds:
        """The indices of the log, [lowest_index, highest_index), linearizable: they include every acknowledged record.

        Raises:
            Unavailable: no majority confirmed it within `timeout_s`.
        """
        return Bounds(**document_of(await self._get("/index_bounds?consistency=linearizable")))

    def range_pages(self, from_index: int | None, to_index: int | None) -> Pages:
        """`read_range`, in pages as the servers send them: cheaper per record."""
        return range_pages(self._get, from_index, to_index)

    def tail_pages(self, from_index: int | None) -> Pages:
        """`tail`, in pages as the servers send them: cheaper per record."""
        return tail_pages(self._get, from_index, self._timeout_s)

    def history_pages(self, from_index: int, to_index: int) -> Pages:
        """The records [from_index, to_index), including system records, in pages. Raises as `tail`."""
        return history_pages(self._get, from_index, to_index, self._timeout_s)

    async def query(
        self,
        request: Any,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> Any:
        """The machine's answer to a request, by default linearizable. `server` names the node to ask, for `local`.

        `max_lag` (records) and `max_lag_s` bound how far that node may be behind its leader, as of the last report.

        Raises:
            CommandRefused: the machine does not answer this request.
            ServerFault: the machine's `query` failed.
            Unavailable: no server answered within `timeout_s`, or none that lags so little.
        """
        path, body = f"/query?{_reading(consistency, max_lag, max_lag_s)}", _pack({"request": request})
        return document_of(await self._call("POST", path, body=body, content_type=MSGPACK, server=server))["answer"]

    async def state(
        self,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> State:
        """The machine's state, by default linearizable. `server`, `max_lag` and `max_lag_s` as in `query`.

        Raises:
            BadRequest: the state is too large for one answer.
            Unavailable: no server answered within `timeout_s`, or none that lags so little.
        """
        reply = await self._call("GET", f"/state?{_reading(consistency, max_lag, max_lag_s)}", server=server)
        return State(**document_of(reply))

    async def status(self, server: str | None = None) -> dict[str, Any]:
        """The status of a node: of `server`, or else of the leader or the first server that answers."""
        return document_of(await self._call("GET", "/status", server=server))

    async def transfer(self, target: str | None = None) -> str:
        """Move leadership to a node, or to the most up-to-date follower; return the new leader's id. Loses no write.

        Raises:
            BadRequest: there is no such voter.
            Unavailable: leadership did not move within `timeout_s`.
            OutcomeUnknown: an attempt was not answered, so leadership may have moved.
        """
        reply = await self._change("/admin/transfer", _pack({"target": target}))
        return str(document_of(reply)["leader"])

    async def members(self) -> dict[str, Any]:
        """The members, as the leader knows them: {"leader", "epoch", "members_index", "commit_index", "members"}.

        Each row of "members" is {"node_id", "disk_id", "address", "role", "heard", "lag"}.
        """
        return document_of(await self._call("GET", "/admin/members"))

    async def promote(self, node_id: str) -> list[int]:
        """Make a node a voter, with the disk it has now; return the indices of the membership records this wrote.

        The list is empty if the node already was a voter. The call waits until the node has caught up and the leader
        serves. It is safe to repeat: it continues with the step that is missing.

        Raises:
            NotFound: there is no such node.
            Unavailable: the node is not a voter within `timeout_s`; nothing was changed.
            OutcomeUnknown: the node may or may not have become a voter within `timeout_s`; call this again.
        """
        return list(document_of(await self._change("/admin/members", _pack({"promote": node_id})))["changes"])

    async def take_snapshot(self, server: str) -> dict[str, Any]:
        """Have a node take a snapshot of everything it has applied: {"node_id", "index", "bytes", "sha256"}.

        Raises:
            Unavailable: the snapshot was not complete within `timeout_s`.
            OutcomeUnknown: an attempt was not answered, so the snapshot may be complete.
        """
        return document_of(await self._change("/admin/snapshot", server=server))

    async def expire(self, server: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Have a node delete the expired segments of its log: {"node_id", "segments", "to_index", "bytes"}.

        With `dry_run`, delete nothing and return what would be deleted.
        """
        return document_of(await self._change("/admin/expire", _pack({"dry_run": dry_run}), server=server))

    async def accept_code(self, server: str) -> dict[str, Any]:
        """Have a node accept the code of its machine and of the members': {"node_id", "code", "accepted_code"}.

        Clears the alarms that the code changed or that members run different code. Use it only if the code gives the
        same results for every command in the log.
        """
        return document_of(await self._change("/admin/accept-code", server=server))

    async def session_status(self, session: int) -> dict[str, Any]:
        """Any open session: {"session", "name", "sequence"}; `sequence` is the last one executed.

        Raises:
            NotFound: the session is not open.
        """
        return document_of(await self._call("GET", f"/sessions/{session}"))

    async def close_session(self, session: int) -> dict[str, Any]:
        """Close any session: {"session", "sequence"}. Its holder's next command fails with SessionExpired.

        Raises:
            NotFound: the session is not open.
        """
        return document_of(await self._call("DELETE", f"/sessions/{session}", writes=True))

    async def sessions(self, prefix: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """The open sessions whose names start with `prefix`, by id: {"session", "name", "sequence", "used_at"}.

        `used_at` is the log's timestamp of the session's last use, 0 if unknown. An empty prefix gives all sessions,
        including those without a name.
        """
        after: int | None = -1
        while after is not None:
            query = urlencode({"prefix": prefix, **({"after": after} if after >= 0 else {})})
            page = document_of(await self._call("GET", f"/sessions?{query}"))
            for row in page["sessions"]:
                yield row
            after = page["next"]

    async def close_sessions(self, sessions: Sequence[int]) -> list[int]:
        """Close these sessions, at most 1,000; return the ids of those that were open.

        Their holders' next commands fail with SessionExpired.
        """
        body = pack({"sessions": list(sessions)})
        reply = await self._call("POST", "/sessions/close", writes=True, body=body, content_type=MSGPACK)
        closed: list[int] = document_of(reply)["closed"]
        return closed

    async def ready(self, server: str) -> bool:
        """True once a node reports that it is ready.

        Raises:
            Unavailable: it was not ready within `timeout_s`.
        """
        return bool(document_of(await self._call("GET", "/readyz", server=server))["ready"])

    async def _get(self, path: str) -> Reply:
        return await self._call("GET", path)

    async def _change(self, path: str, body: bytes | None = None, *, server: str | None = None) -> Reply:
        """A change that an operator may safely repeat."""
        content_type = None if body is None else MSGPACK
        return await self._call(
            "POST", path, writes=True, repeatable=True, body=body, content_type=content_type, server=server
        )

    def _open_stream(self) -> CommandStream:
        if self._stream is None:
            refuse_fork(self._opened_in)
            raise RuntimeError(NOT_OPEN)
        return self._stream

    async def _call(
        self,
        method: str,
        path: str,
        *,
        writes: bool = False,
        repeatable: bool = False,
        body: bytes | None = None,
        content_type: str | None = None,
        server: str | None = None,
    ) -> Reply:
        if self._transport is None:
            refuse_fork(self._opened_in)
            raise RuntimeError(NOT_OPEN)
        headers = {"Accept": MSGPACK}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return await self._transport.call(
            method, path, writes=writes, repeatable=repeatable, body=body, headers=headers, server=server
        )


def connect(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
) -> Client:
    """A client for the cluster of these servers: HOST:PORT, comma-separated or as a sequence.

    Use it as `async with quire.connect("127.0.0.1:7001,127.0.0.1:7002") as cluster:`. It connects on the first call.
    One server is enough to find the leader; more keep the client working when that one is down.

    Args:
        servers: the nodes to try, in this order.
        session: a name for the session of the client's commands. The client continues after the last command executed
            under that name, and fences the name's previous holder, whose calls then fail with SessionFenced. A named
            session stays open when the client closes. Without a name, the client opens a session of its own and
            closes it at the end.
        timeout_s: the deadline of each call, in seconds.
        halt_on_failure: send nothing after a command that `check` refused or that got no answer in time. All commands
            submitted after it fail with Halted.

    Raises:
        ValueError: no server is named.
    """
    return Client(servers, session=session, timeout_s=timeout_s, halt_on_failure=halt_on_failure)


def _reading(consistency: Consistency, max_lag: int | None, max_lag_s: float | None) -> str:
    """The query of a read."""
    lags = {"max_lag": max_lag, "max_lag_s": None if max_lag_s is None else f"{max_lag_s:f}"}
    given = {name: value for name, value in lags.items() if value is not None}
    return urlencode({"consistency": consistency, **given})


def _pack(value: Any) -> bytes:
    try:
        return pack(value)
    except PayloadInvalid as error:
        raise BadRequest(
            {"type": "about:blank", "status": 400, "detail": f"the value cannot be sent: {error.reason}"}
        ) from None
