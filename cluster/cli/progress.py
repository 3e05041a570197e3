"""Progress bars on stderr, if it is a terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ..terminal import escaped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn


class Progress(Protocol):
    """Receives the progress of a load."""

    def advance(self, commands: int, size: int) -> None:
        """This many more commands, of this many bytes, are acknowledged."""
        ...


class _CommandBar:
    def __init__(self, bar: "Bar", name: str, total_bytes: int | None) -> None:
        self._bar = bar
        self._commands = 0
        self._task = bar.add_task(escaped(name), total=total_bytes, commands=0)

    def advance(self, commands: int, size: int) -> None:
        self._commands += commands
        self._bar.update(self._task, advance=size, commands=self._commands)


@contextmanager
def shown_progress(name: str, total_bytes: int | None, *, hidden: bool) -> Generator[Progress | None, None, None]:
    """A bar of commands while the block runs; None if it is hidden or stderr is not a terminal."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            commands, seconds = task.fields["commands"], task.elapsed or 0.0
            return Text(f"{commands:,} commands, {commands / seconds if seconds else 0:,.0f}/s")

    with _bar(Rate()) as bar:
        yield _CommandBar(bar, name, total_bytes)


@contextmanager
def shown_bytes(name: str, total_bytes: int, *, hidden: bool) -> Generator[Callable[[int], None], None, None]:
    """A bar of bytes while the block runs; call the result with the number of bytes done."""
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import DownloadColumn

    with _bar(DownloadColumn()) as bar:
        task = bar.add_task(escaped(name), total=total_bytes)
        yield lambda size: bar.advance(task, size)


def _bar(amount: "ProgressColumn") -> "Bar":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from .console import EscapingConsole

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
    return Progress(*columns, console=EscapingConsole(stderr=True), refresh_per_second=5)
