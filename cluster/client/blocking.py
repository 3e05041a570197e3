"""The client for programs without an event loop: the same calls, each of which returns when it is done.

One thread runs an event loop for the client. Any thread may call; calls of several threads run at the same time.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from .client import DEFAULT_TIMEOUT_S, Client, State
from .reading import Pages, Record
from .replies import BatchReply
from .session import Session

Result = TypeVar("Result")


class BlockingClient:
    """`Client`, blocking. What each call gives and raises is described there."""

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

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="quire-client", daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._run(self._client.__aexit__(kind, error, traceback))
            self._run(_end_what_runs())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def apply(self, command: Any) -> Any:
        """Apply one command; return its result."""
        return self._run(self._client.apply(command))

    def apply_batch(self, commands: Sequence[Any]) -> BatchReply:
        """Apply commands in their order, as one frame."""
        return self._run(self._client.apply_batch(commands))

    def submit(self, command: Any) -> Future[Any]:
        """Hand in one command; a future for its result. Waits for room in the window only."""
        return self._run(_handed_over(self._client.submit(command)))

    def submit_batch(self, commands: Sequence[Any]) -> Future[BatchReply]:
        """Hand in commands that become one frame; a future for their reply. Waits for room in the window only."""
        return self._run(_handed_over(self._client.submit_batch(commands)))

    def session(self) -> Session:
        """The session of this client's commands, opened now if it was not."""
        return self._run(self._client.session())

    def resume_at(self, sequence: int) -> Session:
        """Number the next command so, under a named session, whose record answers what was executed. See `Client`."""
        return self._run(self._client.resume_at(sequence))

    def append(self, value: Any) -> int:
        """Append one record; return its index."""
        return self._run(self._client.append(value))

    def append_batch(self, values: Sequence[Any]) -> int:
        """Append records as one frame; return the index of the first."""
        return self._run(self._client.append_batch(values))

    def read(self, index: int) -> Any:
        """The value of the record at an index."""
        return self._run(self._client.read(index))

    def read_range(self, from_index: int | None = None, to_index: int | None = None) -> Iterator[Record]:
        """The records [from_index, to_index) that are visible."""
        return self._records(self._client.range_pages(from_index, to_index))

    def tail(self, from_index: int | None = None) -> Iterator[Record]:
        """Every record from an index on, for ever; `next` blocks until there is one."""
        return self._records(self._client.tail_pages(from_index))

    def query(self, request: Any, consistency: str = "linearizable", *, server: str | None = None) -> Any:
        """The machine's answer to a request."""
        return self._run(self._client.query(request, consistency, server=server))

    def state(self, consistency: str = "linearizable", *, server: str | None = None) -> State:
        """The machine's state."""
        return self._run(self._client.state(consistency, server=server))

    def status(self, server: str | None = None) -> dict[str, Any]:
        """What a server knows of itself."""
        return self._run(self._client.status(server))

    def transfer(self, target: str | None = None) -> str:
        """Move leadership; return who leads then."""
        return self._run(self._client.transfer(target))

    def members(self) -> dict[str, Any]:
        """Who the members are, as the leader has them."""
        return self._run(self._client.members())

    def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with the disk that it has; return where the records stand that say so."""
        return self._run(self._client.promote(node_id))

    def take_snapshot(self, server: str) -> dict[str, Any]:
        """Let a server take a snapshot: {"node_id", "index", "bytes", "sha256"}."""
        return self._run(self._client.take_snapshot(server))

    def expire(self, server: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Let a server remove what may go of its log: {"node_id", "segments", "to_index", "bytes"}."""
        return self._run(self._client.expire(server, dry_run=dry_run))

    def session_status(self, session: int) -> dict[str, Any]:
        """{"session", "name", "sequence"} of any open session."""
        return self._run(self._client.session_status(session))

    def close_session(self, session: int) -> dict[str, Any]:
        """Close any session; {"session", "sequence"}, where it stood."""
        return self._run(self._client.close_session(session))

    def ready(self, server: str) -> bool:
        """Whether a server says that it is ready."""
        return self._run(self._client.ready(server))

    def _records(self, pages: Pages) -> Iterator[Record]:
        async def next_page() -> list[Record] | None:
            return await anext(pages, None)

        try:
            while (page := self._run(next_page())) is not None:
                yield from page
        finally:
            if self._loop is not None:
                self._run(pages.aclose())

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """The result of a call that runs on the loop; Ctrl-C here ends it there."""
        loop = self._loop
        if loop is None:
            call.close()
            raise RuntimeError("the client is not open; use it as in: with quire.connect_sync(...) as cluster")
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("a blocking call on the client's own loop would never return")
        running = asyncio.run_coroutine_threadsafe(call, loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


async def _end_what_runs() -> None:
    """Cancel what other threads still wait for, so that they do not wait for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _handed_over(submitting: Coroutine[Any, Any, asyncio.Future[Result]]) -> Future[Result]:
    """A future for other threads that ends as the loop's own does; cancelling it cancels nothing on the loop."""
    answer, handed = await submitting, Future[Result]()

    def pass_on(answer: asyncio.Future[Result]) -> None:
        if not handed.set_running_or_notify_cancel():
            _ = answer.cancelled() or answer.exception()  # Looked at, so that nobody misses it.
        elif answer.cancelled():
            handed.set_exception(CancelledError())
        elif (error := answer.exception()) is not None:
            handed.set_exception(error)
        else:
            handed.set_result(answer.result())

    answer.add_done_callback(pass_on)
    return handed


def connect_sync(
    servers: str | Sequence[str],
    *,
    session: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    halt_on_failure: bool = False,
) -> BlockingClient:
    """A blocking client; see `connect`. Use it as `with quire.connect_sync("127.0.0.1:7001") as cluster:`."""
    return BlockingClient(servers, session=session, timeout_s=timeout_s, halt_on_failure=halt_on_failure)
