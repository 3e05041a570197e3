"""A model of the cursors: the result of each row of a `cursors` record, computed with the plainest code.

It shares nothing with `sm/cursors.py`. Two rules on which consumers rely are also checked in what a node answers: a
cursor never goes back, and a consumer that has lost a cursor does not move it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

NEVER_BACK = "a cursor never goes back"
OLD_TOKEN = "a row with an old token is never accepted"  # noqa: S105 - a rule, and no password


class Position(NamedTuple):
    """A cursor as the log leaves it."""

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    hold_bytes: int
    token: bytes
    owner: str


class Row(NamedTuple):
    """A row of `set`, as the log has it."""

    name: str
    index: int  # type: ignore[assignment]  # As above.
    expected: int | None
    rewind: bool
    hold_bytes: int | None
    token: bytes | None
    take: bool
    owner: str | None


class CursorModel:
    """The cursors after the committed frames so far, and after each of them."""

    def __init__(self) -> None:
        self.table: dict[str, Position] = {}
        """Replaced, and not changed, by a record."""
        self.at: dict[int, dict[str, Position]] = {0: self.table}
        """The cursors by the index that a frame ends at."""

    def sorted_at(self, index: int) -> Sequence[tuple[str, tuple[int, int, bytes, str]]]:
        """The cursors where a frame ends at `index`, by name; none if no frame does."""
        return sorted(self.at.get(index, {}).items())

    def ends_at(self, index: int) -> None:
        """Note that a frame ends at `index`."""
        self.at[index] = self.table

    def apply(self, end: int, fields: Mapping[str, object]) -> list[object]:
        """Carry out the `cursors` record at index `end`; the result of each row."""
        self.table = dict(self.table)
        results: list[object] = [self._set(end, row) for row in rows_of(fields)]
        return results + [self._delete(name) for name in _list_in(fields, "delete")]

    def end_history(self) -> None:
        """No token counts from here on: another history begins."""
        self.table = {name: position._replace(token=b"") for name, position in self.table.items()}

    def broken_by(self, fields: Mapping[str, object], results: Sequence[object]) -> str:
        """The rule that these results of the next record break, in words; "" if they break none. Before `apply`."""
        table = {name: (position.index, position.token) for name, position in self.table.items()}
        for row, result in zip(rows_of(fields), results, strict=False):
            match result:
                case [int(index)]:
                    before, holder = table.get(row.name, (0, b""))
                    if index < before and not row.rewind:
                        return NEVER_BACK
                    if row.token and not row.take and row.token != holder:
                        return OLD_TOKEN
                    table[row.name] = index, row.token or b""
                case _:
                    pass  # It was refused.
        return ""

    def _set(self, end: int, row: Row) -> list[object]:
        present = self.table.get(row.name)
        if code := _why_not(end, present, row):
            return [code, None if present is None else present.index]
        if present is None:
            present = Position(row.index, 0, b"", "")
        index = present.index if row.take else row.index
        hold_bytes = present.hold_bytes if row.hold_bytes is None else row.hold_bytes
        owner = present.owner if row.owner is None else row.owner
        self.table[row.name] = Position(index, hold_bytes, row.token or b"", owner)
        return [index]

    def _delete(self, name: object) -> list[object]:
        if not isinstance(name, str) or name not in self.table:
            return ["CURSOR_UNKNOWN", None]
        return [self.table.pop(name).index]


def rows_of(fields: Mapping[str, object]) -> list[Row]:
    """The rows of `set` in a `cursors` record. Raises ValueError."""
    return [_row_of(row) for row in _list_in(fields, "set")]


def _row_of(row: object) -> Row:
    match row:
        case [
            str(name),
            int(index),
            int() | None as expected,
            bool(rewind),
            int() | None as hold_bytes,
            bytes() | None as token,
            bool(take),
            *rest,
        ]:
            return Row(name, index, expected, rewind, hold_bytes, token, take, _owner_of(rest))
        case _:
            raise ValueError(f"{row!r} is not a row")


def _owner_of(rest: Sequence[object]) -> str | None:
    match rest:
        case []:
            return None
        case [str(owner)]:
            return owner
        case _:
            raise ValueError(f"{rest!r} is not an owner")


def _list_in(fields: Mapping[str, object], name: str) -> list[object]:
    match fields[name]:
        case list(rows):
            return rows
        case other:
            raise ValueError(f"{other!r} is not a list of rows")


def _why_not(end: int, present: Position | None, row: Row) -> str:
    """The code with which a row is refused in the record at index `end`; "" if it is carried out."""
    index, expected, rewind, token, take = row.index, row.expected, row.rewind, row.token, row.take
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
