"""`quire load`: a file of commands, in order, each executed once, batch behind batch on one pipelined stream.

A block of lines is parsed and packed at once; only of a block with a bad line is each looked at alone, to name it. A
batch is one frame, applied whole or not at all. Nothing is sent behind a batch that was refused or not answered.
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import uvloop

from ..client import BadRequest, BatchReply, Client, ClientError, OutcomeUnknown, Refused, Unavailable, connect
from ..errors import Malformed
from ..values import decode_ndjson
from .asking import exit_of
from .exits import Exit, complain
from .progress import Progress, shown_progress

BATCH_COMMANDS = 2000  # Several fit into a session's window, so that there is always one on its way.
BATCH_BYTES = 256 << 10  # A batch of long lines is cut here; as msgpack it then fits into any message.


class Batch(NamedTuple):
    """Lines [from_line, to_line) of the file, counted from 1."""

    from_line: int
    to_line: int
    body: bytes


class BadLine(ClientError):
    """A line is no command that can be sent; neither it nor anything behind it was."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} of the file {reason}")


class Foreign(ClientError):
    """The session has executed more commands than the file has lines."""


class Loaded:
    """How far a load came: `skipped` lines were loaded before, `commands` now, more were `handed_in` than those."""

    def __init__(self) -> None:
        self.skipped = 0
        self.commands = 0
        self.handed_in = 0
        self.refused = 0
        self.answer: Any = None
        self.applied_index: int | None = None
        self.started = time.perf_counter()

    @property
    def next_line(self) -> int:
        """The first line that is not acknowledged."""
        return self.skipped + self.commands + 1

    def add(self, batch: Batch, reply: BatchReply) -> None:
        """Count one acknowledged batch."""
        self.commands += batch.to_line - batch.from_line
        self.refused += len(reply.refused)
        self.applied_index = reply.index + len(reply.results)
        self.answer = next((result for result in reversed(reply.results) if result is not None), self.answer)

    def summary(self) -> dict[str, Any]:
        """The numbers, for `--json` and for the last line."""
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


def batches(lines: IO[bytes], count: int, limit_bytes: int = BATCH_BYTES, line: int = 1) -> Iterator[Batch]:
    """What is left of a file, from its line `line` on, in batches.

    Of at most `count` lines and, unless one line alone is longer, `limit_bytes`.
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


def commands_of(batch: Batch) -> list[Any]:
    """The batch's commands. Raises BadLine."""
    try:
        return decode_ndjson(batch.body)
    except Malformed as error:
        for number, line in enumerate(batch.body.splitlines(keepends=True), batch.from_line):
            try:
                decode_ndjson(line)
            except Malformed as of_line:
                raise BadLine(number, of_line.reason.removeprefix("line 1 ")) from None
        raise BadLine(batch.from_line, f"or one behind it is wrong: {error.reason}") from None


async def load(
    client: Client,
    lines: IO[bytes],
    count: int,
    loaded: Loaded,
    acknowledged: IO[str] | None,
    progress: Progress | None,
    *,
    lines_may_block: bool = False,
) -> None:
    """Send the file. Raises ClientError at the first batch that is not acknowledged; `loaded` says how far it came."""
    answers: asyncio.Queue[tuple[Batch, asyncio.Future[BatchReply]] | None] = asyncio.Queue()  # The window bounds it.
    source = batches(lines, count, line=loaded.skipped + 1)

    async def hand_in() -> None:
        try:
            while True:
                batch = await take_aside(lambda: next(source, None)) if lines_may_block else next(source, None)
                if batch is None:
                    return
                answer = await client.submit_batch(commands_of(batch))
                loaded.handed_in += batch.to_line - batch.from_line
                answers.put_nowait((batch, answer))
        finally:
            answers.put_nowait(None)

    handing_in = asyncio.create_task(hand_in(), name="load")
    try:
        while (item := await answers.get()) is not None:
            batch, answer = item
            reply = await answer
            loaded.add(batch, reply)
            if acknowledged is not None:
                of_file = {"from_line": batch.from_line, "to_line": batch.to_line}
                acknowledged.write(json.dumps({**of_file, "index": reply.index, "epoch": reply.epoch}) + "\n")
                acknowledged.flush()
            if progress is not None:
                progress.advance(batch.to_line - batch.from_line, len(batch.body))
        await handing_in
    finally:
        handing_in.cancel()
        await asyncio.wait((handing_in,))
        _forget(answers)


def _forget(answers: "asyncio.Queue[tuple[Batch, asyncio.Future[BatchReply]] | None]") -> None:
    """Nobody asks for these answers any more; where they are errors, nobody is to be told."""
    while not answers.empty():
        item = answers.get_nowait()
        if item is not None and not item[1].cancel():
            item[1].exception()


def skip(lines: IO[bytes], count: int) -> None:
    """Pass over what a session has loaded before. Raises Foreign."""
    found = sum(1 for _ in islice(lines, count))
    if found < count:
        raise Foreign(f"the session has executed {count} commands and the file has {found} lines: it is another one's")


async def take_aside(take: Callable[[], Batch | None]) -> Batch | None:
    """What `take` gives, which may block for long, as a terminal or a pipe does.

    In a thread that nobody waits for: Ctrl-C must end the load while it blocks.
    """
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[Batch | None] = loop.create_future()

    def give(batch: Batch | None, error: Exception | None) -> None:
        if not taken.done():
            if error is None:
                taken.set_result(batch)
            else:
                taken.set_exception(error)

    def run() -> None:
        batch, error = None, None
        try:
            batch = take()
        except (OSError, ValueError) as failure:
            error = failure
        with suppress(RuntimeError):  # The loop is closed: the load has ended.
            loop.call_soon_threadsafe(give, batch, error)

    threading.Thread(target=run, name="stdin", daemon=True).start()
    return await taken


def load_file(
    servers: str,
    file: Path,
    count: int,
    record_to: Path | None,
    *,
    as_json: bool,
    timeout_s: float,
    session: str | None = None,
) -> int:
    """Load a file, show progress on a terminal, print a summary; return the exit code.

    Under a named session the load goes on behind what an earlier one has executed under that name.
    """
    loaded = Loaded()
    from_stdin = str(file) == "-"

    async def run(lines: IO[bytes], acknowledged: IO[str] | None) -> None:
        async with connect(servers, session=session, timeout_s=timeout_s, halt_on_failure=True) as client:
            if session is not None:
                loaded.skipped = (await client.session()).sequence
                skip(lines, loaded.skipped)
            with shown_progress(file.name, total_bytes, hidden=as_json) as progress:
                await load(client, lines, count, loaded, acknowledged, progress, lines_may_block=from_stdin)

    code = Exit.DONE
    try:
        total_bytes = None if from_stdin else file.stat().st_size
        with (
            nullcontext(open(0, "rb", closefd=False)) if from_stdin else file.open("rb") as lines,
            record_to.open("a") if record_to else nullcontext() as acknowledged,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(run(lines, acknowledged))
    except ClientError as error:
        code = _stopped(error, loaded)
    except KeyboardInterrupt:
        complain(f"interrupted; {_acknowledged(loaded)}, {_in_doubt(loaded)}")
        code = Exit.INTERRUPTED
    except OSError as error:
        complain(f"{error.filename or file} cannot be used: {(error.strerror or str(error)).lower()}; correct the path")
        return Exit.USAGE
    if loaded.refused and code is Exit.DONE:
        complain(
            f"{loaded.refused} commands were refused when they were applied; they stand in the log and changed nothing"
        )
        code = Exit.FAILED
    summary = loaded.summary()
    print(json.dumps(summary) if as_json else _in_words(summary))
    return code


def _stopped(error: ClientError, loaded: Loaded) -> Exit:
    """Say why the load stopped and, exactly, what of the file is in the log."""
    done = _acknowledged(loaded)
    match error:
        case OutcomeUnknown():
            complain(f"{error}; {done}, {_in_doubt(loaded)}")
            return Exit.OUTCOME_UNKNOWN
        case Unavailable():
            rest = f"nothing from line {loaded.next_line} on is; load the rest when `quire status` is well"
            complain(f"{error}; {done}, {rest}")
            return Exit.UNAVAILABLE
        case Refused():
            line = loaded.next_line + error.place
            complain(f"line {line} was refused, {error.code}: {error.text}; {done}, nothing else is")
        case BadLine():
            complain(f"{error}; {done}, nothing else is")
        case BadRequest():
            complain(f"{error}; {done}, nothing else is; a smaller --batch may help")
        case _:
            return exit_of(error)
    return Exit.FAILED


def _acknowledged(loaded: Loaded) -> str:
    return f"lines 1 to {loaded.next_line - 1} are acknowledged" if loaded.next_line > 1 else "no line is acknowledged"


def _in_doubt(loaded: Loaded) -> str:
    last = loaded.skipped + loaded.handed_in
    if last < loaded.next_line:
        return "nothing else is applied"
    return f"lines {loaded.next_line} to {last} may or may not be applied"


def _in_words(summary: dict[str, Any]) -> str:
    before = f" (after {summary['skipped']:,} that were loaded before)" if summary["skipped"] else ""
    return (
        f"{summary['commands']:,} commands{before} in {summary['seconds']:g} s ({summary['rate']:,}/s), "
        f"answer {summary['answer']}, applied_index {summary['applied_index']}"
    )
