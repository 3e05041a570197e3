"""`quire load`: a file of commands, in order, one request after the other.

The lines go out as they stand in the file, so that nothing is parsed here: the server reads each line strictly and
names a bad one. A batch is one frame, applied whole or not at all; the next leaves when the answer is there, which
alone keeps the order. Meanwhile the following batch is read.
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
from .exits import Exit, complain, exit_of
from .progress import Progress, shown_progress

BATCH_BYTES = 1 << 20  # A server's usual max_request_bytes; a batch of long lines is cut here.


class Batch(NamedTuple):
    """Lines [from_line, to_line) of the file, counted from 1."""

    from_line: int
    to_line: int
    body: bytes


class Loaded:
    """What was acknowledged so far."""

    def __init__(self) -> None:
        self.commands = 0
        self.refused = 0
        self.answer: Any = None
        self.applied_index: int | None = None
        self.started = time.perf_counter()

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
            "refused": self.refused,
            "seconds": round(seconds, 3),
            "rate": round(self.commands / seconds) if seconds else 0,
            "answer": self.answer,
            "applied_index": self.applied_index,
        }


def batches(lines: IO[bytes], count: int, limit_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
    """The file in batches of at most `count` lines and, unless one line alone is longer, `limit_bytes`."""
    line = 1
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
    source = batches(lines, count)

    async def take_next() -> Batch | None:
        return await take_aside(lambda: next(source, None)) if lines_may_block else next(source, None)

    batch = await take_next()
    while batch is not None:
        sending = asyncio.create_task(client.apply_lines(batch.body))
        following = asyncio.create_task(take_next())  # Read while the request is on its way, which goes first.
        try:
            reply = await sending
        except BaseException:
            following.cancel()
            raise
        loaded.add(batch, reply)
        if acknowledged is not None:
            row = {"from_line": batch.from_line, "to_line": batch.to_line, "index": reply.index, "epoch": reply.epoch}
            acknowledged.write(json.dumps(row) + "\n")
            acknowledged.flush()
        if progress is not None:
            progress.advance(batch.to_line - batch.from_line, len(batch.body))
        batch = await following


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


def load_file(servers: str, file: Path, count: int, record_to: Path | None, *, as_json: bool, timeout_s: float) -> int:
    """Load a file, show progress on a terminal, print a summary; return the exit code."""
    loaded = Loaded()
    from_stdin = str(file) == "-"

    async def run(lines: IO[bytes], acknowledged: IO[str] | None) -> None:
        with shown_progress(file.name, total_bytes, hidden=as_json) as progress:
            async with connect(servers, timeout_s=timeout_s) as client:
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
            rest = f"nothing from line {loaded.commands + 1} on is; load the rest when `quire status` is well"
            complain(f"{error}; {done}, {rest}")
            return Exit.UNAVAILABLE
        case Refused():
            line = loaded.commands + error.place + 1
            complain(f"line {line} was refused, {error.code}: {error.text}; {done}, nothing else is")
        case BadRequest() if isinstance(error.problem.get("line"), int):
            line = loaded.commands + int(error.problem["line"])
            complain(f"line {line} of the file is wrong ({error}); {done}, nothing else is")
        case BadRequest():
            complain(f"{error}; {done}, nothing else is; a smaller --batch may help")
        case _:
            return exit_of(error)
    return Exit.FAILED


def _acknowledged(loaded: Loaded) -> str:
    return f"lines 1 to {loaded.commands} are acknowledged" if loaded.commands else "no line is acknowledged"


def _in_doubt(loaded: Loaded) -> str:
    return f"the batch that begins at line {loaded.commands + 1} may or may not be applied"


def _in_words(summary: dict[str, Any]) -> str:
    return (
        f"{summary['commands']:,} commands in {summary['seconds']:g} s ({summary['rate']:,}/s), "
        f"answer {summary['answer']}, applied_index {summary['applied_index']}"
    )
