"""Tables and progress bars. Text from others is printed without markup and with its control characters escaped."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ..terminal import EscapingStream, escaped
from .output import OutputLost


class EscapingConsole(Console):
    """Prints plain strings without interpreting markup or emoji codes, and escapes control characters.

    A line feed starts a new line in a table cell, so names are escaped before they get here.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """On stdout or stderr; `options` are those of `rich.console.Console`."""
        file = sys.stderr if stderr else sys.stdout
        # A console's own sequences, such as colours, are for the terminal.
        options.setdefault("file", file.below if isinstance(file, EscapingStream) else file)
        super().__init__(stderr=stderr, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Raise OutputLost, as everything that prints does."""
        raise OutputLost(BrokenPipeError())

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, escaped."""
        return super().render_str(escaped(text, keep="\n"), **options)
