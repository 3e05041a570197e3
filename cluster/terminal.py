r"""Escapes the characters that a terminal interprets or hides, in everything that quire prints and logs.

Values, names, addresses and error texts come from clients, peers and files. If they were printed unchanged, an escape
sequence could move the cursor, set the window's title or answer for the user; a line feed could start a line that looks
like quire's own; a bidirectional mark could show a text in a different order. So these are escaped, on a terminal and
in a pipe alike, since a pipe often ends at a terminal:

    C0, DEL and C1 control characters       U+0000 to U+001F, U+007F to U+009F
    bidirectional marks                     U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069
    line and paragraph separators           U+2028, U+2029
    characters without width                U+00AD, U+180E, U+200B to U+200D, U+2060 to U+206F, U+FEFF,
                                            U+FFF9 to U+FFFB, tags (U+E0000 to U+E0FFF)
    lone surrogates                         U+D800 to U+DFFF, which no encoding has

In text they become `\n`, `\x1b` or `\u202e`. Backslashes are not escaped, so only JSON distinguishes a line feed from a
literal `\n`. In JSON they become `\u000a`, `\u001b` or `\u202e`, which a parser reads as the same character.
"""

import io
import re
from typing import BinaryIO, TextIO

_OBEYED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff]"
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: str, keep: str = "") -> str:
    """The text on one line, with the characters that a terminal interprets escaped, except those in `keep`."""
    if text.isascii() and text.isprintable():  # Python calls selectors among the tags printable.
        return text
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def escaped_json(text: str) -> str:
    """JSON without line breaks between its parts, escaped; it stands for the same value."""
    if text.isascii() and "\x7f" not in text:  # An encoder escapes C0 itself.
        return text
    return _OBEYED.sub(lambda found: _escape_json(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


class EscapingStream(io.TextIOBase):
    """A text stream that escapes all but line feeds and tabs and passes the rest on. For tracebacks and argparse.

    It is a last resort: a line feed within a name must be escaped earlier, by the code that prints the line.
    """

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def write(self, text: str) -> int:
        """Write the text, escaped; return its length."""
        self.below.write(escaped(text, keep="\n\t"))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self.below.flush()

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self.below.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below."""
        return self.below.fileno()

    @property
    def buffer(self) -> BinaryIO:
        """The binary stream below, which escapes nothing."""
        return self.below.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream below."""
        return self.below.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """That of the stream below."""
        return self.below.errors
