"""The content of a snapshot's chunks, joined: sessions and cursors as rows, then the machine's state to the end.

    row     length u32, one msgpack array; a length of 0 ends the rows

    [1, sheet]                                           a sheet of replies; sheets are numbered from 0
    [2, id, name or nil, next_sequence, tail_start, block_starts, blocks, tail_size, tail]
            an open session, the least recently used first
            blocks: [[sheet, position, of_runs, size], ...] tail: msgpack [commands, results, refused], packed as bytes
    [4, id, name or nil, last use, next_sequence, ...]   the same once sessions expire: last use is a timestamp
    [3, [[old id, id that took over], ...]]              fenced ids, oldest first
    [5, [[id, owner], ...]]                              the open sessions that have an owner, by id
    [6, [[name, index, hold_bytes, token], ...]]         the cursors, by name; the token is empty without a holder
    [6, [[name, index, hold_bytes, token, owner], ...]]  the row of one that has an owner

Each sheet occurs once, before the first session that refers to it; sessions that shared it share it after a restore.
"""

from collections.abc import Iterable, Iterator

from quire.log import PayloadInvalid, check_containers, pack
from quire.log.packing import ExtType, unpack_trusted

from ..cursors import TOKEN_BYTES, Cursor, Cursors
from ..errors import RestoreFailed, SnapshotDamaged, raised_at, reason_of
from ..machine import StateMachine
from ..numbers import number_of
from ..sessions.replies import Replies
from ..sessions.table import Sessions

SHEET_ROW, SESSION_ROW, FENCED_ROW, EXPIRING_ROW, OWNED_ROW, CURSORS_ROW = 1, 2, 3, 4, 5, 6
ROWS_IN_A_ROW = 10_000
MAX_ROW_BYTES = 512 << 20
"""A sheet has 8 MiB at most. A tail is counted by averages, and may have 64 commands of a largest request."""
MAX_ROW_VALUES = 1 << 20
"""In ROWS_IN_A_ROW rows, or in a session's blocks, one for each command of its window at most: some 60,000."""

_LENGTH_BYTES = 4
_END = bytes(_LENGTH_BYTES)


def content_of(machine: StateMachine, sessions: Sessions, cursors: Cursors) -> Iterator[bytes]:
    """The content, in pieces of any length. Call and read it between two applies."""
    sheets: dict[int, int] = {}
    for session, name, replies in sessions.all_open():
        for block in replies.blocks:
            if id(block.sheet) not in sheets:
                sheets[id(block.sheet)] = len(sheets)
                yield from _row([SHEET_ROW, block.sheet])
        row = replies.to_row(lambda sheet: sheets[id(sheet)])
        if sessions.expiring_since is None:
            yield from _row([SESSION_ROW, session, name, *row])
        else:
            yield from _row([EXPIRING_ROW, session, name, sessions.last_use(session), *row])
    placed = [(name, *(cursor if cursor.owner else cursor[:-1])) for name, cursor in cursors.all()]
    for kind, rows in (
        (FENCED_ROW, sessions.all_fenced()),
        (OWNED_ROW, sessions.all_owned()),
        (CURSORS_ROW, placed),
    ):
        for start in range(0, len(rows), ROWS_IN_A_ROW):
            yield from _row([kind, rows[start : start + ROWS_IN_A_ROW]])
    yield _END
    yield from machine.snapshot()


def _row(fields: list[object]) -> Iterator[bytes]:
    packed = pack(fields)
    yield len(packed).to_bytes(_LENGTH_BYTES, "little")
    yield packed


def restore_content(
    pieces: Iterable[bytes], machine: StateMachine, sessions: Sessions, cursors: Cursors, name: str
) -> None:
    """Fill a machine and empty tables of sessions and cursors from a snapshot's content; `name` is for messages.

    After any exception, including one raised by `pieces`, discard all three.

    Raises:
        SnapshotDamaged: the content does not have its format.
        RestoreFailed: the machine's `restore` raised; the tables are filled.
        And what `pieces` raises.
    """
    reader = _Reader(pieces, name)
    try:
        _restore_tables(reader, sessions, cursors, name)
    except (PayloadInvalid, ValueError, TypeError, LookupError, OverflowError) as error:
        raise SnapshotDamaged(snapshot=name, reason=f"its tables cannot be read ({error})") from error
    fault: BaseException | None = None
    try:
        machine.restore(reader.rest())
    except (Exception, SystemExit) as raised:  # noqa: BLE001  # It is raised below.
        fault = raised
    if reader.failure is not None:  # Whatever the machine made of it.
        raise reader.failure
    for _ in reader.rest():  # Read on to the end: a machine that stops early must not hide a damaged chunk.
        pass
    if fault is not None:
        reason = f"{reason_of(fault)} at {raised_at(fault, type(machine))}"
        raise RestoreFailed(snapshot=name, reason=reason) from fault


def _restore_tables(reader: "_Reader", sessions: Sessions, cursors: Cursors, name: str) -> None:
    sheets: list[bytes] = []
    while (row := reader.row()) is not None:
        match row:
            case [1, bytes(sheet)]:
                sheets.append(sheet)
            case [2, session, str() | None as session_name, *fields]:
                sessions.put(_id(session), session_name, Replies.from_row(fields, sheets))
            case [4, session, str() | None as session_name, used_at, *fields]:
                replies = Replies.from_row(fields, sheets)
                replies.used_at = number_of(used_at)
                sessions.put(_id(session), session_name, replies)
            case [3, list(pairs)]:
                sessions.put_fenced([(number_of(old), number_of(successor)) for old, successor in pairs])
            case [5, list(pairs)]:
                sessions.put_owned([(_id(session), _text(owner)) for session, owner in pairs])
            case [6, list(rows)]:
                for cursor, *fields in rows:
                    cursors.restore(cursor, _cursor(*fields))
            case _:
                raise SnapshotDamaged(snapshot=name, reason=f"an unknown row {row!r:.40}")


def _cursor(index: object, hold_bytes: object, token: object, *owner: object) -> Cursor:
    """Raises TypeError, ValueError."""
    if type(token) is not bytes or len(token) not in (0, TOKEN_BYTES):
        raise ValueError(f"{token!r:.40} is not a cursor's token")
    return Cursor(number_of(index), number_of(hold_bytes), token, *map(_text, owner))


def _id(value: object) -> int:
    """A session's id, which is negated once its history has ended. Raises ValueError."""
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is not a session's id")
    return value


def _text(value: object) -> str:
    if type(value) is not str or not value:
        raise ValueError(f"{value!r:.40} is not a name")
    return value


class _Reader:
    """Reads rows, then the rest, from pieces of any length."""

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self._pieces = iter(pieces)
        self._name = name
        self._buffer = bytearray()
        self._place = 0
        self.failure: Exception | None = None
        """What the pieces raised while `rest` read them."""

    def row(self) -> list[object] | None:
        """The next row, or None after the last one. Raises PayloadInvalid, ValueError, SnapshotDamaged."""
        length = int.from_bytes(self._take(_LENGTH_BYTES), "little")
        if not length:
            return None
        if length > MAX_ROW_BYTES:
            raise SnapshotDamaged(snapshot=self._name, reason=f"a row of its tables has {length:,} bytes")
        packed = self._take(length)
        if length > MAX_ROW_VALUES:  # A shorter row cannot hold more.
            check_containers(packed, MAX_ROW_VALUES, MAX_ROW_VALUES)
        row = unpack_trusted(packed, ExtType)
        if type(row) is not list:  # Not even nil, which would count as the end.
            raise ValueError(f"{row!r:.40} is not a row")
        return row

    def rest(self) -> Iterator[bytes]:
        """Everything after the rows."""
        if self._place < len(self._buffer):
            rest, self._place = bytes(self._buffer[self._place :]), len(self._buffer)
            yield rest
        try:
            for piece in self._pieces:  # noqa: UP028  # That would close the pieces if a machine stops early.
                yield piece
        except Exception as failure:
            self.failure = failure
            raise

    def _take(self, length: int) -> bytes:
        while len(self._buffer) - self._place < length:
            del self._buffer[: self._place]
            self._place = 0
            piece = next(self._pieces, None)
            if piece is None:
                raise SnapshotDamaged(snapshot=self._name, reason="its content ends inside the tables")
            self._buffer += piece
        self._place += length
        return bytes(self._buffer[self._place - length : self._place])
