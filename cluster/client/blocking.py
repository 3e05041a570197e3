"""The blocking client, for programs without an event loop: the calls of `Client`, each of which blocks until done."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from selectors import DefaultSelector
from types import TracebackType
from typing import Any, Self, TypeVar

from quire.log import Bounds

from .client import DEFAULT_TIMEOUT_S, Client, Consistency, State
from .forks import closed, leave_to_parent, opened, refuse_fork
from .message import BatchReply
from .records import Pages, Record
from .stream import Session

Given = TypeVar("Given")
Result = TypeVar("Result")


class BlockingClient:
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
    ) -> None:
        self._client = Client(servers, session=session, timeout_s=timeout_s, halt_on_failure=halt_on_failure)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._selector: DefaultSelector | None = None
        self._opened_in: int | None = None

    def __enter__(self) -> Self:
        self._opened_in, self._selector = os.getpid(), DefaultSelector()
        self._loop = loop = asyncio.SelectorEventLoop(self._selector)  # Not the policy's: `forked` has its descriptors.
        opened(self)
        self._thread = threading.Thread(target=loop.run_forever, name="quire-client", daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the block as `Client` does."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._run(self._client.__aexit__(kind, error, traceback))
            self._run(_cancel_calls())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            closed(self)

    def forked(self) -> None:
        """In a forked child: close the copied descriptors of the loop. Its thread exists only in the parent."""
        loop, selector = self._loop, self._selector
        self._loop = self._thread = self._selector = None
        if loop is None or selector is None:
            return
        # asyncio does not show the ends of the pipe that wakes a loop. Without them the child only keeps two more open.
        ends = (getattr(loop, name, None) for name in ("_ssock", "_csock"))
        leave_to_parent((selector, *(end for end in ends if end is not None)))
        loop.set_exception_handler(lambda _loop, _context: None)  # Nothing is wrong with what is never finished here.

    def apply(self, command: Any) -> Any:
        """Apply one command; return its result."""
        return self._run(self._client.apply(command))

    def apply_batch(self, commands: Sequence[Any]) -> BatchReply:
        """Apply commands in order, as one frame: all of them or none. Their results are in the reply."""
        return self._run(self._client.apply_batch(commands))

    def submit(self, command: Any) -> Future[Any]:
        """Submit one command; return a future for its result. Waits only for space in the window."""
        return self._run(_thread_future(self._client.submit, command))

    def submit_batch(self, commands: Sequence[Any]) -> Future[BatchReply]:
        """Submit commands as one frame; return a future for their reply. Waits only for space in the window."""
        return self._run(_thread_future(self._client.submit_batch, commands))

    def session(self) -> Session:
        """The session that numbers this client's commands. Opens it if no command has done so yet."""
        return self._run(self._client.session())

    def resume_at(self, sequence: int) -> Session:
        """Give the next command this sequence; see `Client.resume_at`. Call it before the first command."""
        return self._run(self._client.resume_at(sequence))

    def append(self, value: Any) -> int:
        """Append one record; return its index. It is then on a majority's disks."""
        return self._run(self._client.append(value))

    def append_batch(self, values: Sequence[Any]) -> int:
        """Append records as one frame; return the index of the first."""
        return self._run(self._client.append_batch(values))

    def read(self, index: int) -> Any:
        """The value of the record at an index."""
        return self._run(self._client.read(index))

    def read_range(self, from_index: int | None = None, to_index: int | None = None) -> Generator[Record, None, None]:
        """The visible records [from_index, to_index). None stands for the first and the last visible record."""
        return self._records(self._client.range_pages(from_index, to_index))

    def tail(self, from_index: int | None = None) -> Generator[Record, None, None]:
        """Every record from an index on, without end; `next` blocks until there is one. `close` ends it."""
        return self._records(self._client.tail_pages(from_index))

    def bounds(self) -> Bounds:
        """The indices of the log, [lowest_index, highest_index), linearizable."""
        return self._run(self._client.bounds())

    def query(
        self,
        request: Any,
        consistency: Consistency = "linearizable",
        *,
        server: str | None = None,
        max_lag: int | None = None,
        max_lag_s: float | None = None,
    ) -> Any:
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

    def status(self, server: str | None = None) -> dict[str, Any]:
        """The status of a node: of `server`, or else of the leader or the first server that answers."""
        return self._run(self._client.status(server))

    def transfer(self, target: str | None = None) -> str:
        """Move leadership to a node, or to the most up-to-date follower; return the new leader's id."""
        return self._run(self._client.transfer(target))

    def members(self) -> dict[str, Any]:
        """The members, as the leader knows them; see `Client.members`."""
        return self._run(self._client.members())

    def promote(self, node_id: str) -> list[int]:
        """Make a node a voter, with the disk it has now; return the indices of the membership records this wrote."""
        return self._run(self._client.promote(node_id))

    def take_snapshot(self, server: str) -> dict[str, Any]:
        """Have a node take a snapshot of everything it has applied: {"node_id", "index", "bytes", "sha256"}."""
        return self._run(self._client.take_snapshot(server))

    def accept_code(self, server: str) -> dict[str, Any]:
        """Have a node accept the code of its machine and of the members': {"node_id", "code", "accepted_code"}."""
        return self._run(self._client.accept_code(server))

    def expire(self, server: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Have a node delete the expired segments of its log: {"node_id", "segments", "to_index", "bytes"}."""
        return self._run(self._client.expire(server, dry_run=dry_run))

    def session_status(self, session: int) -> dict[str, Any]:
        """Any open session: {"session", "name", "sequence"}; `sequence` is the last one executed."""
        return self._run(self._client.session_status(session))

    def close_session(self, session: int) -> dict[str, Any]:
        """Close any session: {"session", "sequence"}. Its holder's next command fails with SessionExpired."""
        return self._run(self._client.close_session(session))

    def sessions(self, prefix: str = "") -> list[dict[str, Any]]:
        """The open sessions whose names start with `prefix`, by id; see `Client.sessions`."""

        async def listed() -> list[dict[str, Any]]:
            return [row async for row in self._client.sessions(prefix)]

        return self._run(listed())

    def close_sessions(self, sessions: Sequence[int]) -> list[int]:
        """Close these sessions, at most 1,000; return the ids of those that were open."""
        return self._run(self._client.close_sessions(sessions))

    def ready(self, server: str) -> bool:
        """True once a node reports that it is ready."""
        return self._run(self._client.ready(server))

    def _records(self, pages: Pages) -> Generator[Record, None, None]:
        async def next_page() -> list[Record] | None:
            return await anext(pages, None)

        try:
            while (page := self._run(next_page())) is not None:
                yield from page
        finally:
            if self._loop is not None:
                self._run(pages.aclose())

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a call on the client's loop and return its result. Ctrl-C in this thread cancels the call."""
        loop = self._loop
        if loop is None:
            call.close()
            refuse_fork(self._opened_in)
            raise RuntimeError("the client is not open; use it as in: with quire.connect_sync(...) as cluster")
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("a blocking call on the client's own thread would never return")
        running = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


class _Mirror(Future[Result]):
    """A future that raises ForkedClient in a child of the process in which it is resolved."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_in: int | None = os.getpid()
        """None once resolved. Reads without the lock, because another thread may have held it at the fork."""

    def result(self, timeout: float | None = None) -> Result:
        refuse_fork(self.opened_in)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        refuse_fork(self.opened_in)
        return super().exception(timeout)


async def _cancel_calls() -> None:
    """Cancel the calls of other threads, which would otherwise never return."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _thread_future(
    submit: Callable[[Given], Coroutine[Any, Any, asyncio.Future[Result]]], given: Given
) -> Future[Result]:
    """A future for other threads, with the result of the loop's future. Cancelling it does not cancel the command."""
    answer, mirror = await submit(given), _Mirror[Result]()

    def copy_result(answer: asyncio.Future[Result]) -> None:
        if not mirror.set_running_or_notify_cancel():
            _ = answer.cancelled() or answer.exception()  # Retrieved, so that asyncio does not report it as lost.
        elif answer.cancelled():
            mirror.set_exception(CancelledError())
        elif (error := answer.exception()) is not None:
            mirror.set_exception(error)
        else:
            mirror.set_result(answer.result())
        mirror.opened_in = None

    answer.add_done_callback(copy_result)
    return mirror


def connect_sync(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
) -> BlockingClient:
    """A blocking client, used as `with quire.connect_sync("127.0.0.1:7001") as cluster:`. See `connect`."""
    return BlockingClient(servers, session=session, timeout_s=timeout_s, halt_on_failure=halt_on_failure)
