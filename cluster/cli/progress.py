"""A progress bar on a terminal; nothing elsewhere."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text


class Progress(Protocol):
    """Who is told how far a load is."""

    def advance(self, commands: int, size: int) -> None:
        """So many more commands, of so many bytes, are acknowledged."""
        ...


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        commands, seconds = task.fields["commands"], task.elapsed or 0.0
        return Text(f"{commands:,} commands, {commands / seconds if seconds else 0:,.0f}/s")


class _Shown:
    def __init__(self, bar: Bar, name: str, total_bytes: int | None) -> None:
        self._bar = bar
        self._commands = 0
        self._task = bar.add_task(name, total=total_bytes, commands=0)

    def advance(self, commands: int, size: int) -> None:
        self._commands += commands
        self._bar.update(self._task, advance=size, commands=self._commands)


@contextmanager
def shown_progress(name: str, total_bytes: int | None, *, hidden: bool) -> Generator[Progress | None, None, None]:
    """A bar on stderr while the block runs; None where stderr is no terminal or it is to be hidden."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), _Rate(), TimeRemainingColumn())
    with Bar(*columns, console=console, refresh_per_second=5) as bar:
        yield _Shown(bar, name, total_bytes)


@contextmanager
def shown_bytes(name: str, total_bytes: int, *, hidden: bool) -> Generator[Callable[[int], None], None, None]:
    """A bar on stderr of so many bytes, to be told how many more are done; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(name, total=total_bytes)
        yield lambda size: bar.advance(task, size)
