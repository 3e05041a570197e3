"""The blocking client, for programs without an event loop: the calls of `Client`, each of which blocks until done."""

from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from quire.log import Value

from .admin import BlockingAdmin
from .client import DEFAULT_TIMEOUT_S, Client, Consistency, State
from .loop_thread import LoopThread, thread_future
from .message import BatchReply
from .records.consumer import BlockingBatch
from .records.cursors import Start
from .records.pages import Pages, Record
from .stream import Session
from .transport import REFUSED_GRACE_S

if TYPE_CHECKING:
    from quire.log import Bounds


Given = TypeVar("Given")


class BlockingClient(BlockingAdmin):
    """`Client` for programs without an event loop. Each call blocks; it returns and raises what `Client`'s does.

    The client runs its event loop in a thread of its own. Any thread may call it; calls from several threads run
    concurrently.
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
        self._client = Client(
            servers,
            session=session,
            timeout_s=timeout_s,
            halt_on_failure=halt_on_failure,
            token=token,
            ca=ca,
            cluster=cluster,
            refused_grace_s=refused_grace_s,
        )
        self._thread = LoopThread()
        super().__init__(self._client, self._thread.run)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the block as `Client` does."""
        self._thread.stop(self._client.__aexit__(kind, error, traceback))

    def apply(self, command: object) -> Value:
        """Apply one command; return its result."""
        return self._run(self._client.apply(command))

    def apply_batch(self, commands: Sequence[object]) -> BatchReply:
        """Apply commands in order, as one frame: all of them or none. Their results are in the reply."""
        return self._run(self._client.apply_batch(commands))

    def submit(self, command: object) -> Future[Value]:
        """Submit one command; return a future for its result. Waits only for space in the window."""
        return self._run(thread_future(self._client.submit, command))

    def submit_batch(self, commands: Sequence[object]) -> Future[BatchReply]:
        """Submit commands as one frame; return a future for their reply. Waits only for space in the window."""
        return self._run(thread_future(self._client.submit_batch, commands))

    def session(self) -> Session:
        """The session that numbers this client's commands. Opens it if no command has done so yet."""
        return self._run(self._client.session())

    def resume_at(self, sequence: int) -> Session:
        """Give the next command this sequence; see `Client.resume_at`. Call it before the first command."""
        return self._run(self._client.resume_at(sequence))

    def append(self, value: object) -> int:
        """Append one record; return its index. It is then on a majority's disks."""
        return self._run(self._client.append(value))

    def append_batch(self, values: Sequence[object]) -> int:
        """Append records as one frame; return the index of the first."""
        return self._run(self._client.append_batch(values))

    def read(self, index: int) -> Value:
        """The value of the record at an index."""
        return self._run(self._client.read(index))

    def read_range(self, from_index: int | None = None, to_index: int | None = None) -> Generator[Record, None, None]:
        """The visible records [from_index, to_index). None stands for the first and the last visible record."""
        return self._records(self._client.pages.range(from_index, to_index))

    def tail(self, from_index: int | None = None) -> Generator[Record, None, None]:
        """Every record from an index on, without end; `next` blocks until there is one. `close` ends it."""
        return self._records(self._client.pages.tail(from_index))

    def consume(
        self,
        name: str,
        *,
        shard: tuple[int, int] | None = None,
        start: Start = "first",
        until: int | None = None,
        hold_bytes: int | None = None,
        skip_lost: bool = False,
    ) -> Generator[BlockingBatch, None, None]:
        """The records that the consumer of this name has not committed yet, in batches; see `Client.consume`."""
        found = self._client.consume(
            name, shard=shard, start=start, until=until, hold_bytes=hold_bytes, skip_lost=skip_lost
        )
        for batch in self._each(found):
            yield BlockingBatch(batch, self._run)

    def bounds(self) -> "Bounds":
        """The indices of the log, [lowest_index, highest_index), linearizable."""
        return self._run(self._client.bounds())

    def query(
        self,
        request: object,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> Value:
        """The machine's answer to a request, by default linearizable; see `Client.query`."""
        answer = self._client.query(request, consistency, server=server, max_lag=max_lag, max_lag_s=max_lag_s)
        return self._run(answer)

    def state(
        self,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> State:
        """The machine's state, by default linearizable; see `Client.state`."""
        return self._run(self._client.state(consistency, server=server, max_lag=max_lag, max_lag_s=max_lag_s))

    def _records(self, pages: Pages) -> Generator[Record, None, None]:
        for page in self._each(pages):
            yield from page

    def _each(self, found: AsyncGenerator[Given, None]) -> Generator[Given, None, None]:
        async def following() -> Given | None:
            return await anext(found, None)

        try:
            while (each := self._run(following())) is not None:
                yield each
        finally:
            if self._thread.runs:
                self._run(found.aclose())


def connect_sync(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
    token: str | Path | None = None,
    ca: str | Path | None = None,
    cluster: str | None = None,
    refused_grace_s: float = REFUSED_GRACE_S,
) -> BlockingClient:
    """A blocking client, used as `with quire.connect_sync("127.0.0.1:7001") as cluster:`. See `connect`."""
    return BlockingClient(
        servers,
        session=session,
        timeout_s=timeout_s,
        halt_on_failure=halt_on_failure,
        token=token,
        ca=ca,
        cluster=cluster,
        refused_grace_s=refused_grace_s,
    )
