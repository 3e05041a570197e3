"""Which records of a log executed, told from the log alone, as a reader of it needs to know.

A record under a session executes if the session is open and its sequence is the next one (sessions/retries.py). All
others are retries, or mistakes of the writer. The table of sessions is the applier's own (sessions/table.py), so
opening, closing, taking over, eviction and expiry are decided by the same code.

Two things are not in a log. A replica also evicts an unnamed session when the replies of all sessions exceed
`sessions_bytes`, and results are not logged: what such a session sent afterwards is told as executed. And a log whose
beginning has expired does not show which sessions were open there, and how far. The first record of such a session, and
of a name that is opened for the first time since, is taken as new. `assumed` lists those.
"""

from collections.abc import Mapping
from typing import Any

from quire.log import SESSION_TTL

from ..machine import Refused
from .replies import Replies
from .table import Sessions

_UNKNOWN = 0
"""In place of a session's next sequence, which is at least 1."""


class Executed:
    """Tell it every record of a log in order, those of the system by `take_system`, all others by `executes`."""

    def __init__(self, sessions: Sessions, lowest_index: int) -> None:
        """`sessions` is an empty table with the cluster's limits, `lowest_index` the first index of the log.

        If that is not 0 and sessions expire already, say so to the table.
        """
        self.assumed: list[int] = []
        """The records that were taken as new since nothing before them tells how far their session was."""
        self._sessions = sessions
        self._lowest_index = lowest_index
        self._names: set[str] = set()  # Those that were opened since the beginning of the log.
        self._known: set[int] = set()  # Sessions opened before it that were seen since.

    def take_system(self, index: int, timestamp: int, fields: Mapping[str, Any]) -> None:
        """Take in a system record."""
        match fields["type"]:
            case "open_session":
                self._open(index, fields.get("name") or None, timestamp)
            case "close_session":
                self._close(fields["session"])
            case "close_sessions":
                for session in fields["sessions"]:
                    self._close(session)
            case "genesis" | "members":
                self._use(fields.get("features", []), timestamp)
            case "features":
                self._use(fields["names"], timestamp)
            case _:
                pass

    def executes(self, index: int, timestamp: int, session: int, sequence: int) -> bool:
        """Whether the record executed; one without a session (0) always does."""
        return not self.answered(index, timestamp, session, sequence, 1)

    def answered(self, index: int, timestamp: int, session: int, sequence: int, count: int) -> int:
        """How many of `count` records did not execute, from the first on; the others did.

        They are all the records of a session between two system records or a part of these, with sequences that rise by
        one; the one under sequence 0 is alone. `index` is that of the first, `timestamp` that of the last.
        """
        if not session:
            return 0
        table = self._sessions
        replies = table.replies.get(session)
        if replies is None:
            if not self._may_be_open(session):
                return count
            self._known.add(session)
            replies = Replies()
            replies.next_sequence = _UNKNOWN
            table.put(session, None, replies)
        table.used(session, timestamp)
        if not sequence:
            return count  # No command has it. The record is a use of the session all the same.
        answered = 0
        if replies.next_sequence == _UNKNOWN:
            self.assumed.append(index)
        elif sequence > replies.next_sequence:
            return count
        else:
            answered = min(count, replies.next_sequence - sequence)
        replies.next_sequence = max(replies.next_sequence, sequence + count)
        return answered

    def _may_be_open(self, session: int) -> bool:
        """Whether the session was opened before the beginning of the log, and nothing is known of it since."""
        return session < self._lowest_index and session not in self._known

    def _open(self, index: int, name: str | None, timestamp: int) -> None:
        try:
            self._sessions.open(index, name, timestamp)
        except Refused:
            return
        if self._lowest_index and name is not None and name not in self._names:
            self._names.add(name)
            self._sessions.replies[index].next_sequence = _UNKNOWN

    def _close(self, session: int) -> None:
        if session < self._lowest_index:
            self._known.add(session)
        self._sessions.close_all([session])

    def _use(self, names: list[str], timestamp: int) -> None:
        if SESSION_TTL in names and self._sessions.expiring_since is None:
            self._sessions.expire_from(timestamp)
