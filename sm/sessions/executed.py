"""Determines from a log alone which of its records executed, for readers of the log.

A record under a session executes if the session is open and its sequence is the next one (sessions/retries.py). All
others are retries, or mistakes of the writer. The table of sessions is the applier's own (sessions/table.py), so the
same code decides on opening, closing, taking over, eviction and expiry. One thing is not in a log: a replica also
evicts an unnamed session when the replies of all sessions exceed `sessions_bytes`, and results are not logged. Later
records of such a session are reported as executed.

A log whose beginning has expired does not show which sessions were open there and how far they were, so it does not
show either which of them were evicted or have expired. In such a log each sequence that may have executed is reported
as executed once: nothing expires and nothing is evicted, and in a session that may continue from before the beginning,
or start over after it expired, only a sequence that was reported before is a retry. Such a log does not show either who
held a name first, so any opening of it may have been refused for its owner: the sessions of two owners are followed
beside each other, and one that follows another owner's may continue from before the beginning. `assumed` counts the
records that were reported as executed but may not have been.

A replica that has applied a record knows for certain; its answer can be passed in.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.log import SESSION_TTL

from ..machine import Refused
from .replies import Replies
from .table import SECOND, SESSION_OWNED, Sessions

_UNLIMITED = 1 << 62


class Assumed(NamedTuple):
    """Records of sessions that were reported as executed without proof in the log: how many, the first, the last."""

    count: int  # type: ignore[assignment]  # Hides tuple.count, which is unused.
    first_index: int
    last_index: int


class _Opening(NamedTuple):
    session: int
    owner: str | None


class Executed:
    """Give it every record of a log in order: system records to `take_system`, all others to `executes`."""

    def __init__(self, sessions: Sessions, lowest_index: int) -> None:
        """`sessions` is an empty table with the cluster's limits, `lowest_index` the first index of the log."""
        self.assumed: Assumed | None = None
        self._sessions = sessions
        self._lowest_index = lowest_index
        self._last: dict[str, _Opening] = {}  # By name.
        self._seen: set[int] = set()  # Sessions opened before the beginning of the log that have records in it.
        self._doubtful: dict[int, list[tuple[int, int]]] = {}
        """By session whose progress the log does not show: the ranges of sequences reported as executed."""
        self._stale: set[int] = set()  # Sessions that may have expired before their last use.
        self._ttl = sessions.session_ttl_s * SECOND
        if lowest_index:
            sessions.max_sessions, sessions.session_ttl_s = _UNLIMITED, 0

    def take_system(self, index: int, timestamp: int, fields: Mapping[str, Any]) -> None:
        """Take in a system record."""
        match fields["type"]:
            case "open_session":
                self._open(index, fields.get("name") or None, timestamp, fields.get("owner") or None)
            case "close_session":
                self._close(fields["session"])
            case "close_sessions":
                for session in fields["sessions"]:
                    self._close(session)
            case "genesis" | "members":
                self._take_features(fields.get("features", []), timestamp)
            case "history":
                self._sessions.end_history(index)
                # What a name had then is not compared with its next opening: that counts as the first one here.
                self._last.clear()
                self._doubtful.clear()
                self._stale.clear()
            case "features":
                self._take_features(fields["names"], timestamp)
            case _:
                pass

    def executes(self, index: int, timestamp: int, session: int, sequence: int, known: bool | None = None) -> bool:
        """Whether the record executed; one without a session (0) always does. `known`: what a replica reported."""
        if known is None or not session:
            return not self.answered(index, timestamp, session, sequence, 1)
        if (replies := self._replies_of(session)) is not None:
            self._use(session, timestamp)
            if known:
                replies.next_sequence = sequence + 1
                self._doubtful.pop(session, None)
                self._stale.discard(session)
        return known

    def answered(self, index: int, timestamp: int, session: int, sequence: int, count: int) -> int:
        """How many of `count` records did not execute, from the first on; the others did.

        They are all the records of a session between two system records or a part of these, with sequences that rise by
        one; the one under sequence 0 is alone. `index` is that of the first, `timestamp` that of the last.
        """
        if not session:
            return 0
        replies = self._replies_of(session)
        if replies is None:
            return count
        self._use(session, timestamp)
        if not sequence:
            return count  # No command has it. The record still counts as a use of the session.
        if (ranges := self._doubtful.get(session)) is not None:
            answered = _told_before(ranges, sequence, count)
        elif sequence > replies.next_sequence:
            return count
        else:
            answered = min(count, replies.next_sequence - sequence)
            replies.next_sequence = max(replies.next_sequence, sequence + count)
        if self._lowest_index and answered < count:
            before = self.assumed or Assumed(0, index + answered, 0)
            self.assumed = Assumed(before.count + count - answered, before.first_index, index + count - 1)
        return answered

    def _replies_of(self, session: int) -> Replies | None:
        """What is known about a session that may be open; None if it is not."""
        replies = self._sessions.replies.get(session)
        if session < self._sessions.history_index:
            return None
        if replies is None and session < self._lowest_index and session not in self._seen:
            replies = Replies()
            self._seen.add(session)
            self._doubtful[session] = []
            self._sessions.put(session, None, replies)
        return replies

    def _open(self, index: int, name: str | None, timestamp: int, owner: str | None) -> None:
        table, last = self._sessions, self._last.get(name or "")
        may_have_expired = False
        if last is not None and last.session in table.replies:
            may_have_expired = last.session in self._stale or self._was_idle(last.session, timestamp)
        is_beside = False
        try:
            table.open(index, name, timestamp, owner)
        except Refused as refusal:
            if not self._lowest_index or refusal.code != SESSION_OWNED:
                return
            table.open(index, None, timestamp, owner)
            is_beside = True
        if not self._lowest_index or name is None:
            return
        if last is None or may_have_expired or last.owner != owner:
            self._doubtful[index] = []
        elif is_beside or last.session in self._doubtful:
            self._doubtful[index] = self._doubtful.pop(last.session, [])
        if is_beside and last is not None and last.owner == owner:
            self._close(last.session)
        self._last[name] = _Opening(index, owner)

    def _use(self, session: int, timestamp: int) -> None:
        if self._lowest_index and self._was_idle(session, timestamp):
            self._stale.add(session)
        self._sessions.used(session, timestamp)

    def _was_idle(self, session: int, timestamp: int) -> bool:
        """Whether an open session has been idle for long enough to have expired."""
        return 0 < self._ttl <= timestamp - self._sessions.last_use(session)

    def _close(self, session: int) -> None:
        if session < self._lowest_index:
            self._seen.add(session)
        self._doubtful.pop(session, None)
        self._stale.discard(session)
        self._sessions.close_all([session])

    def _take_features(self, names: list[str], timestamp: int) -> None:
        if SESSION_TTL in names and self._sessions.expiring_since is None:
            self._sessions.expire_from(timestamp)


def _told_before(ranges: list[tuple[int, int]], sequence: int, count: int) -> int:
    """How many of the sequences, from the first on, are in one of the ranges; all of them are after it."""
    told = next((min(count, end - sequence) for start, end in ranges if start <= sequence < end), 0)
    start, end, apart = sequence, sequence + count, list[tuple[int, int]]()
    for other in ranges:
        if other[0] <= end and start <= other[1]:
            start, end = min(start, other[0]), max(end, other[1])
        else:
            apart.append(other)
    ranges[:] = [*apart, (start, end)]
    return told
