"""Cursors: named positions in the log that last, so that a reader finds where it was.

A cursor at `index` says that its reader needs no record below it. `cursors` records set them, and the results of these
records go into the digest. A record is a map, a row of `set` an array:

    {type: "cursors", set: [[name, index, expected or nil, rewind, hold_bytes or nil, token or nil, take], ...]}
    {type: "cursors", set: [[..., take, owner or nil], ...]}        with an owner, once `cursor_owners` is in use
    {type: "cursors", delete: [name, ...]}

and its result one row for each: [index], the cursor's index now, or [code, index], why nothing was changed.

- A cursor never goes back, unless `rewind`. Setting it to where it is succeeds, so that a request may be repeated.
- `expected` is the index that the cursor must have; otherwise CURSOR_MOVED.
- Nothing is beyond the end: `index` is at most that of the record itself. It is judged here, since only the order of
  the log says where the end was.
- Whoever begins to consume takes the cursor: `take`, with a new token. That keeps the index of a cursor that exists,
  and creates another one at `index`. From then on a row with an older token is refused (CURSOR_TAKEN), so two holders
  of a cursor do not move each other. A row without a token is an operator's: it passes, and ends the holder's token.
- A cursor may have an owner, the name of a token. `owner` sets it, and "" ends it; nil, or a row without that field,
  leaves it as it is. A new cursor has none unless its row says so. A leader does not append what would move or delete
  another name's cursor, nor what would exceed a limit of one name or of all holds (`cluster/node/tables/cursors.py`).
  That is only admission: here an owner refuses nothing, or replicas of two versions would differ.
- A `history` record ends all tokens: a holder's records may be other ones in the new history, so it must take again.

Cursors do not expire: a reader that comes back once a month would otherwise begin anew, and nobody would notice.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .numbers import number_of

MAX_CURSORS = 10_000
MAX_OWNED_CURSORS = MAX_CURSORS // 2
"""How many a leader lets one name create, unless it is an admin's: others find room."""
MAX_CURSOR_ROWS = 1_000
"""In one record."""
CURSOR_NAME_BYTES = 200
TOKEN_BYTES = 16
MOVED = "CURSOR_MOVED"
BACK = "CURSOR_BACK"
BEYOND = "CURSOR_BEYOND"
TAKEN = "CURSOR_TAKEN"
UNKNOWN = "CURSOR_UNKNOWN"
FULL = "CURSORS_FULL"

_SHARE = re.compile(r".+/(0|[1-9][0-9]{0,4})-([1-9][0-9]{0,4})", re.DOTALL)
MAX_SHARDS = 65_536


class Cursor(NamedTuple):
    """A cursor: its reader needs no record below `index`. Its holder has `token`; empty without one, as `owner` is."""

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    hold_bytes: int
    """How many bytes of the log it may keep from expiring."""
    token: bytes
    owner: str = ""


class CursorRow(NamedTuple):
    """A row of `set`. Fields that are left out: no condition, no rewind, the hold as it is, an operator's, the owner as
    it is.
    """

    name: str
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    expected: int | None = None
    rewind: bool = False
    hold_bytes: int | None = None
    token: bytes | None = None
    take: bool = False
    owner: str | None = None


class CursorOutcome(NamedTuple):
    """What became of a row: `code` is None if it was done. `index` is the cursor's index now, None if there is none."""

    code: str | None
    index: int | None  # type: ignore[assignment]  # Hides tuple.index, which is unused.

    @property
    def result(self) -> list[str | int | None]:
        """As in the record's result."""
        return [self.index] if self.code is None else [self.code, self.index]


class Cursors:
    """One replica's cursors. Only the applier changes them, in the order of the log."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._names: list[str] = []
        """Ascending."""
        self._holding: set[str] = set()
        self._owned: Counter[str] = Counter()
        self.hold_bytes = 0
        """The sum of all holds: so much of the log they may keep together."""

    def __len__(self) -> int:
        return len(self._cursors)

    def find(self, name: str) -> Cursor | None:
        """The cursor of this name; None if there is none."""
        return self._cursors.get(name)

    def owned_by(self, owner: str) -> int:
        """How many cursors belong to this name."""
        return self._owned[owner]

    def page(self, after: str, most: int, prefix: str) -> tuple[list[tuple[str, Cursor]], str | None]:
        """(cursors, next `after`): those whose names come after `after` and start with `prefix`, at most `most`.

        Sorted by name. The next `after` is None on the last page.
        """
        names = self._names
        first = bisect_right(names, after) if after >= prefix else bisect_left(names, prefix)
        found: list[tuple[str, Cursor]] = []
        for name in names[first : first + most + 1]:
            if not name.startswith(prefix):
                return found, None
            if len(found) == most:
                return found, found[-1][0]
            found.append((name, self._cursors[name]))
        return found, None

    def all(self) -> list[tuple[str, Cursor]]:
        """Every cursor with its name, by name."""
        return [(name, self._cursors[name]) for name in self._names]

    def holding(self) -> list[tuple[str, Cursor]]:
        """Those that may hold the log, in any order."""
        return [(name, self._cursors[name]) for name in self._holding]

    def apply(self, index: int, fields: Mapping[str, object]) -> list[list[str | int | None]]:
        """Carry out the `cursors` record at `index`; the result of each row, those of `set` first.

        Raises:
            ValueError, TypeError: it is not such a record; nothing was changed.
        """
        if unknown := sorted(fields.keys() - {"type", "set", "delete"}):
            raise ValueError(f"a cursors record has a field {unknown[0]!r:.40}, which this version does not know")
        rows = [_row_of(row) for row in _list_of(fields.get("set", []))]
        names = [_name_of(name) for name in _list_of(fields.get("delete", []))]
        outcomes = [self.set(row, index) for row in rows]
        return [outcome.result for outcome in (*outcomes, *map(self.delete, names))]

    def set(self, row: CursorRow, end: int) -> CursorOutcome:
        """Set or take a cursor; `end` is the index of the record. Nothing changes unless the code is None."""
        cursor = self._cursors.get(row.name)
        index = None if cursor is None else cursor.index
        if (code := self._refusal(row, cursor, end)) is not None:
            return CursorOutcome(code, index)
        if cursor is None:
            insort(self._names, row.name)
            cursor = Cursor(row.index, 0, b"")
        hold_bytes = cursor.hold_bytes if row.hold_bytes is None else row.hold_bytes
        owner = cursor.owner if row.owner is None else row.owner
        kept = Cursor(cursor.index if row.take else row.index, hold_bytes, row.token or b"", owner)
        self._put(row.name, kept)
        return CursorOutcome(None, kept.index)

    def _refusal(self, row: CursorRow, cursor: Cursor | None, end: int) -> str | None:
        """Why a row does nothing; None if it is to be done."""
        if cursor is None:
            if row.expected is not None or (row.token and not row.take):
                return UNKNOWN
            if row.index > end:
                return BEYOND
            return FULL if len(self._cursors) >= MAX_CURSORS else None
        if row.token and not row.take and row.token != cursor.token:
            return TAKEN
        if row.index == cursor.index and not row.take:
            return None
        if row.expected not in (None, cursor.index):
            return MOVED
        if row.take:
            return None
        if row.index < cursor.index and not row.rewind:
            return BACK
        return BEYOND if row.index > end else None

    def delete(self, name: str) -> CursorOutcome:
        """Forget a cursor; the outcome has the index that it had."""
        cursor = self._cursors.get(name)
        if cursor is None:
            return CursorOutcome(UNKNOWN, None)
        self._uncount(name)
        del self._cursors[name]
        self._names.remove(name)
        return CursorOutcome(None, cursor.index)

    def end_history(self) -> None:
        """End all tokens: a `history` record begins another history."""
        for name, cursor in self._cursors.items():
            self._cursors[name] = cursor._replace(token=b"")

    def restore(self, name: object, cursor: Cursor) -> None:
        """Put back a cursor of a snapshot, which has them by name.

        Raises:
            ValueError: it is not after the one before, there are too many, or it cannot have this name.
        """
        name = _name_of(name)
        if self._names and name <= self._names[-1]:
            raise ValueError(f"the cursor {name!r:.60} is not in its order, or there twice")
        if len(self._names) >= MAX_CURSORS:
            raise ValueError(f"there are more than {MAX_CURSORS} cursors")
        self._names.append(name)
        self._put(name, cursor)

    def _put(self, name: str, cursor: Cursor) -> None:
        self._uncount(name)
        self._cursors[name] = cursor
        if cursor.hold_bytes:
            self._holding.add(name)
            self.hold_bytes += cursor.hold_bytes
        if cursor.owner:
            self._owned[cursor.owner] += 1

    def _uncount(self, name: str) -> None:
        """Leave a cursor out of what is counted, if it is there."""
        cursor = self._cursors.get(name)
        if cursor is None:
            return
        self._holding.discard(name)
        self.hold_bytes -= cursor.hold_bytes
        if cursor.owner:
            self._owned[cursor.owner] -= 1
            if not self._owned[cursor.owner]:
                del self._owned[cursor.owner]


def share_of(name: str) -> tuple[int, int]:
    """(i, n): the share of the log that a cursor's reader reads, the records with index % n == i; (0, 1) is all of it.

    A name that ends in `/i-n`, as in `mail/2-4`, is that of a share.
    """
    match = _SHARE.fullmatch(name)
    shard, shards = (int(match[1]), int(match[2])) if match else (0, 1)
    return (shard, shards) if shard < shards <= MAX_SHARDS else (0, 1)


def cursors_record(rows: Iterable[CursorRow] = (), deleted: Iterable[str] = ()) -> dict[str, object]:
    """The fields of a `cursors` record. A row that leaves the owner as it is has no field for it."""
    packed = [list(row) if row.owner is not None else list(row[:-1]) for row in rows]
    return {"type": "cursors", "set": packed, "delete": list(deleted)}


def _list_of(value: object) -> list[object]:
    if type(value) is not list or len(value) > MAX_CURSOR_ROWS:
        raise ValueError(f"a cursors record has lists of at most {MAX_CURSOR_ROWS} rows")
    return value


def _name_of(value: object) -> str:
    if type(value) is not str or not 0 < len(value.encode()) <= CURSOR_NAME_BYTES:
        raise ValueError(f"a cursor's name is text of 1 to {CURSOR_NAME_BYTES} bytes, not {value!r:.40}")
    return value


def _row_of(value: object) -> CursorRow:
    match value:
        case [name, index, expected, bool(rewind), hold_bytes, bytes() | None as token, bool(take), *rest]:
            found = CursorRow(_name_of(name), number_of(index), None, rewind, None, token, take, _owner_of(rest))
        case _:
            raise ValueError(f"{value!r:.80} is not a row of a cursors record")
    if (take and token is None) or (token is not None and len(token) != TOKEN_BYTES):
        raise ValueError(f"{value!r:.80} has no token of {TOKEN_BYTES} bytes")
    return found._replace(
        expected=None if expected is None else number_of(expected),
        hold_bytes=None if hold_bytes is None else number_of(hold_bytes),
    )


def _owner_of(rest: list[object]) -> str | None:
    """The owner in what follows the first seven fields of a row."""
    match rest:
        case [] | [None]:
            return None
        case [str(owner)]:
            return owner
        case _:
            raise ValueError(f"{rest!r:.40} is not the owner of a cursor")
