"""Pages as steps. Every block of code is a fence whose info string says what it is:

    sh             commands, each run by bash
    console        a transcript: `$ command`, then what it prints
    python         statements; the blocks of a page are one session, in order, as are the pycon ones
    pycon          a session of Python, with what it prints
    python FILE    a file that the reader writes, as with any other language and a name: toml n1.toml
    text, pyi      a listing: a format, a tree, an output; signatures. Nothing is run

A comment of HTML before a block, which no reader sees, says what the harness must know:

    <!-- after: README.md#install -->     run the blocks below that heading first, up to the next heading
    <!-- not run: REASON -->              the next block is not run
    <!-- varies: numbers, nodes -->       what may differ in the next transcript (tests/pages/transcript.py)
    <!-- stand-in: A = B -->              from here on, B is run where the page says A
    <!-- start over -->                   from here on, a new shell in a new checkout

A table that a program makes lies between `<!-- NAME: made by PROGRAM -->` and `<!-- end of NAME -->`.

A comment at the end of a command tells the reader, and the harness, what to expect:

    # until Ctrl-C           it runs on; Ctrl-C ends it once it has printed all it has to say
    # exit code 1            and not 0
    # 45, or # 45: why       it prints this number
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from markdown_it import MarkdownIt

TOP = Path(__file__).parents[2]

COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
VARIES = frozenset({"indices", "nodes", "numbers"})
EXIT_CODE = re.compile(r"#.*\bexit code (\d+)$")
UNTIL_CTRL_C = re.compile(r"#.*\buntil Ctrl-C\b")
PRINTS = re.compile(r"\s#\s(-?\d[\d,.]*\d|\d)(?::.*)?$")
PROMPT = "$ "


class PageError(Exception):
    """A page breaks a rule of this module; the text begins with the page and the line."""


class Kind(StrEnum):
    """What a block is."""

    SHELL = "sh"
    TRANSCRIPT = "console"
    PYTHON = "python"
    SESSION = "pycon"
    FILE = "file"
    LISTING = "text"
    SIGNATURE = "pyi"

    @property
    def is_run(self) -> bool:
        """Whether there is anything to run or to write."""
        return self not in {Kind.LISTING, Kind.SIGNATURE}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block, which may have several lines."""

    line: int
    text: str
    expected: str | None = None
    """What it must print, if the page says so."""

    @property
    def exit_code(self) -> int:
        """The one that the page names, else 0."""
        named = EXIT_CODE.search(self.text)
        return int(named[1]) if named else 0

    @property
    def until_interrupted(self) -> bool:
        """Whether it runs until Ctrl-C."""
        return UNTIL_CTRL_C.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code. `line` is that of its first line of code, from 1."""

    page: str
    line: int
    kind: Kind
    text: str
    file: str | None = None
    not_run: str | None = None
    varies: frozenset[str] = frozenset()

    def commands(self) -> list[Command]:
        """The commands of a block of the shell. Raises PageError."""
        if self.kind is Kind.SHELL:
            return list(self._complete(list(enumerate(self.text.split("\n"), self.line))))
        if self.kind is Kind.TRANSCRIPT:
            return list(self._shown())
        return []

    def _complete(self, lines: Sequence[tuple[int, str]]) -> Iterator[Command]:
        """Lines are joined until bash finds a whole command."""
        begun: list[str] = []
        first = self.line
        for line, text in lines:
            if not begun:
                if not text.strip() or text.lstrip().startswith("#"):
                    continue
                first = line
            begun.append(text)
            whole = "\n".join(begun)
            if _is_whole(whole):
                prints = PRINTS.search(text)
                yield Command(first, whole, f"{prints[1]}\n" if prints else None)
                begun = []
        if begun:
            raise PageError(f"{self.page}:{first}: bash cannot read this command:\n" + "\n".join(begun))

    def _shown(self) -> Iterator[Command]:
        commands: list[tuple[int, str, list[str]]] = []
        for line, text in enumerate(self.text.rstrip("\n").split("\n"), self.line):
            if text.startswith(PROMPT):
                commands.append((line, text.removeprefix(PROMPT), []))
            elif not commands:
                raise PageError(f"{self.page}:{line}: a transcript begins with `$ command`")
            elif not commands[-1][2] and not _is_whole(commands[-1][1]):
                first, command, output = commands[-1]
                commands[-1] = (first, f"{command}\n{text}", output)
            else:
                commands[-1][2].append(text)
        for first, command, output in commands:
            if not _is_whole(command):
                raise PageError(f"{self.page}:{first}: bash cannot read this command:\n{command}")
            yield Command(first, command, "".join(f"{text}\n" for text in output))


@dataclass(frozen=True, slots=True)
class After:
    """The blocks under a heading, perhaps of another page, which come first."""

    page: str
    line: int
    target: str
    anchor: str


@dataclass(frozen=True, slots=True)
class StandIn:
    """What is run in place of what the page says."""

    page: str
    line: int
    shown: str
    run: str


@dataclass(frozen=True, slots=True)
class StartOver:
    """A new shell in a new checkout."""

    page: str
    line: int


def is_run(step: "Step") -> bool:
    """Whether a step is a block that is run."""
    return isinstance(step, Block) and step.not_run is None and step.kind.is_run


Step = Block | After | StandIn | StartOver


@dataclass(slots=True)
class _Said:
    """What comments say about the next block."""

    not_run: str | None = None
    varies: set[str] = field(default_factory=set)
    line: int | None = None

    def given(self) -> bool:
        return self.not_run is not None or bool(self.varies)


@dataclass(frozen=True, slots=True)
class Page:
    """The steps of a page in order, and those under each heading."""

    name: str
    steps: Sequence[Step]
    sections: Mapping[str, Sequence[Step]]

    @property
    def blocks(self) -> list[Block]:
        """Every block of code."""
        return [step for step in self.steps if isinstance(step, Block)]

    @property
    def parts(self) -> list[list[Step]]:
        """The steps between two starts; each part keeps the stand-ins of those before it."""
        parts: list[list[Step]] = [[]]
        stand_ins: list[Step] = []
        for step in self.steps:
            if isinstance(step, StartOver):
                parts.append(list(stand_ins))
                continue
            parts[-1].append(step)
            if isinstance(step, StandIn):
                stand_ins.append(step)
        return parts


def read_page(name: str, top: Path = TOP) -> Page:
    """A page of the checkout, by its path from the top. Raises PageError."""
    return parse(name, (top / name).read_text())


def parse(name: str, text: str) -> Page:
    """The steps of a page. Raises PageError: it has a block or a comment of no known kind."""
    steps: list[Step] = []
    sections: dict[str, list[Step]] = {}
    section: list[Step] = sections.setdefault("", [])
    said = _Said()
    tokens = MarkdownIt("commonmark").parse(text)
    for position, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        new: list[Step] = []
        match token.type:
            case "heading_open":
                section = sections.setdefault(_anchor(tokens[position + 1].content), [])
            case "html_block":
                for comment in COMMENT.findall(token.content):
                    new += _directive(name, line, " ".join(comment.split()), said)
            case "code_block":
                raise PageError(f"{name}:{line}: a block of no kind: fence it, as tests/pages/page.py says")
            case "fence":
                new = [_block(name, line + 1, token.info.split(), token.content, said)]
                said = _Said()
            case _:
                pass
        steps += new
        section += new
    if said.given():
        raise PageError(f"{name}:{said.line}: this comment is about no block")
    return Page(name, steps, sections)


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _directive(page: str, line: int, comment: str, said: _Said) -> Iterator[Step]:
    word, colon, rest = comment.partition(":")
    rest = rest.strip()
    match word, bool(colon and rest):
        case "not run", True:
            said.not_run, said.line = rest, line
        case "varies", True:
            said.varies |= set(re.split(r",\s*", rest))
            said.line = line
            if unknown := said.varies - VARIES:
                raise PageError(f"{page}:{line}: only {', '.join(sorted(VARIES))} may vary, not {', '.join(unknown)}")
        case "after", True if "#" in rest:
            target, _, anchor = rest.partition("#")
            yield After(page, line, os.path.normpath(Path(page).parent / target) if target else page, anchor)
        case "stand-in", True if " = " in rest:
            shown, _, run = rest.partition(" = ")
            yield StandIn(page, line, shown.strip(), run.strip())
        case "reference" | "signatures", True:
            pass  # What a section is made of.
        case _, given if rest.startswith("made by ") or (not given and word.startswith("end of ")):
            pass
        case "start over", False:
            yield StartOver(page, line)
        case _:
            raise PageError(f"{page}:{line}: a comment of no known kind: {comment}")


def _block(page: str, line: int, info: Sequence[str], text: str, said: _Said) -> Block:
    match info:
        case [language] if language in set(Kind) - {Kind.FILE}:
            kind, file = Kind(language), None
        case [_, name]:
            kind, file = Kind.FILE, name
        case _:
            raise PageError(f"{page}:{line}: a block of no known kind: {' '.join(info) or 'a fence without a word'}")
    if not kind.is_run and said.given():
        raise PageError(f"{page}:{line}: a listing is never run: nothing is to be said about it")
    return Block(page, line, kind, text, file, said.not_run, frozenset(said.varies))


def _is_whole(command: str) -> bool:
    if command.endswith("\\"):
        return False
    run = subprocess.run(["bash", "-n"], input=command + "\n", capture_output=True, text=True, check=False)
    return run.returncode == 0 and not run.stderr
