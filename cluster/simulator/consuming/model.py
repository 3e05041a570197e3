"""A model of the cursors: the result of each row of a `cursors` record, computed with the plainest code.

It shares nothing with `sm/cursors.py`. Two rules on which consumers rely are also checked in what a node answers: a
cursor never goes back, and a consumer that has lost a cursor does not move it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NEVER_BACK = "a cursor never goes back"
OLD_TOKEN = "a row with an old token is never accepted"  # noqa: S105 - a rule, and no password


class Position(NamedTuple):
    """A cursor as the log leaves it."""

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    hold_bytes: int
    token: bytes


class CursorModel:
    """The cursors after the committed frames so far, and after each of them."""

    def __init__(self) -> None:
        self.table: dict[str, Position] = {}
        """Replaced, and not changed, by a record."""
        self.at: dict[int, dict[str, Position]] = {0: self.table}
        """The cursors by the index that a frame ends at."""

    def sorted_at(self, index: int) -> Sequence[tuple[str, tuple[int, int, bytes]]]:
        """The cursors where a frame ends at `index`, by name; none if no frame does."""
        return sorted(self.at.get(index, {}).items())

    def ends_at(self, index: int) -> None:
        """Note that a frame ends at `index`."""
        self.at[index] = self.table

    def apply(self, end: int, fields: Mapping[str, Any]) -> list[object]:
        """Carry out the `cursors` record at index `end`; the result of each row."""
        self.table = dict(self.table)
        results: list[object] = [self._set(end, row) for row in fields["set"]]
        return results + [self._delete(name) for name in fields["delete"]]

    def end_history(self) -> None:
        """No token counts from here on: another history begins."""
        self.table = {name: position._replace(token=b"") for name, position in self.table.items()}

    def broken_by(self, fields: Mapping[str, Any], results: Sequence[Any]) -> str:
        """The rule that these results of the next record break, in words; "" if they break none. Before `apply`."""
        table = {name: (position.index, position.token) for name, position in self.table.items()}
        for (name, _, _, rewind, _, token, take), result in zip(fields["set"], results, strict=False):
            if len(result) > 1:
                continue  # It was refused.
            before, holder = table.get(name, (0, b""))
            if result[0] < before and not rewind:
                return NEVER_BACK
            if token and not take and token != holder:
                return OLD_TOKEN
            table[name] = result[0], token or b""
        return ""

    def _set(self, end: int, row: Sequence[Any]) -> list[object]:
        name, index, _, _, hold, token, take = row
        present = self.table.get(name)
        if code := _why_not(end, present, row):
            return [code, present and present.index]
        if present is None:
            present = Position(index, 0, b"")
        index = present.index if take else index
        self.table[name] = Position(index, present.hold_bytes if hold is None else hold, token or b"")
        return [index]

    def _delete(self, name: str) -> list[object]:
        if name not in self.table:
            return ["CURSOR_UNKNOWN", None]
        return [self.table.pop(name).index]


def _why_not(end: int, present: Position | None, row: Sequence[Any]) -> str:
    """The code with which a row is refused in the record at index `end`; "" if it is carried out."""
    _, index, expected, rewind, _, token, take = row
    if present is None:
        if expected is not None or (token and not take):
            return "CURSOR_UNKNOWN"
        return "CURSOR_BEYOND" if index > end else ""
    if token and not take and token != present.token:
        return "CURSOR_TAKEN"
    if index == present.index and not take:
        return ""
    if expected is not None and expected != present.index:
        return "CURSOR_MOVED"
    if take:
        return ""
    if index < present.index and not rewind:
        return "CURSOR_BACK"
    return "CURSOR_BEYOND" if index > end else ""
