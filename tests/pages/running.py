"""Runs a page: its steps in order in one shell, with what it says comes first before them."""

import json
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, Self

from tests.pages.page import After, Block, Command, Kind, Page, StandIn, StartOver, Step
from tests.pages.shell import INTERRUPTED, POLL_S, TIMEOUT_S, Ended, Shell, ShellError, Talk, kill_session
from tests.pages.transcript import difference

SESSION = Path(__file__).with_name("session.py")
PORT = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
COUNTED = "700$n"
NODES = (1, 2, 3)
SHOWN_CHARACTERS = 6_000
FREE_WITHIN_S = 10.0

Reads = Callable[[str], Page]


class Wrong(AssertionError):
    """A page is not as it says; the text begins with the page and the line."""


class Place(Protocol):
    """Where a page runs."""

    @property
    def path(self) -> Path:
        """The folder in which its shell begins."""
        ...

    @property
    def python(self) -> Path:
        """The interpreter of its snippets."""
        ...

    def environment(self) -> dict[str, str]:
        """The variables of its shell."""
        ...

    def reset(self) -> None:
        """Make it new."""
        ...


class Run:
    """One run of a page in the checkout. Use `with`: what it started ends with it."""

    def __init__(self, checkout: Place, read: Reads, notes: Path) -> None:
        self._checkout = checkout
        self._read = read
        self._notes = notes
        self._stand_ins: list[StandIn] = []
        self._came: set[tuple[str, str]] = set()
        self._shells = 0
        self._shell: Shell | None = None
        self._python: subprocess.Popen[str] | None = None
        self._snippets = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def part(self, name: str, number: int) -> None:
        """Run a part of a page, from 0, in a new shell and a new checkout. Raises Wrong, PageError."""
        steps = self._read(name).parts[number]
        self._start()
        _need_ports(self._ports(steps, {name}), name)
        self._steps(steps)
        self._jobs_are_well(f"{name}: at its end")

    def _ports(self, steps: Iterable[Step], seen: set[str]) -> set[int]:
        ports: set[int] = set()
        for step in steps:
            if isinstance(step, Block) and not step.not_run:
                ports |= {int(port) for port in PORT.findall(step.text)}
                if COUNTED in step.text:
                    ports |= {7000 + number for number in NODES}
            elif isinstance(step, After) and (place := f"{step.target}#{step.anchor}") not in seen:
                ports |= self._ports(self._section(step), seen | {place})
        return ports

    def _section(self, after: After) -> list[Step]:
        page = self._read(after.target)
        if after.anchor not in page.sections:
            raise Wrong(f"{after.page}:{after.line}: {after.target} has no heading #{after.anchor}")
        return list(page.sections[after.anchor])

    def _steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case After():
                    if (place := (step.target, step.anchor)) not in self._came:
                        self._came.add(place)
                        self._steps(self._section(step))
                case StandIn():
                    self._stand_ins.append(step)
                case StartOver():
                    raise Wrong(f"{step.page}:{step.line}: what comes first for another section cannot start over")
                case Block():
                    if step.not_run is None:
                        self._block(step)

    def _block(self, block: Block) -> None:
        match block.kind:
            case Kind.SHELL | Kind.TRANSCRIPT:
                for command in block.commands():
                    self._command(block, command)
            case Kind.PYTHON | Kind.SESSION:
                self._snippet(block)
            case Kind.FILE:
                assert block.file is not None
                folder = Path(self._variables(block)["PWD"])
                (folder / block.file).write_text(self._here(block.text))
            case Kind.LISTING | Kind.SIGNATURE:
                pass

    def _command(self, block: Block, command: Command) -> None:
        place = f"{block.page}:{command.line}"
        try:
            ended = self._bash.run(self._here(command.text), until_interrupted=command.until_interrupted)
        except ShellError as error:
            raise Wrong(f"{place}: {error}\n    {command.text}\n{self._bash.outputs()}") from None
        _check_code(place, command, ended)
        if command.expected is not None:
            expected = self._here(command.expected)
            if wrong := difference(expected, ended.output, block.varies):
                raise Wrong(f"{place}: the page shows another output (-) than the command prints (+)\n{wrong}")
        self._jobs_are_well(place)

    def _snippet(self, block: Block) -> None:
        process = self._session(block)
        self._snippets += 1
        request, output = (self._notes / f"snippet-{self._snippets}.{kind}" for kind in ("json", "out"))
        content = {"page": block.page, "line": block.line, "kind": str(block.kind), "text": self._here(block.text)}
        request.write_text(json.dumps(content | {"output": str(output)}))
        output.touch()
        assert process.stdin is not None
        process.stdin.write(f"{request}\n")
        process.stdin.flush()
        interrupt = "until Ctrl-C" in block.text
        code = _answer(process, output, interrupt=interrupt)
        if code not in ({0, INTERRUPTED} if interrupt else {0}):
            said = output.read_text(errors="replace")[-SHOWN_CHARACTERS:]
            raise Wrong(f"{block.page}:{block.line}: a snippet of Python ended with {code}:\n{said}")

    def _session(self, block: Block) -> subprocess.Popen[str]:
        """The page's session of Python, which sees the variables and the folder that the shell has now."""
        if self._python is None:
            variables = self._variables(block)
            self._python = subprocess.Popen(
                [self._checkout.python, SESSION],
                cwd=variables["PWD"],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        return self._python

    def _variables(self, block: Block) -> dict[str, str]:
        try:
            return self._bash.variables()
        except ShellError as error:
            raise Wrong(f"{block.page}:{block.line}: {error}") from None

    @property
    def _bash(self) -> Shell:
        assert self._shell is not None
        return self._shell

    def _jobs_are_well(self, place: str) -> None:
        """No job in the background has failed."""
        try:
            jobs = self._bash.run("jobs").output
        except ShellError as error:
            raise Wrong(f"{place}: {error}") from None
        if failed := re.findall(r"^.* Exit +\d.*$", jobs, re.MULTILINE):
            raise Wrong("\n".join([f"{place}: in the background:", *failed, self._bash.outputs()]))

    def _here(self, text: str) -> str:
        for stand_in in self._stand_ins:
            text = text.replace(stand_in.shown, stand_in.run)
        return text

    def _start(self) -> None:
        self._end()
        self._checkout.reset()
        self._came.clear()
        self._stand_ins.clear()
        self._shells += 1
        notes = self._notes / str(self._shells)
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir(parents=True)
        self._shell = Shell(self._checkout.path, self._checkout.environment(), notes)

    def _end(self) -> None:
        if self._shell:
            self._shell.end()
            self._shell = None
        if self._python:
            kill_session(self._python)
            self._python = None


def _check_code(place: str, command: Command, ended: Ended) -> None:
    code = ended.code or next(iter(ended.failed), 0)
    wanted = {0, INTERRUPTED} if command.until_interrupted else {command.exit_code}
    if code not in wanted and "echo $?" not in command.text:
        instead = f", and not {command.exit_code}" if command.exit_code else ""
        raise Wrong(f"{place}: exit code {code}{instead}: {command.text}\n{ended.output[-SHOWN_CHARACTERS:]}")


def _answer(process: subprocess.Popen[str], output: Path, *, interrupt: bool) -> int:
    """The exit code of a snippet, which gets Ctrl-C once it is quiet; -1 if there is none."""
    assert process.stdout is not None
    talk, end = Talk(output), time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], POLL_S)[0]:
            line = process.stdout.readline()
            return int(line) if line else -1
        if interrupt and talk.is_over():
            process.send_signal(signal.SIGINT)
            interrupt = False
    return -1


def _need_ports(ports: set[int], page: str) -> None:
    """The page names them: nobody else may have them. Those of the page before are released in a moment."""
    end = time.monotonic() + FREE_WITHIN_S
    while taken := sorted(port for port in ports if not _is_free(port)):
        if time.monotonic() > end:
            raise Wrong(f"{page}: its ports are in use: {', '.join(map(str, taken))}; stop what listens there")
        select.select([], [], [], POLL_S)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
