"""`quire load`: applies a file of commands in order, each exactly once, in batches over one pipelined stream.

The lines of a batch are parsed together; if that fails, each line is parsed alone to find the invalid one. A batch is
one frame, applied as a whole or not at all. Nothing is sent after a batch that was refused or got no answer.

If the first line is the header of an export (export.py), the other lines are its rows; only their values are applied.
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, NamedTuple, TypedDict, TypeVar

import uvloop

from quire.log import Value

from ...client import (
    BadRequest,
    BatchReply,
    Client,
    ClientError,
    CommandRefused,
    Forbidden,
    OutcomeUnknown,
    ResultsCut,
    ServerFault,
    SessionError,
    Unauthorized,
    Unavailable,
)
from ...errors import Malformed
from ...values import decode_ndjson
from ..connection import ClusterOptions, exit_of
from ..output import Exit, complain, interruptible, printable, say, to_json
from ..progress import Progress, shown_progress
from .export import ExportInvalid, commands_of_rows, is_export, refuse_broken, rows_of

Result = TypeVar("Result")

BATCH_COMMANDS = 2000  # Several fit into a session's window, so that one is always in flight.
BATCH_BYTES = 256 << 10  # The limit for long lines. As msgpack, such a batch fits into any message.


class Batch(NamedTuple):
    """Lines [from_line, to_line) of the file, counted from 1."""

    from_line: int
    to_line: int
    body: bytes


class BadLine(ClientError):
    """A line is not a valid command. Neither it nor anything after it was sent."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} of the file {reason}")


class WrongFile(ClientError):
    """The session has executed more commands than the file has lines."""


class Source(NamedTuple):
    """Where a file's commands start: the number of that line, and the function that decodes it (raising Malformed)."""

    lines: Iterator[bytes]
    first_line: int
    decode: Callable[[bytes], list[object]]


class Summary(TypedDict):
    """The figures of a load."""

    commands: int
    skipped: int
    refused: int
    seconds: float
    rate: int
    answer: Value
    applied_index: int | None


class Loaded:
    """The progress of a load.

    An earlier load covered `skipped` lines, this one `submitted` lines, of which `commands` are acknowledged. The
    file's first command is on line `first_line`.
    """

    def __init__(self) -> None:
        self.first_line = 1
        self.skipped = 0
        self.commands = 0
        self.submitted = 0
        self.refused = 0
        self.first_refused = ""
        """The line of the first command that `apply` refused, its code and its text."""
        self.answer: Value = None
        self.applied_index: int | None = None
        """The index after the last acknowledged command; None if unknown, because its answer was a repeated one."""
        self.started = time.perf_counter()

    @property
    def next_line(self) -> int:
        """The first line that is not yet acknowledged."""
        return self.first_line + self.skipped + self.commands

    def add(self, batch: Batch, reply: BatchReply) -> None:
        """Count one acknowledged batch."""
        self.commands += batch.to_line - batch.from_line
        self.refused += len(reply.refused)
        if reply.refused and not self.first_refused:
            position, code, text = reply.refused[0]
            self.first_refused = f"line {batch.from_line + int(position)}, {code}: {text}"
        self.applied_index = None if reply.index is None else reply.index + len(reply.results)
        self.answer = next((result for result in reversed(reply.results) if result is not None), self.answer)

    def summary(self) -> Summary:
        """The figures of the summary."""
        seconds = time.perf_counter() - self.started
        return {
            "commands": self.commands,
            "skipped": self.skipped,
            "refused": self.refused,
            "seconds": round(seconds, 3),
            "rate": round(self.commands / seconds) if seconds else 0,
            "answer": self.answer,
            "applied_index": self.applied_index,
        }


def source_of(file: IO[bytes]) -> Source:
    """The commands of a file. Raises ExportInvalid if it is an export that is incomplete."""
    first = file.readline()
    if not is_export(first):
        return Source(chain([first] if first else [], file), 1, decode_ndjson)
    if file.seekable():
        refuse_broken(file)
    return Source(rows_of(file), 2, commands_of_rows)


def batches(lines: Iterator[bytes], count: int, limit_bytes: int = BATCH_BYTES, line: int = 1) -> Iterator[Batch]:
    """The rest of a file in batches of at most `count` lines; `line` is the number of the first one.

    A batch has at most `limit_bytes`, unless a single line is longer.
    """
    waiting: deque[bytes] = deque()
    while True:
        waiting.extend(islice(lines, count - len(waiting)))
        if not waiting:
            return
        part = list(waiting)
        while len(part) > 1 and sum(map(len, part)) > limit_bytes:
            part = part[: len(part) // 2]
        for _ in part:
            waiting.popleft()
        yield Batch(line, line + len(part), b"".join(part))
        line += len(part)


def commands_of(batch: Batch, decode: Callable[[bytes], list[object]]) -> list[object]:
    """The batch's commands. Raises BadLine."""
    try:
        return decode(batch.body)
    except Malformed as error:
        for number, line in enumerate(batch.body.splitlines(keepends=True), batch.from_line):
            try:
                decode(line)
            except Malformed as of_line:
                raise BadLine(number, of_line.reason.removeprefix("line 1 ")) from None
        raise BadLine(batch.from_line, f"or a later one is invalid: {error.reason}") from None


async def load(
    client: Client,
    commands: Source,
    count: int,
    loaded: Loaded,
    acknowledged: IO[str] | None,
    progress: Progress | None,
    *,
    lines_may_block: bool = False,
) -> None:
    """Send the file and record the progress in `loaded`. Raises ClientError at the first batch that fails."""
    answers: asyncio.Queue[tuple[Batch, asyncio.Future[BatchReply]] | None] = asyncio.Queue()  # The window bounds it.
    source = batches(commands.lines, count, line=loaded.next_line)

    async def submit_all() -> None:
        try:
            while True:
                batch = await call_in_thread(lambda: next(source, None)) if lines_may_block else next(source, None)
                if batch is None:
                    return
                answer = await client.submit_batch(commands_of(batch, commands.decode))
                loaded.submitted += batch.to_line - batch.from_line
                answers.put_nowait((batch, answer))
        finally:
            answers.put_nowait(None)

    submitting = asyncio.create_task(submit_all(), name="load")
    try:
        while (item := await answers.get()) is not None:
            batch, answer = item
            reply = await answer
            loaded.add(batch, reply)
            if acknowledged is not None:
                of_file = {"from_line": batch.from_line, "to_line": batch.to_line}
                of_log = {"repeated": True} if reply.repeated else {"index": reply.index}
                acknowledged.write(json.dumps({**of_file, **of_log, "epoch": reply.epoch}) + "\n")
                acknowledged.flush()
            if progress is not None:
                progress.advance(batch.to_line - batch.from_line, len(batch.body))
        await submitting
    finally:
        submitting.cancel()
        await asyncio.wait((submitting,))
        _discard(answers)


def _discard(answers: "asyncio.Queue[tuple[Batch, asyncio.Future[BatchReply]] | None]") -> None:
    """Drop the remaining answers, and retrieve their errors so that asyncio does not report them."""
    while not answers.empty():
        item = answers.get_nowait()
        if item is not None and not item[1].cancel():
            item[1].exception()


def skip(lines: Iterator[bytes], count: int) -> None:
    """Skip the lines that the session has already executed. Raises WrongFile."""
    found = sum(1 for _ in islice(lines, count))
    if found < count:
        raise WrongFile(
            f"the session has executed {count} commands, and the file has {found} lines: it belongs to another file"
        )


async def call_in_thread(take: Callable[[], Result]) -> Result:
    """The result of `take`, which may block on a terminal or a pipe.

    It runs in a daemon thread, so that Ctrl-C ends the load even while it blocks.
    """
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[Result] = loop.create_future()

    def resolve(give: Callable[[], None]) -> None:
        if not taken.done():
            give()

    def run() -> None:
        try:
            give = partial(taken.set_result, take())
        except (OSError, ValueError, ClientError) as failure:
            give = partial(taken.set_exception, failure)
        with suppress(RuntimeError):  # The loop is closed, since the load has ended.
            loop.call_soon_threadsafe(resolve, give)

    threading.Thread(target=run, name="stdin", daemon=True).start()
    return await taken


def load_file(
    cluster: ClusterOptions,
    file: Path,
    count: int,
    record_to: Path | None,
    *,
    as_json: bool,
    timeout_s: float,
    session: str | None = None,
    close: bool = False,
) -> Exit:
    """Load a file, show progress on a terminal, print a summary; return the exit code.

    Under a named session, the load continues after the lines already executed under that name. With `close` it closes
    the session once all lines are acknowledged.
    """
    loaded = Loaded()
    from_stdin = str(file) == "-"
    unopened = cluster.connect(timeout_s, session=session, halt_on_failure=True)

    async def run(lines: IO[bytes], acknowledged: IO[str] | None) -> None:
        source = await call_in_thread(lambda: source_of(lines)) if from_stdin else source_of(lines)
        loaded.first_line = source.first_line
        async with unopened as client:
            if session is not None:
                loaded.skipped = (await client.session()).sequence
                skip(source.lines, loaded.skipped)
            with shown_progress(file.name, total_bytes, hidden=as_json) as progress:
                await load(client, source, count, loaded, acknowledged, progress, lines_may_block=from_stdin)
            if session is not None and close:
                await client.close_session((await client.session()).id)

    code = Exit.DONE
    try:
        total_bytes = None if from_stdin else file.stat().st_size
        with (
            interruptible(),
            nullcontext(open(0, "rb", closefd=False)) if from_stdin else file.open("rb") as lines,
            record_to.open("a") if record_to else nullcontext() as acknowledged,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(run(lines, acknowledged))
    except ClientError as error:
        code = _report_failure(error, loaded)
    except KeyboardInterrupt:
        complain(f"interrupted; {_acknowledged(loaded)}, {_in_doubt(loaded)}")
        code = Exit.INTERRUPTED
    except OSError as error:
        complain(f"{error.filename or file} cannot be used: {(error.strerror or str(error)).lower()}; correct the path")
        return Exit.USAGE
    if loaded.refused and code is Exit.DONE:
        applied = loaded.commands - loaded.refused
        complain(
            f"{loaded.refused} of {loaded.commands} commands were refused by the machine: they are in the log and "
            f"changed nothing; the other {applied} were applied; the first refused is {loaded.first_refused}"
        )
        code = Exit.FAILED
    summary = loaded.summary()
    say(to_json(summary) if as_json else _summary_line(summary))
    return code


def _report_failure(error: ClientError, loaded: Loaded) -> Exit:
    """Print why the load stopped and exactly which lines are in the log; return the exit code."""
    done = _acknowledged(loaded)
    match error:
        case OutcomeUnknown():
            complain(f"{error}; {done}, {_in_doubt(loaded)}")
            return Exit.OUTCOME_UNKNOWN
        case Unavailable():
            rest = f"no line from {loaded.next_line} on was applied; load the rest once `quire status` shows a leader"
            complain(f"{error}; {done}, {rest}")
            return Exit.UNAVAILABLE
        case CommandRefused():
            line = loaded.next_line + error.position
            complain(f"line {line} was refused, {error.code}: {error.text}; {done}, no other line was applied")
        case BadLine() | ExportInvalid() | ServerFault() | Unauthorized() | Forbidden():
            complain(f"{error}; {done}, no other line was applied")
        case ResultsCut() | SessionError():
            complain(f"{error}; {done}, {_in_doubt(loaded)}")
        case BadRequest():
            complain(f"{error}; {done}, no other line was applied; a smaller --batch may help")
        case _:
            return exit_of(error)
    return Exit.FAILED


def _acknowledged(loaded: Loaded) -> str:
    first, following = loaded.first_line, loaded.next_line
    return f"lines {first} to {following - 1} are acknowledged" if following > first else "no line is acknowledged"


def _in_doubt(loaded: Loaded) -> str:
    last = loaded.first_line + loaded.skipped + loaded.submitted - 1
    if last < loaded.next_line:
        return "no other line was applied"
    return f"lines {loaded.next_line} to {last} may or may not be applied"


def _summary_line(summary: Summary) -> str:
    before = f" (after {summary['skipped']:,} loaded earlier)" if summary["skipped"] else ""
    return (
        f"{summary['commands']:,} commands{before} in {summary['seconds']:g} s ({summary['rate']:,}/s), "
        f"answer {printable(summary['answer'])}, applied_index {summary['applied_index'] or 'unknown'}"
    )
