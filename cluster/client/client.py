"""The asyncio client, as returned by `quire.connect`."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypedDict
from urllib.parse import urlencode

from quire.log import Value
from quire.log.packing import array_items

from ..access.client_credentials import ClientCredentials
from .admin import Admin
from .connection import Connection, servers_of
from .documents import BoundsDocument, document_of, value_of
from .errors import BadRequest
from .message import BatchReply, pack_or_refuse
from .records.consumer import Batch, batches
from .records.cursors import Start
from .records.pages import Record, RecordPages
from .stream import Session
from .transport import MSGPACK, REFUSED_GRACE_S

if TYPE_CHECKING:
    from quire.log import Bounds

OCTETS = "application/octet-stream"
DEFAULT_TIMEOUT_S = 30.0

Consistency = Literal["linearizable", "leader", "local"]
"""How fresh a read is.

- linearizable: it sees every command that was acknowledged before the read began
- leader: the state of the node that believes it leads; stale by at most an election timeout
- local: the state of the node that is asked, however stale
"""


@dataclass(frozen=True, slots=True)
class State:
    """The machine's state after all records below `applied_index`, and its `digest` in hex."""

    state: Value
    applied_index: int
    digest: str


class Client(Admin):
    """A connection to a cluster, for one event loop. Calls may run concurrently.

    Commands (`apply`, `submit` and their batches) go over one pipelined stream, in the order of the calls, numbered in
    a session. Each executes exactly once: after a lost connection or a change of leader, the client resends unanswered
    commands until they are answered. A command fails with OutcomeUnknown only if `timeout_s` passes first, if its
    session is gone by then, or if a server refuses the resent message, as a node with other code or limits may.

    Appended records are not numbered in a session. An append fails with OutcomeUnknown as soon as its connection breaks
    before the answer.

    Every call returns or raises within `timeout_s`. An operator's calls are those of `Admin`.

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
        token: str | Path | None = None,
        ca: str | Path | None = None,
        cluster: str | None = None,
        refused_grace_s: float = REFUSED_GRACE_S,
    ) -> None:
        super().__init__(
            Connection(
                servers_of(servers),
                session,
                timeout_s,
                ClientCredentials(token, ca, cluster),
                halt_on_failure=halt_on_failure,
                refused_grace_s=refused_grace_s,
            )
        )
        self.pages = RecordPages(self._connection)
        """Records in pages, as the servers send them: cheaper per record than `read_range` and `tail`."""

    async def __aenter__(self) -> Self:
        self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for outstanding answers, unless the block raised; then close the stream and an unnamed session.

        In a forked child it does nothing: they belong to the parent.
        """
        await self._connection.close(drain=kind is None)

    async def session(self) -> Session:
        """The session that numbers this client's commands. Opens it if no command has done so yet.

        Raises:
            Unavailable: no server could open it within `timeout_s`. No command was executed; but if an attempt was not
                answered, its name may have been taken over from another holder.
        """
        return await self._connection.stream.session()

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
        return await self._connection.stream.resume_at(sequence)

    async def submit(self, command: object) -> asyncio.Future[Value]:
        """Submit one command; return a future that resolves to its result, or fails with what `apply` raises.

        Waits only for space in the session's window, not for the answer. Commands submitted while others are in flight
        are sent together, as one message. Cancelling the future drops the answer; the command still executes.

        Raises:
            Unavailable: the window had no space within `timeout_s`.
            BadRequest: the command cannot be packed, or exceeds a limit.
            SessionError: the session is fenced or gone.
            Halted: an earlier command failed, under `halt_on_failure`.
        """
        packed, stream = pack_or_refuse(command), self._connection.stream
        answer = stream.pipeline.submit(packed)
        if answer is None:
            stream.start()
            return await stream.pipeline.submit_later(packed)
        if stream.pipeline.message_full:
            await asyncio.sleep(0)  # Lets the loop send it.
        return answer

    async def submit_batch(self, commands: Sequence[object]) -> asyncio.Future[BatchReply]:
        """Submit commands that become one frame; return a future for their reply. Otherwise like `submit`."""
        count = len(commands)
        if not count:
            raise BadRequest({"status": 400, "detail": "the batch is empty; send at least one command"})
        packed, stream = array_items(pack_or_refuse(list(commands)), count), self._connection.stream
        answer = stream.pipeline.submit_batch(packed, count)
        if answer is None:
            stream.start()
            return await stream.pipeline.submit_batch_later(packed, count)
        return answer

    async def apply(self, command: object) -> Value:
        """Apply one command; return its result. It is then on a majority's disks, and applied on the leader.

        Raises:
            CommandRefused: by the machine's `check` (nothing was written, `index` is None) or `apply` (`index` is that
                of the command in the log).
            OutcomeUnknown: it was sent, and no answer came within `timeout_s`, or it was resent and then refused.
            ReplyGone: an earlier copy was executed, and its reply is gone.
            Unavailable, BadRequest, other SessionErrors, ServerFault, Halted: it was not executed.
        """
        return await (await self.submit(command))

    async def apply_batch(self, commands: Sequence[object]) -> BatchReply:
        """Apply commands in order, as one frame: all of them or none. Their results are in the reply.

        Raises as `apply`, but CommandRefused only if `check` refused a command. Commands that `apply` refused are
        listed in the reply.
        """
        return await (await self.submit_batch(commands))

    async def append(self, value: object) -> int:
        """Append one record; return its index. It is then on a majority's disks.

        Bytes are stored as they are, above 1 MiB as a blob; any other value is stored as msgpack.

        Raises:
            CommandRefused: by the machine's `check`; nothing was written.
            OutcomeUnknown: it was sent, and no answer came.
            Unavailable, BadRequest, ServerFault: nothing was written.
        """
        if not isinstance(value, bytes):
            return await self.append_batch([value])
        reply = await self._connection.call("POST", "/records", writes=True, body=value, content_type=OCTETS)
        return int(document_of(reply, _Written)["write_index"])

    async def append_batch(self, values: Sequence[object]) -> int:
        """Append records as one frame; return the index of the first. Raises as `append`."""
        body = pack_or_refuse(list(values))
        reply = await self._connection.call("POST", "/records", writes=True, body=body, content_type=MSGPACK)
        return int(document_of(reply, _Written)["write_index"])

    async def read(self, index: int) -> Value:
        """The value of the record at an index.

        Raises:
            NotFound: the log does not have the record yet, or no longer has it.
            Unavailable: no server answered within `timeout_s`.
        """
        reply = await self._connection.call("GET", f"/records/{index}")
        return value_of(reply)

    async def read_range(
        self, from_index: int | None = None, to_index: int | None = None
    ) -> AsyncGenerator[Record, None]:
        """The visible records [from_index, to_index). None stands for the first and the last visible record.

        Raises:
            NotFound: `from_index` has expired.
            Unavailable: the servers that answer do not yet have all of the range.
        """
        async with aclosing(self.pages.range(from_index, to_index)) as pages:
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
        async with aclosing(self.pages.tail(from_index)) as pages:
            async for page in pages:
                for record in page:
                    yield record

    def consume(
        self,
        name: str,
        *,
        shard: tuple[int, int] | None = None,
        start: Start = "first",
        until: int | None = None,
        hold_bytes: int | None = None,
        skip_lost: bool = False,
    ) -> AsyncGenerator[Batch, None]:
        """The records that the consumer of this name has not committed yet, in batches; without end, or to `until`.

        Its position is a cursor in the log: each record is delivered until its batch, or a later one, is committed, and
        so at least once. Whoever calls this takes the cursor from its former holder, whose commits then fail.

        Use it as `async for batch in cluster.consume("mail"):`, and end the work on each batch with
        `await batch.commit()`.

        Args:
            name: the cursor's.
            shard: (i, n), to read only the records with index % n == i, as the worker i of n. Each worker has a cursor
                of its own, such as `mail/2-4`.
            start: where a cursor that is not there yet begins: `first`, `end`, or an index.
            until: end after the records below this index.
            hold_bytes: how much of the log the cursor may keep from expiring; None leaves it as it is, at first 0.
            skip_lost: continue after records that expired unread; `Batch.lost` of the next batch counts them, and if
                there is none below `until`, RecordsLost is raised at the end.

        Raises:
            RecordsLost: records expired before they were read, on all servers that answer.
            HistoryChanged: the cluster was recovered. Consume again: the cursor is where this history has it.
            BadRequest: the name or the start is not valid, or the cursor cannot be created.
            ReshardRefused: the cursor is not there, and the consumer has cursors of another number of shares.
            ValueError: there is no such share, or the name is that of a share.
            CursorTaken: another consumer took the cursor. Its loss shows at a commit; the consumer itself commits only
                if it got no record for long.
            Unavailable, OutcomeUnknown: no server that has the log so far answered within `timeout_s`.
        """
        return batches(
            partial(RecordPages, self._connection),
            self.cursors,
            name,
            shard=shard,
            start=start,
            until=until,
            hold_bytes=hold_bytes,
            skip_lost=skip_lost,
        )

    async def bounds(self) -> "Bounds":
        """The indices of the log, [lowest_index, highest_index), linearizable: they include every acknowledged record.

        Raises:
            Unavailable: no majority confirmed it within `timeout_s`.
        """
        from quire.log import Bounds  # noqa: PLC0415  # Only this call needs the log's modules.

        reply = await self._connection.get("/index_bounds?consistency=linearizable")
        return Bounds(**document_of(reply, BoundsDocument))

    async def query(
        self,
        request: object,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> Value:
        """The machine's answer to a request, by default linearizable. `server` names the node to ask, for `local`.

        `max_lag` (records) and `max_lag_s` bound how far that node may be behind its leader, as of the last report.

        Raises:
            CommandRefused: the machine does not answer this request.
            ServerFault: the machine's `query` failed.
            Unavailable: no server answered within `timeout_s`, or none that lags so little.
        """
        path, body = f"/query?{_reading(consistency, max_lag, max_lag_s)}", pack_or_refuse({"request": request})
        reply = await self._connection.call("POST", path, body=body, content_type=MSGPACK, server=server)
        return document_of(reply, _Answered)["answer"]

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
        reply = await self._connection.call("GET", f"/state?{_reading(consistency, max_lag, max_lag_s)}", server=server)
        return State(**document_of(reply, _StateDocument))


class _Written(TypedDict):
    write_index: int


class _Answered(TypedDict):
    answer: Value


class _StateDocument(TypedDict):
    state: Value
    applied_index: int
    digest: str


def connect(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
    token: str | Path | None = None,
    ca: str | Path | None = None,
    cluster: str | None = None,
    refused_grace_s: float = REFUSED_GRACE_S,
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
        token: the text of a token, or the path of a file with one on its first line (a `pathlib.Path`; text is never
            taken for a path).
        ca: the file with the certificate of the cluster's CA. With it, the client speaks TLS, and sends nothing to a
            server that does not prove the cluster's name.
        cluster: the cluster's name, if it is not the one in the CA's subject.
        refused_grace_s: how long a client that no server has served yet waits for nodes that are just being started, in
            seconds from the call; for commands, from the first of them. Then the call fails if every server refuses
            the connection or has an unknown host name; if nodes answer that their voters are no majority, it fails as
            soon as they have heard no leader for so long. The error names each server. Once the client was served, its
            calls wait until `timeout_s`: its cluster restarts, or elects another leader.

    The client follows the files: after a change, new requests use the new token, and new connections the new CA. A file
    that is missing or half written by then leaves the old content in use.

    Raises:
        ValueError: no server is named, or one is not HOST:PORT (as one with `https://` is not); the text is not a
            token, or a token is given without a CA.
        TokenRefused, TlsRefused (both QuireError): the file of the token, or of the CA, cannot be used.
    """
    return Client(
        servers,
        session=session,
        timeout_s=timeout_s,
        halt_on_failure=halt_on_failure,
        token=token,
        ca=ca,
        cluster=cluster,
        refused_grace_s=refused_grace_s,
    )


def _reading(consistency: Consistency, max_lag: int | None, max_lag_s: float | None) -> str:
    """The query of a read."""
    lags = {"max_lag": max_lag, "max_lag_s": None if max_lag_s is None else f"{max_lag_s:f}"}
    given = {name: value for name, value in lags.items() if value is not None}
    return urlencode({"consistency": consistency, **given})
