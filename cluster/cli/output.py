"""The output of commands: exit codes, sentences on stderr, values as text on stdout.

0    done
1    refused, not found, or failed
2    the command line, the environment or the configuration is invalid
3    the cluster is unavailable; nothing was written
4    the outcome is unknown
5    `quire serve`: this node was removed from its cluster
6    the command was carried out, as far as it got, but its output could not be written; what only tells of work goes on
130  interrupted by Ctrl-C; except `tail`, `consume` and `status --watch`, which run until Ctrl-C and exit with 0
"""

import codecs
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import BinaryIO, NoReturn, TextIO

from quire import QuireError

from ..standard_streams import OutputQueue, drain, is_one_file, queue_stderr, stdout_queue
from ..terminal import escaped, escaped_json

ESCAPED = "quire-escaped"
"""The error handler of streams whose encoding lacks a character: it becomes its escape in JSON, as `\\u20ac`."""


class Exit(IntEnum):
    """Exit codes of `quire`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    OUTCOME_UNKNOWN = 4
    REMOVED = 5
    OUTPUT_LOST = 6
    INTERRUPTED = 130


class OutputLost(QuireError):
    """stdout took no more: its reader closed the pipe, or its device is full. The process ends with OUTPUT_LOST.

    No command catches it with its own errors, so it is none of the cluster's.
    """

    def __init__(self, error: OSError) -> None:
        self.closed = isinstance(error, BrokenPipeError)
        self.reason = (error.strerror or str(error)).lower()
        super().__init__(f"the output could not be written: {self.reason}")


class Output(io.TextIOBase):
    """stdout. What cannot be written raises OutputLost, whoever prints: a command, its help, or a table."""

    def __init__(self, below: TextIO, before: OutputQueue | None) -> None:
        """`before`: where stderr is the same file, its lines, which were printed earlier."""
        self._below = below
        self._before = before

    def write(self, text: str) -> int:
        """Write the text; return its length."""
        self._settle()
        try:
            return self._below.write(text)
        except OSError as error:
            raise OutputLost(error) from error

    def flush(self) -> None:
        """Flush the stream below."""
        try:
            self._below.flush()
        except OSError as error:
            raise OutputLost(error) from error

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self._below.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below."""
        return self._below.fileno()

    @property
    def buffer(self) -> BinaryIO:
        """The binary stream below, which raises OSError."""
        self._settle()
        return self._below.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream below."""
        return self._below.encoding

    def _settle(self) -> None:
        if self._before is not None:
            self._before.settle()


def say(*cells: str) -> None:
    """Write one line to stdout, with tabs between its cells. Raises OutputLost."""
    print("\t".join(map(escaped, cells)), flush=True)


def say_escaped(lines: Iterable[str]) -> None:
    """Write lines to stdout that are escaped already. Raises OutputLost."""
    print(*lines, sep="\n", flush=True)


async def say_all(lines: Iterable[str]) -> None:
    """Write lines to stdout, however long its reader takes; cancel it to wait no longer. Raises OutputLost."""
    import asyncio

    if sys.__stdout__ is None:  # The process was started without it: nobody ever gets what is delivered.
        raise OutputLost(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    loop, queue = asyncio.get_running_loop(), stdout_queue()
    written: asyncio.Future[OSError | None] = loop.create_future()

    def tell(error: OSError | None) -> None:
        if not written.done():
            written.set_result(error)

    def done(error: OSError | None) -> None:
        with suppress(RuntimeError):  # The loop has ended: nobody waits.
            loop.call_soon_threadsafe(tell, error)

    queue.deliver("".join(f"{line}\n" for line in lines).encode(queue.encoding, ESCAPED), done)
    if (error := await written) is not None:
        raise OutputLost(error)


def write(data: bytes) -> None:
    """Write bytes to stdout as they are. Raises OutputLost."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OutputLost(error) from error


def complain(sentence: str) -> None:
    """Write one sentence to stderr, on one line. It may be dropped if nobody reads; the exit code still tells."""
    print(f"quire: {escaped(sentence)}", file=sys.stderr, flush=True)


def pass_on(line: str) -> None:
    """Write a line of another program to stderr."""
    print(escaped(line, keep="\t"), file=sys.stderr, flush=True)


def printable(value: object) -> str:
    """A value for people, on one line: strings without quotes, everything else as JSON."""
    return escaped(value) if isinstance(value, str) else to_json(value)


def to_json(value: object) -> str:
    """A value as one line of JSON, in the forms of `quire.log.json_text`, without control characters."""
    from quire.log.json_text import to_json as encode  # Help and errors need none.

    return escaped_json(encode(value).decode())


@contextmanager
def interruptible() -> Generator[None]:
    """Have Ctrl-C raise KeyboardInterrupt in the block; elsewhere it ends the process at once, as while it imports."""
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread gets signals, and a command that was started with Ctrl-C ignored, as by `&`, ignores it.
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ending(command: Callable[[], None]) -> int:
    """Run a command on prepared streams; return the exit code of the process."""
    prepare_streams()
    try:
        command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except OutputLost as error:
        return lost(error)
    except KeyboardInterrupt:
        complain("interrupted")
        return Exit.INTERRUPTED
    return Exit.DONE


def lost(error: OutputLost) -> Exit:
    """Say why the output ended, unless its reader closed the pipe, and keep Python from trying it again at the end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not error.closed:
        complain(f"{error}; the command was carried out as far as it got")
    return Exit.OUTPUT_LOST


def prepare_streams() -> None:
    """Let no text end the process, or have it wait on stderr; what an encoding lacks is written as its escape."""
    codecs.register_error(ESCAPED, _escape)
    stderr = queue_stderr()  # Also for what typer, or Python itself, says of arguments and of errors.
    sys.stdout = sys.stdout or _nowhere()  # None, if the process was started without it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)
    sys.stdout = Output(sys.stdout, stderr if is_one_file() else None)


def exit_at_once(code: Exit) -> NoReturn:
    """End the process now, whatever its threads wait for; lines that somebody reads are still written."""
    drain()
    os._exit(code)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end
