"""Progress bars on stderr, if it is a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from ..terminal import escaped
from .console import EscapingConsole


class Progress(Protocol):
    """Receives the progress of a load."""

    def advance(self, commands: int, size: int) -> None:
        """This many more commands, of this many bytes, are acknowledged."""
        ...


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        commands, seconds = task.fields["commands"], task.elapsed or 0.0
        return Text(f"{commands:,} commands, {commands / seconds if seconds else 0:,.0f}/s")


class _CommandBar:
    def __init__(self, bar: Bar, name: str, total_bytes: int | None) -> None:
        self._bar = bar
        self._commands = 0
        self._task = bar.add_task(escaped(name), total=total_bytes, commands=0)

    def advance(self, commands: int, size: int) -> None:
        self._commands += commands
        self._bar.update(self._task, advance=size, commands=self._commands)


@contextmanager
def shown_progress(name: str, total_bytes: int | None, *, hidden: bool) -> Generator[Progress | None, None, None]:
    """A bar of commands while the block runs; None if it is hidden or stderr is not a terminal."""
    console = EscapingConsole(stderr=True)
    if hidden or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Rate(), TimeRemainingColumn())
    with Bar(*columns, console=console, refresh_per_second=5) as bar:
        yield _CommandBar(bar, name, total_bytes)


@contextmanager
def shown_bytes(name: str, total_bytes: int, *, hidden: bool) -> Generator[Callable[[int], None], None, None]:
    """A bar of bytes while the block runs; call the result with the number of bytes done."""
    console = EscapingConsole(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(escaped(name), total=total_bytes)
        yield lambda size: bar.advance(task, size)
