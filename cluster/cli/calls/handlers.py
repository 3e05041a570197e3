"""Handlers of records: a process for each record, run again if it fails.

- A handler gets the record as a line of JSON on its stdin, and has handled it if it ends with 0. Its stdout is that of
  this command. What it writes to stderr is passed on line by line; the last line is in the message if it fails.
- A handler leads a process group. If it takes too long, or the command ends, the group gets SIGTERM, and after END_S,
  or once the handler has ended, what is left of it gets SIGKILL.
- A record that was not handled stays uncommitted, unless it is on disk in the file of skipped records.
"""

import asyncio
import os
import signal
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from quire.log.files import open_file, sync_folder

from ...client import ClientError
from ...terminal import escaped
from ..output import complain, pass_on
from .children import Children

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
END_S = 5.0
"""How long a handler may take to end after SIGTERM."""
CHUNK_BYTES = 64 << 10
LAST_CHUNKS = 16
"""How much of stderr is read after a handler has ended, in chunks: all that a pipe holds is its own last output."""
LINE_BYTES = 8 << 10
"""A longer line of stderr is passed on in parts."""
SAID_CHARACTERS = 300


class RecordNotHandled(ClientError):
    """All attempts to handle a record failed, or it could not be written to the file of skipped records."""


class SkippedRecords:
    """The file of the records that were skipped, a line of JSON for each."""

    def __init__(self, path: Path) -> None:
        """Create the file if it is not there. Raises OSError."""
        self._path = path
        os.close(self._opened())

    def _opened(self) -> int:
        """A descriptor of the file, ready to append a line. It may have been moved away since the last one."""
        # Nothing may be left half open: O_NONBLOCK, since the open of a pipe would wait for a reader.
        descriptor = open_file(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path} is not a file that keeps what is written")
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            os.write(descriptor, b"\n")  # After a line that a crash cut short.
        sync_folder(self._path.parent)
        return descriptor

    def add(self, index: int, line: bytes) -> None:
        """Append a record's line; it is on disk on return. Raises RecordNotHandled."""
        try:
            descriptor = self._opened()
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RecordNotHandled(
                f"the record at index {index} was not handled, and could not be written to {self._path}: {reason}"
            ) from None
        complain(f"the record at index {index} is skipped: it is in {self._path}")


@dataclass(frozen=True, slots=True)
class Handlers:
    """Runs a command for records. Calls may run at the same time."""

    words: Sequence[str]
    attempts: int
    timeout_s: float
    skipped: SkippedRecords | None
    children: Children

    async def handle(self, index: int, line: bytes) -> None:
        """Run the command for a record, `attempts` times at most, until it succeeds; or else skip the record.

        Raises:
            RecordNotHandled: it did not succeed, and the record cannot be skipped.
        """
        pause_s = FIRST_PAUSE_S
        failure = await self._run(line)
        for attempt in range(1, self.attempts):
            if failure is None:
                return
            complain(f"the record at index {index}: {failure}; attempt {attempt} of {self.attempts}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            failure = await self._run(line)
        if failure is None:
            return
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        sentence = f"the record at index {index} was not handled, tried {times}: {failure}"
        if self.skipped is None:
            raise RecordNotHandled(
                f"{sentence}; correct the handler and run this again, or skip such records with --skip-failed FILE"
            )
        complain(sentence)
        self.skipped.add(index, line)

    async def _run(self, line: bytes) -> str | None:
        """Run the command once; why it failed, None if it succeeded. If it is cancelled, the handler is ended."""
        with _Stderr() as stderr:
            try:
                process = await self.children.start(*self.words, stderr=stderr.descriptor)
            except OSError as error:
                return f"{self.words[0]!r} could not be started: {(error.strerror or str(error)).lower()}"
            failure = ""
            try:
                async with asyncio.timeout(self.timeout_s):
                    await process.communicate(line)
            except TimeoutError:
                failure = f"its handler took longer than {self.timeout_s:g} s"
                await _end(process)
            except asyncio.CancelledError:
                await _end(process)
                raise
            finally:
                self.children.forget(process)
        if not failure and process.returncode:
            failure = f"its handler {_ended_with(process.returncode)}"
        if not failure:
            return None
        return f"{failure}, and last wrote {stderr.last!r} to stderr" if stderr.last else failure


def _ended_with(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a handler and its process group; it is gone on return."""
    _signal_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Stderr:
    """The stderr of a handler: a pipe, whose lines are passed on as they come. `last` is the last that is not empty.

    The pipe is closed once the handler has ended, even if a process that it left behind still has the other end.
    """

    def __init__(self) -> None:
        self.last = ""
        self._rest = b""
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self.descriptor)
        for _chunk in range(LAST_CHUNKS):
            if not self._read():
                break
        os.close(self._reading)
        if self._rest:
            self._pass_on(self._rest)

    def _read(self) -> bool:
        """Pass on what can be read; whether there may be more."""
        try:
            data = os.read(self._reading, CHUNK_BYTES)
        except BlockingIOError:
            return False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._pass_on(line)
        if len(self._rest) >= LINE_BYTES:
            self._pass_on(self._rest)
            self._rest = b""
        return bool(data)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        pass_on(text)
        if text.strip():
            self.last = escaped(text.strip())[:SAID_CHARACTERS]
