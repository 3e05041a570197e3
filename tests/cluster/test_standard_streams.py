"""What a server prints: a queue and a thread for each descriptor, so that nobody waits for who reads it."""

import errno
import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import structlog

from quire.cluster import standard_streams
from quire.cluster.serve.journal import KINDS_LIMIT, configure_logging
from quire.cluster.standard_streams import QUEUED_BYTES, QUEUED_LINES, OutputQueue

DEADLINE_S = 30.0
PIPE_BYTES = 4096
SCRIPT_START = "from quire.cluster.standard_streams import queue_standard_streams as queue; queue()\n"


class Pipe:
    """A pipe of one page, and the queue that writes to it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.queue = OutputQueue(self.writing, "stderr")

    def fill(self) -> None:
        """Leave no room in it, and the thread in its write."""
        self.queue.put(b"x" * (2 * PIPE_BYTES - 1) + b"\n")

    def read_until(self, end: bytes) -> bytes:
        said = b""
        while not said.endswith(end):
            said += self.read()
        return said

    def read(self) -> bytes:
        assert select.select([self.reading], [], [], DEADLINE_S)[0], "nothing comes"
        return os.read(self.reading, PIPE_BYTES)

    def settle(self) -> None:
        assert self.queue.mark().wait(DEADLINE_S)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.set_blocking(made.reading, False)
    settled = made.queue.mark()
    while not settled.wait(0.01):
        try:
            os.read(made.reading, 1 << 20)
        except (BlockingIOError, OSError):
            continue
    os.close(made.writing)


def test_lines_are_written_whole_and_in_order(pipe: Pipe) -> None:
    lines = [b"%d %s\n" % (number, b"y" * number) for number in range(500)]

    reader_said: list[bytes] = []
    reader = threading.Thread(target=lambda: reader_said.append(pipe.read_until(lines[-1])))
    reader.start()
    for line in lines:
        pipe.queue.put(line)
    reader.join(DEADLINE_S)

    assert reader_said == [b"".join(lines)]
    assert pipe.queue.dropped == 0


def test_as_many_lines_as_the_limit_wait_and_those_past_it_are_counted_where_they_are_missing(pipe: Pipe) -> None:
    pipe.fill()
    for number in range(QUEUED_LINES + 5):
        pipe.queue.put(b"%d\n" % number)  # Returns, though nobody reads.

    # The line in the write counts, too.
    assert pipe.queue.dropped == 6
    said = pipe.read_until(b"was not read\n").splitlines()
    assert said[1:] == [
        *(b"%d" % number for number in range(QUEUED_LINES - 1)),
        b"quire: 6 lines were dropped: stderr was not read",
    ]
    pipe.settle()
    pipe.queue.put(b"later\n")
    assert pipe.read_until(b"later\n") == b"later\n"


@pytest.mark.slow
def test_as_many_bytes_as_the_limit_wait_and_not_one_more(pipe: Pipe) -> None:
    pipe.fill()
    rest = QUEUED_BYTES - 2 * PIPE_BYTES
    pipe.queue.put(b"z" * (rest - 1) + b"\n")
    assert pipe.queue.dropped == 0

    pipe.queue.put(b"\n")

    assert pipe.queue.dropped == 1


def test_lines_after_the_reader_is_gone_are_dropped_one_by_one_and_nothing_fills(pipe: Pipe) -> None:
    os.close(pipe.reading)
    for _ in range(2 * QUEUED_LINES):
        pipe.queue.put(b"nobody reads\n")
        if pipe.queue.dropped == 0:
            pipe.settle()
    pipe.settle()
    assert pipe.queue.dropped == 2 * QUEUED_LINES
    pipe.reading = os.open(os.devnull, os.O_RDONLY)


def test_after_a_failed_write_the_next_line_is_whole_and_comes_after_the_number_of_missing_ones(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, outcomes = os.write, iter((3, OSError(errno.ENOSPC, "No space left on device")))

    def failing(descriptor: int, data: memoryview) -> int:
        outcome = next(outcomes, None) if descriptor == pipe.writing else None
        if isinstance(outcome, OSError):
            raise outcome
        return write(descriptor, data[:outcome])

    monkeypatch.setattr(os, "write", failing)
    pipe.queue.put(b"torn line\n")
    pipe.settle()
    pipe.queue.put(b"next\n")

    notice = b"quire: 1 lines were dropped: stderr failed: no space left on device\n"
    assert pipe.read_until(b"next\n") == b"tor\n" + notice + b"next\n"


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    pipe.fill()
    pipe.queue.put(b"last\n")

    assert len(pipe.read_until(b"last\n")) == 2 * PIPE_BYTES + len(b"last\n")
    assert pipe.queue.dropped == 0


def test_what_is_delivered_is_never_dropped_and_comes_in_its_place(pipe: Pipe) -> None:
    pipe.fill()
    large, outcomes = b"y" * (2 * QUEUED_BYTES) + b"\n", SimpleQueue[OSError | None]()

    pipe.queue.deliver(large, outcomes.put)
    for _ in range(QUEUED_LINES):
        pipe.queue.put(b"line\n")
    pipe.queue.deliver(b"last\n", outcomes.put)

    assert outcomes.empty()
    said = pipe.read_until(b"last\n").splitlines(keepends=True)
    assert (said[1], said[-1]) == (large, b"last\n")
    assert (outcomes.get(timeout=DEADLINE_S), outcomes.get(timeout=DEADLINE_S)) == (None, None)


def test_whoever_delivers_learns_that_the_reader_is_gone_and_nothing_counts_as_dropped(pipe: Pipe) -> None:
    os.close(pipe.reading)
    outcomes = SimpleQueue[OSError | None]()

    pipe.queue.deliver(b"record\n", outcomes.put)

    assert isinstance(outcomes.get(timeout=DEADLINE_S), BrokenPipeError)
    assert pipe.queue.dropped == 0
    pipe.reading = os.open(os.devnull, os.O_RDONLY)


def test_a_forked_child_writes_nothing_and_waits_for_no_lock(pipe: Pipe) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pipe.queue.lock:
            held.set()
            release.wait(DEADLINE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(DEADLINE_S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads.
        child = os.fork()
    if not child:
        end_if_it_hangs()
        pipe.queue.put(b"from the child\n")
        pipe.queue.mark().wait()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    release.set()
    holder.join(DEADLINE_S)

    assert status == 0
    pipe.queue.put(b"from the parent\n")
    assert pipe.read_until(b"parent\n") == b"from the parent\n"


def end_if_it_hangs() -> None:
    """End this process if it hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(DEADLINE_S))


def test_the_journal_and_the_standard_logging_write_to_the_queue_and_the_notice_is_a_line_of_it(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    try:
        configure_logging("json", "n1", pipe.queue)
        structlog.get_logger().info("first")
        logging.getLogger("asyncio").error("second")
        assert [json.loads(line)["event"] for line in pipe.read_until(b"\n").splitlines()][:1] == ["first"]
        pipe.settle()
        pipe.fill()
        for number in range(QUEUED_LINES):
            structlog.get_logger().info(f"more of kind {number % KINDS_LIMIT}")
        said = _read_to_notice(pipe)
    finally:
        structlog.reset_defaults()

    assert json.loads(said)["event"] == f"{pipe.queue.dropped} lines were dropped: stderr was not read"
    assert json.loads(said)["node"] == "n1"


def _read_to_notice(pipe: Pipe) -> bytes:
    said = b""
    while b"were dropped" not in said or not said.endswith(b"\n"):
        said += pipe.read()
    return said.splitlines()[-1]


UNREAD_WRITERS: dict[str, str] = {
    "print": "print('x' * 99)",
    "stderr": "print('x' * 99, file=sys.stderr)",
    "logging's last resort": "logging.getLogger('a').warning('x' * 99)",
    "warnings": "warnings.warn_explicit('x' * 99, UserWarning, 'a', number)",
    "sys.excepthook": "sys.excepthook(ValueError, ValueError('x' * 99), None)",
    "threading.excepthook": "threading.excepthook(threading.ExceptHookArgs((ValueError, ValueError('x'), None, None)))",
    "sys.unraisablehook": "Raising()",
}


@pytest.mark.parametrize("statement", UNREAD_WRITERS.values(), ids=UNREAD_WRITERS)
@pytest.mark.slow
def test_whatever_prints_goes_on_though_nobody_reads_and_the_process_ends(statement: str) -> None:
    script = (
        "import logging, sys, threading, warnings\n"
        f"{SCRIPT_START}"
        "class Raising:\n    def __del__(self): raise ValueError('x' * 99)\n"
        f"for number in range(3000):\n    {statement}\n"
        "sys.exit(7)\n"
    )
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", script], stdout=writing, stderr=writing) as process:
        try:
            assert process.wait(DEADLINE_S) == 7
        finally:
            process.kill()
            os.close(reading)
            os.close(writing)


def run(script: str, preexec_fn: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT_START + script]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, preexec_fn=preexec_fn
    )


def test_the_last_line_and_the_traceback_of_an_error_are_written_before_the_process_ends() -> None:
    ended = run("print('hello'); raise ValueError('the end')")

    assert (ended.returncode, ended.stdout) == (1, "hello\n")
    assert ended.stderr.endswith("ValueError: the end\n")


def test_a_closed_descriptor_is_given_to_no_file() -> None:
    ended = run("import os; print(open('/dev/null').fileno() > 2)", preexec_fn=lambda: os.close(2))

    assert (ended.returncode, ended.stdout) == (0, "True\n")


def test_lines_of_stdout_that_were_dropped_are_told_on_stderr_once_it_is_read() -> None:
    # The first line is more than a pipe holds: it stays in the write.
    lines = f"sys.stdout.write('y' * 99_999 + chr(10)); [print('x') for _ in range({QUEUED_LINES} + 4)]"
    script = f"{lines}; print('done', file=sys.stderr); input()"
    command = [sys.executable, "-c", f"import sys; {SCRIPT_START}{script}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"done\n"  # All was printed, and nobody has read.
        read = [process.stdout.readline() for _ in range(QUEUED_LINES)]
        told = process.stderr.readline()
        rest = process.communicate(b"\n", timeout=DEADLINE_S)

    assert set(read[1:]) == {b"x\n"}
    assert told == b"quire: 5 lines were dropped: stdout was not read\n"
    assert rest == (b"", b"")


def test_stdout_and_stderr_of_a_command_that_are_one_file_keep_their_order() -> None:
    script = (
        "from quire.cluster.cli.output import complain, prepare_streams, say; prepare_streams()\n"
        "for number in range(200):\n    complain(str(number))\n    say(str(number))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S, check=True
    )

    assert ended.stdout == b"".join(b"quire: %d\n%d\n" % (number, number) for number in range(200))


def test_at_the_end_no_reader_is_waited_for_who_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue has no `mark` to wait for."""
    monkeypatch.setattr(standard_streams, "_queues", [SimpleNamespace(is_given_up=True)])

    standard_streams.drain()
