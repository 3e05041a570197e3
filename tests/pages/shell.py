"""A bare shell, as a newcomer's terminal: bash, a fresh home, the programs of the system, and Ctrl-C."""

import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 300.0
QUIET_S = 3.0
"""A command that runs until Ctrl-C has said all it has to say: it printed something, and then nothing for so long."""
LONGEST_TALK_S = 15.0
"""One that never stops printing is interrupted after so long."""
JOBS_END_S = 30.0
POLL_S = 0.2
INTERRUPTED = 128 + signal.SIGINT


class Ended(NamedTuple):
    """A command that ended; `failed` are the exit codes of its parts that failed, as `set -e` counts them."""

    code: int
    failed: list[int]
    output: str


class ShellError(Exception):
    """The shell itself ended, or the command ran for too long; the text says which."""


def children(pid: int) -> set[int]:
    """The processes that one started and that have not ended."""
    with suppress(OSError):
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()


def of_session(session: int) -> list[int]:
    """Every living process of a session."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state != "Z":
                    found.append(int(folder.name))
    return found


def kill_session(leader: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Kill a process and everything that it started, and close its pipes."""
    while running := of_session(leader.pid):
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            leader.wait(POLL_S)
    leader.wait()
    for pipe in (leader.stdin, leader.stdout):
        if pipe:
            with suppress(BrokenPipeError):
                pipe.close()


class Talk:
    """What a command that runs until Ctrl-C prints to a file."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._size = 0
        self._began = self._last = float("inf")

    def is_over(self) -> bool:
        """Whether it has said all it has to say. Ask again and again."""
        now = time.monotonic()
        if (size := self._output.stat().st_size) != self._size:
            self._size, self._last = size, now
            self._began = min(self._began, now)
        return now - self._last >= QUIET_S or now - self._began >= LONGEST_TALK_S


class Shell:
    """One bash. Background jobs live until `end`, and their output goes to the file of the command that started them.

    It controls jobs as an interactive one does: each has its own process group, and Ctrl-C reaches it alone.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], notes: Path) -> None:
        self._notes = notes
        self._count = 0
        self._says, to_harness = os.pipe()
        self._heard = b""
        self._to_harness = to_harness
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[to_harness],
            start_new_session=True,
        )
        os.close(to_harness)
        self._send("set -m; set -o pipefail; trap : INT")  # A job that Ctrl-C ends would else end this shell as well.
        self._send(f"trap '{self._telling('failed $?')}' ERR")

    def run(self, command: str, *, until_interrupted: bool = False) -> Ended:
        """Run a command to its end, or until it gets Ctrl-C. Raises ShellError."""
        self._count += 1
        script, output = self._notes / f"{self._count}.sh", self._notes / f"{self._count}.out"
        script.write_text(f"{command}\n")
        output.touch()
        before = children(self._process.pid)
        sourced = f". {shlex.quote(str(script))} </dev/null >{shlex.quote(str(output))} 2>&1"
        self._send(sourced)
        self._send(self._telling("done $?"))  # On a line of its own: after Ctrl-C the rest of a line is not run.
        if until_interrupted:
            self._interrupt_when_quiet(output, lambda: children(self._process.pid) - before)
        failed: list[int] = []
        end = time.monotonic() + TIMEOUT_S
        while True:
            word, _, code = self._line(end, output).partition(" ")
            if word == "done":
                return Ended(int(code), failed, output.read_text(errors="replace"))
            failed.append(int(code))

    def variables(self) -> dict[str, str]:
        """The shell's exported variables, and its folder as PWD."""
        pairs = self.run("env -0").output.split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def end(self) -> None:
        """End the jobs, and with them what they began in sessions of their own; kill the shell and everything else."""
        for pid in children(self._process.pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        end = time.monotonic() + JOBS_END_S
        while children(self._process.pid) and time.monotonic() < end:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
        kill_session(self._process)
        os.close(self._says)

    def outputs(self) -> str:
        """The last lines of everything that commands printed, background jobs included."""
        files = sorted(self._notes.glob("*.out"), key=lambda path: int(path.stem))
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in files[-8:])

    def _telling(self, what: str) -> str:
        return f'echo "{what}" >&{self._to_harness}'

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ShellError("the shell has ended") from None

    def _line(self, end: float, output: Path) -> str:
        while b"\n" not in self._heard:
            left = end - time.monotonic()
            if left <= 0:
                raise ShellError(f"no end within {TIMEOUT_S:g} s; it printed:\n{output.read_text(errors='replace')}")
            if not select.select([self._says], [], [], min(left, POLL_S))[0] and self._process.poll() is None:
                continue
            if not (heard := os.read(self._says, 4096) if self._process.poll() is None else b""):
                raise ShellError("the shell has ended")
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _interrupt_when_quiet(self, output: Path, foreground: Callable[[], set[int]]) -> None:
        """Ctrl-C for the job in the foreground; nothing if it ends before."""
        talk, end = Talk(output), time.monotonic() + TIMEOUT_S
        while not talk.is_over() and time.monotonic() < end:
            if select.select([self._says], [], [], POLL_S)[0]:
                return
        for pid in foreground():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGINT)
