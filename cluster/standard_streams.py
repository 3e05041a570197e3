"""stdout and stderr: what works on, as a server does, never waits for the reader of its lines.

A pipe holds 64 KiB, and Ctrl-S stops a terminal. If nobody reads, the next write blocks. On the event loop, that would
stop a node from answering callers and peers, a backup from backing up, and each of them from ending at SIGTERM. So a
thread does the writing, and:

1. a write to `sys.stdout` or `sys.stderr`, and a line of the journal, goes into a queue. That never waits for the
   descriptor: the queue's lock is held for a few assignments, never during a system call
2. the queue has a maximum, of lines and of bytes. Beyond it, new lines are dropped and counted
3. where lines are missing, the output says how many, as soon as something can be written there again; stderr says it of
   stdout, which a program may parse
4. if writing fails (the reader is gone, the disk is full), the line is dropped and counted; the next one is tried
5. lines are written whole and in order; stdout and stderr share a queue if they are the same file
6. at the end, the process waits at most DRAIN_S for queued lines
7. a forked child writes nothing: a lock that was held at the fork is never released there
8. printed text is escaped (cluster/terminal.py); lines of the journal are already escaped
9. what is delivered, such as the records of `quire tail`, is never dropped, and its caller learns what became of it

The stderr of every command goes this way. Its stdout does only where it tells of work that goes on (`backup --every`).

This does not cover output that bypasses `sys.stdout` and `sys.stderr`: the C library and faulthandler write to
descriptor 2.
"""

import atexit
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, TextIO

from .terminal import EscapingStream

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

QUEUED_LINES = 10_000
QUEUED_BYTES = 1 << 20
"""Limits of one queue. A multi-line message, such as a traceback, counts as one line."""
DRAIN_S = 1.0

ENCODING, UNENCODABLE = "utf-8", "backslashreplace"
STDOUT, STDERR = 1, 2

Notice = Callable[[int, str], str]
"""The line that says how many lines were dropped, and why."""
Done = Callable[[OSError | None], None]
"""Called in the queue's thread once data is written, or with the reason why it is not, or not whole."""


class _Gap:
    """A marker in the queue where lines are missing."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines = 0


class OutputQueue:
    """The output queue of one descriptor.

    Any thread may write, even from a finalizer or a signal handler that interrupts another write.
    """

    def __init__(self, descriptor: int, name: str, encoding: str = ENCODING) -> None:
        """Start the thread that writes to `descriptor`."""
        self.descriptor = descriptor
        self.name = name
        self.dropped = 0
        """Lines that were dropped since the start."""
        self.is_given_up = False
        """Its reader was waited for in vain: the process does not do so again at its end."""
        self.notice: Notice = lambda lines, why: f"quire: {lines_were_dropped(lines, why)}\n"
        self.encoding = encoding
        """That of the text."""
        self._process = os.getpid()
        self._queue: SimpleQueue[bytes | _Gap | tuple[bytes, Done]] = SimpleQueue()
        self.lock = threading.RLock()  # Reentrant: the garbage collector may run a finalizer that logs.
        self._lines = self._bytes = 0
        self._gap: _Gap | None = None  # The newest item of the queue, if it is a marker.
        # Used only by the thread: missing lines not yet reported in the output, and whether its last line is torn.
        self._missing, self._why, self._torn = 0, "", False
        threading.Thread(target=self._write_forever, name=name, daemon=True).start()

    def write(self, text: str) -> None:
        """As `put`, for text."""
        self.put(text.encode(self.encoding, UNENCODABLE))

    def put(self, line: bytes) -> None:
        """Queue a line, or drop and count it. Does nothing in a forked child."""
        if not line or self._is_forked:
            return
        with self.lock:
            if self._lines >= QUEUED_LINES or self._bytes + len(line) > QUEUED_BYTES:
                self.dropped += 1
                if self._gap is None:
                    self._gap = _Gap()
                    self._queue.put(self._gap)
                self._gap.lines += 1
                return
            self._gap = None
            self._lines += 1
            self._bytes += len(line)
            self._queue.put(line)

    def deliver(self, data: bytes, done: Done) -> None:
        """Queue data that is never dropped, whatever the limits; its caller waits for `done`. Not in a forked child."""
        if self._is_forked:
            done(None)
        else:
            self._queue.put((data, done))

    def mark(self) -> threading.Event:
        """An event that is set once everything queued now was written or dropped; already set in a forked child."""
        reached = threading.Event()
        self.deliver(b"", lambda _: reached.set())
        return reached

    def settle(self) -> None:
        """Wait until every line that is queued now was written or dropped."""
        if self._lines:
            self.mark().wait()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _write_forever(self) -> None:
        """In the thread: write the queued lines."""
        while True:
            item = self._queue.get()
            if isinstance(item, bytes):
                self._write_line(item)
            elif isinstance(item, _Gap):
                with self.lock:
                    if self._gap is item:
                        self._gap = None  # Later dropped lines go to a new marker.
                self._missing += item.lines
                self._why = f"{self.name} was not read"
                self._try(b"")
            else:
                data, done = item
                done(self._try(data))

    def _write_line(self, line: bytes) -> None:
        is_missing = self._try(line) is not None
        self._missing += is_missing
        with self.lock:
            self.dropped += is_missing
            self._lines -= 1
            self._bytes -= len(line)

    def _try(self, line: bytes) -> OSError | None:
        """Write the number of missing lines, if any, and the line; return why it was not written."""
        try:
            if self._missing:
                self._write(self.notice(self._missing, self._why).encode(self.encoding, UNENCODABLE))
                self._missing = 0
            self._write(line)
        except OSError as error:
            self._why = f"{self.name} failed: {(error.strerror or str(error)).lower()}"
            return error
        return None

    def _write(self, line: bytes) -> None:
        rest = memoryview(b"\n" + line if self._torn and line else line)
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:  # The parent process made the descriptor non-blocking.
                _wait_for_room(self.descriptor)
            else:
                self._torn = bool(rest)


def lines_were_dropped(lines: int, why: str) -> str:
    """The text of a notice."""
    return f"{lines} lines were dropped: {why}"


def _wait_for_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


class _QueuedFile(io.BufferedIOBase):
    """The file below a text stream: a queue."""

    def __init__(self, queue: OutputQueue) -> None:
        self.name = f"<{queue.name}>"
        self._output = queue

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._output.descriptor

    def isatty(self) -> bool:
        return os.isatty(self._output.descriptor)

    def write(self, data: "ReadableBuffer") -> int:
        line = bytes(data)
        self._output.put(line)
        return len(line)


_queues: list[OutputQueue] = []
"""Those of this process that have begun: of stderr, and of stdout if that is another file."""


@cache
def stderr_queue() -> OutputQueue:
    """The queue of stderr, begun at the first call; at exit the process waits for it, up to DRAIN_S."""
    for descriptor in (STDOUT, STDERR):
        _open_if_closed(descriptor)
    _queues.append(OutputQueue(STDERR, "stderr", _encoding_of(sys.stderr)))
    atexit.register(drain)
    return _queues[0]


@cache
def stdout_queue() -> OutputQueue:
    """The queue of stdout, begun at the first call; that of stderr, if they are the same file."""
    stderr = stderr_queue()
    if is_one_file():
        return stderr
    stdout = OutputQueue(STDOUT, "stdout", _encoding_of(sys.stdout))

    def notice(lines: int, why: str) -> str:
        stderr.write(stderr.notice(lines, why))
        return ""

    stdout.notice = notice
    _queues.append(stdout)
    return stdout


def is_one_file() -> bool:
    """Whether stdout and stderr are the same file."""
    return os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR))


def queue_stderr() -> OutputQueue:
    """From now on, nothing that this process prints to stderr waits for its reader. Returns the queue."""
    queue = stderr_queue()
    sys.stderr = _text_stream(queue)
    return queue


def queue_standard_streams() -> OutputQueue:
    """From now on, nothing that this process prints waits for its reader. Returns the queue of stderr."""
    sys.stdout = _text_stream(stdout_queue())
    return queue_stderr()


def dropped_lines() -> int:
    """Lines of stdout and stderr that were dropped since the start."""
    return sum(queue.dropped for queue in _queues)


def drain(timeout_s: float = DRAIN_S) -> None:
    """Wait until everything queued now was written or dropped, or until the timeout."""
    end = time.monotonic() + timeout_s
    for reached in [
        queue.mark() for queue in _queues if not queue.is_given_up
    ]:  # Ask all of them first: one may be stuck.
        reached.wait(max(0.0, end - time.monotonic()))


def _open_if_closed(descriptor: int) -> None:
    """Open the descriptor on /dev/null if it is closed: otherwise a data file could get its number, and the output."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


def _encoding_of(stream: TextIO | None) -> str:
    return ENCODING if stream is None else stream.encoding


def _text_stream(queue: OutputQueue) -> EscapingStream:
    file = _QueuedFile(queue)
    return EscapingStream(io.TextIOWrapper(file, encoding=queue.encoding, errors=UNENCODABLE, line_buffering=True))
