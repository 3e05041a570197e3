"""Consumers: clients that take cursors, commit positions, and lose the cursors to each other; each answer is checked.

All consumers of a history share a few cursors, so holders meet. A consumer reads nothing: it commits the ends of frames
that are committed. A record without an answer is sent again, at another node; it may then be in the log twice.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, cast

from quire.log import Kind, encode_system
from quire.replication import Write
from quire.sm import TOKEN_BYTES, CursorRow, cursors_record

from ...node.writing import WriteReply
from ..checks import Checks, Violation
from ..clients import MAX_UNDER_WAY, Attempt, Client, Habits, Operation, Order
from ..clock import Schedule
from ..node.node import Node
from .model import Row, rows_of

FIRST_CONSUMER = 100
"""The first consumer's number as a client; the others, and a prober, have lower ones."""
CURSORS = ("mail", "mail/0-2", "orders")
OWNERS = (None, None, "ours", "theirs", "")
"""What a take says of the owner. Whose cursor it is refuses nothing here: that is a leader's admission."""
ROWS = (1, 2, 3, 4)
"""How many rows a record has: a leader coalesces the commits of many."""
TAKES = 0.2
"""How often it chooses among all cursors, and takes one that it does not hold."""
RESTARTS = 0.06
DELETES = 0.08
HOLDS = 0.1
MOST_AHEAD = 4
"""A commit moves a cursor over so many frames at most."""
CATCHES_UP = 0.2
BEYOND = (1, 3, 1_000)
"""So far beyond what is committed; records that are appended meanwhile may reach the lower ones."""
WAYS = {"on": 4, "again": 1, "back": 2, "rewind": 1, "expecting": 3, "beyond": 3, "late": 2, "operator": 1}
"""How often a row commits in each way."""


class Held(NamedTuple):
    """A cursor that a consumer believes it holds: where it is, and by which token."""

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    token: bytes


class Consumer(Client):
    """A client that writes `cursors` records alone."""

    def __init__(
        self, name: str, schedule: Schedule, nodes: list[Node], checks: Checks, order: Order, habits: Habits, seed: str
    ) -> None:
        super().__init__(name, schedule, nodes, checks, order, habits, seed)
        self.think_us = habits.commit_us
        self.held: dict[str, Held] = {}
        self.former: dict[str, Held] = {}
        """What it held last, before it restarted or lost the cursor: late commits use that."""

    def continue_in(self, checks: Checks, order: Order) -> None:
        """From now on the records are those of another history. It holds its cursors still, as far as it knows."""
        self.under_way.clear()
        self.checks, self.order = checks, order

    def heir(self, name: str, nodes: list[Node], checks: Checks, order: Order, seed: str) -> "Consumer":
        """A consumer of another history, which believes that it holds the same cursors."""
        heir = Consumer(name, self.schedule, nodes, checks, order, self.habits, seed)
        heir.held, heir.former = dict(self.held), dict(self.former)
        return heir

    def want_last(self) -> None:
        """Take every cursor once more, after the faults."""
        self._write([self._take(name) for name in CURSORS])

    # Rows

    def _want(self) -> None:
        random = self.random
        if random.random() < self.habits.wander_chance:
            self._choose_node()
        if len(self.under_way) < MAX_UNDER_WAY:
            rows = [self._row(self._name_of_one()) for _ in range(random.choice(ROWS))]
            self._write(rows, [random.choice(CURSORS)] if random.random() < DELETES else [])

    def _write(self, rows: list[CursorRow], deleted: Sequence[str] = ()) -> None:
        self._begin(Operation("cursors", self.order.began(), [cursors_record(rows, deleted)]))

    def _name_of_one(self) -> str:
        """A cursor, mostly one that it holds."""
        held = list(self.held)
        return self.random.choice(held if held and self.random.random() >= TAKES else CURSORS)

    def _row(self, name: str) -> CursorRow:
        random, held = self.random, self.held.get(name)
        if held is not None and random.random() < RESTARTS:
            self._lose(name)
            held = None
        if held is None:
            return self._take(name)
        row, low = CursorRow(name, self._ahead(held.index), token=held.token), random.randint(0, held.index)
        match random.choices(list(WAYS), list(WAYS.values()))[0]:
            case "again":
                return row._replace(index=held.index)
            case "back":
                return row._replace(index=low)
            case "rewind":
                return row._replace(index=low, rewind=True)
            case "expecting":
                return row._replace(expected=random.choice((held.index, low)))
            case "beyond":
                return row._replace(index=self._committed_end + random.choice(BEYOND))
            case "late":
                late = self.former.get(name, held)
                return row._replace(index=self._ahead(late.index), token=late.token)
            case "operator":
                return row._replace(index=random.choice((row.index, low)), rewind=random.random() < 0.5, token=None)
            case _:
                return row

    def _take(self, name: str) -> CursorRow:
        random = self.random
        hold_bytes = random.choice((0, 1, 1024)) if random.random() < HOLDS else None
        index, token = self._ahead(0), random.randbytes(TOKEN_BYTES)
        return CursorRow(name, index, None, False, hold_bytes, token, True, OWNERS[token[0] % len(OWNERS)])

    @property
    def _committed_end(self) -> int:
        """The end of what is committed."""
        return self.checks.ends[-1] if self.checks.ends else 0

    def _ahead(self, index: int) -> int:
        """The end of a committed frame after `index`; `index` if there is none."""
        ends, place = self.checks.ends, bisect_right(self.checks.ends, index) + self.random.randrange(MOST_AHEAD)
        return max(
            index, self._committed_end if place >= len(ends) or self.random.random() < CATCHES_UP else ends[place]
        )

    def _lose(self, name: str) -> None:
        if (held := self.held.pop(name, None)) is not None:
            self.former[name] = held

    def _write_of(self, operation: Operation, attempt: Attempt) -> Write[Attempt]:
        return Write(encode_system(_record_of(operation)), 1, Kind.SYSTEM, owner=attempt)

    # Answers

    def answered(self, operation: Operation, reply: WriteReply) -> None:
        """Check an answer: the record is in the log, and its results are what the log gives."""
        self._check_committed(reply)
        fields = _record_of(operation)
        logged, recorded = self.checks.model.at.get(reply.index, (None, None))
        if logged != fields or recorded != (reply.results[0], None) or reply.refused or reply.repeated:
            raise Violation("a write gets the results that the log gives", fields, reply, logged, recorded)
        self._wrote(operation, reply.index)
        self._end(operation)
        for row, result in zip(rows_of(fields), reply.results[0], strict=False):
            match result:
                case [int(index)]:
                    self._done(row, index)
                case [str(code), int() | None as index]:
                    self._refused(row, code, index)
                case _:
                    raise Violation("a row's result is an index, or a code and the index", row, result)

    def _done(self, row: Row, index: int) -> None:
        self.checks.counts.cursor_rows[""] += 1
        if row.take:
            self._lose(row.name)
            self.held[row.name] = Held(index, row.token or b"")
        elif self._holds(row):
            self.held[row.name] = self.held[row.name]._replace(index=index)

    def _refused(self, row: Row, code: str, index: int | None) -> None:
        self.checks.counts.cursor_rows[code] += 1
        if self._holds(row) and index is not None and code != "CURSOR_TAKEN":
            self.held[row.name] = self.held[row.name]._replace(index=index)
        elif self._holds(row):
            self._lose(row.name)

    def _holds(self, row: Row) -> bool:
        """Whether it believes that it holds the cursor by the token of a row."""
        return row.name in self.held and self.held[row.name].token == row.token


def _record_of(operation: Operation) -> dict[str, object]:
    return cast("dict[str, object]", operation.commands[0])
