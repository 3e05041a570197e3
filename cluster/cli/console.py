"""Tables and bars: a console of rich that obeys nothing in what others named, and lets no terminal do so."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ..terminal import EscapingStream, escaped


class EscapingConsole(Console):
    """Shows plain strings as they are, without markup and emoji codes, and escapes what a terminal obeys.

    A line feed begins another line in a cell of a table: names are escaped before they get here.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """On stdout or stderr; `options` are those of `rich.console.Console`."""
        file = sys.stderr if stderr else sys.stdout
        # A console's own sequences, such as colours, are for the terminal.
        options.setdefault("file", file.below if isinstance(file, EscapingStream) else file)
        super().__init__(stderr=stderr, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, escaped."""
        return super().render_str(escaped(text, keep="\n"), **options)
