"""The session table: which sessions are open, and which sequence each has reached.

A session is opened by a system record, whose index is the session's id. Opening a name again moves the session to a new
id, with its sequence and replies, and fences the old id: two holders of a name never share a sequence.

Fenced ids are remembered up to a limit, the oldest forgotten first, so that a client that opens its name at every start
does not grow the table. A forgotten id counts as unknown, and an unknown session executes nothing either.

At `max_sessions` a new session evicts the least recently used unnamed one. A session is used, in the order of the log,
when it is opened and when one of its records is applied, retries included. A client that returns to an evicted session
gets SESSION_EXPIRED, and none of its commands executes again. Named sessions are never evicted.

The memory of replies is bounded per session and in total. Above the first limit a session drops its oldest replies.
Above the second, unnamed sessions are evicted; if none is left, named ones drop their replies but keep their sequence,
so that a retry gets REPLY_GONE.

Once the feature `session_ttl` is in use, a session that has been idle for `session_ttl_s` expires, named or not. Time
is that of the log, so all replicas agree: when a session is opened, sessions whose last use is that much older than the
opening's frame are forgotten, at most EXPIRED_AT_ONCE, the least recently used first. If an expired name is opened
before it was forgotten, its session continues; after that, it starts over.

The record that opens a session may name its owner. While the session is open, its name can be opened again by that
owner only; anybody else is refused with SESSION_OWNED, and the session is left as it is. A session without an owner can
be taken over by anyone, and then belongs to the owner of the new id. An expired session does not hold its name against
others. Who writes under a session is not in the log: the leader checks that before it appends (`cluster/node`).

A `history` record ends all sessions: an id below that record is refused with HISTORY_CHANGED, so that no client that
was there before continues unaware. A name keeps its replies until it is opened again: whoever does is told the last
sequence that this history has, and a command that it has is answered, not executed again. For another owner it starts
over. Meanwhile `replies` has the session under its id negated, which no record can name.

If clients open names up to the limit, the table stays full for as long as these sessions live. So the leader appends no
opening of a new name above `named_limit`, which is below `max_sessions`: sessions without a name always find room
(`full`). Nor does it for an owner above `owned_limit`, half of that: other owners find room, too (`share_full`). That
is only admission. Records in the log are applied by the old rule, or replicas of two versions would differ.

All of it is plain data. `replies` is in order of use, which a snapshot must preserve. Timestamps of frames never
decrease, so the order of use is also that of the times of use.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..machine import Refused
from .replies import AllReplies, Replies

HISTORY_CHANGED = "HISTORY_CHANGED"
"""The code with which a session of an earlier history is refused."""
SESSION_CODES = frozenset(
    ("SESSION_FENCED", "SESSION_EXPIRED", "SEQUENCE_GAP", "REPLY_GONE", "SEQUENCE_REUSED", HISTORY_CHANGED)
)
"""The codes with which a session refuses a record, which then does not execute."""
SESSION_OWNED = "SESSION_OWNED"
"""The code with which a session is refused to everybody but its owner."""
SESSION_WINDOW = 8192
MAX_SESSIONS = 100_000
RESERVED_PART = 10  # A tenth of a table's slots is reserved for sessions without a name.
OWNER_PARTS = 2  # One owner's names may take half of the slots for named sessions.
MAX_NAMED_SESSIONS = MAX_SESSIONS - MAX_SESSIONS // RESERVED_PART
MAX_OWNED_SESSIONS = MAX_NAMED_SESSIONS // OWNER_PARTS
SESSION_BYTES = 8 << 20  # A full window of commands with results of 1 KiB.
SESSION_TTL_S = 30 * 86_400  # A client that retries after a longer absence may execute a command twice.
PAGE_VISITED = 10_000  # Sessions that are visited for one page of a list.
EXPIRED_AT_ONCE = 64  # Sessions that one opening forgets at most, so that no frame takes long.
SECOND = 1_000_000  # In the units of timestamps.
SESSIONS_BYTES = 512 << 20  # 500 sessions with full windows of short commands take 200 MB.


SESSION_LIMITS = ("session_window", "max_sessions", "session_bytes", "sessions_bytes", "session_ttl_s")
"""The names of a genesis record's limits that are arguments of `Sessions`."""


class SessionStatus(NamedTuple):
    """An open session: its id, its name or None, the last answered sequence (0: none yet), its owner or None."""

    session: int
    name: str | None
    sequence: int
    owner: str | None = None


class Sessions(AllReplies):
    """One replica's open sessions and fenced ids. Only the applier changes them, in the order of the log.

    The last `session_window` commands of a session can be retried. At most `max_sessions` are open, and as many fenced
    ids remembered. The replies of one session take at most `session_bytes` (plus its tail, TAIL_BYTES), those of all
    sessions `sessions_bytes`. All four limits are in the genesis record, so they are equal on all replicas.
    """

    def __init__(
        self,
        *,
        session_window: int = SESSION_WINDOW,
        max_sessions: int = MAX_SESSIONS,
        session_bytes: int = SESSION_BYTES,
        sessions_bytes: int = SESSIONS_BYTES,
        session_ttl_s: int = SESSION_TTL_S,
    ) -> None:
        super().__init__(sessions_bytes)
        self.session_window = session_window
        self.max_sessions = max_sessions
        self.session_bytes = session_bytes
        self.session_ttl_s = session_ttl_s
        """After how many seconds a session expires, 0: never."""
        self.expiring_since: int | None = None
        """The timestamp of the record from which on sessions expire; None before. Earlier uses count from then."""
        self.history_index = 0
        """The index of the last `history` record; sessions below it are of an earlier history."""
        self._names: dict[int, str] = {}  # By id; named sessions only.
        self._by_name: dict[str, int] = {}
        self._fenced: OrderedDict[int, int] = OrderedDict()  # Old id to the id that took over.
        self._owners: dict[int, str] = {}  # By id, ascending; sessions with an owner only.
        self._named_of: Counter[str] = Counter()  # By owner: how many of its sessions have names.

    def open(self, index: int, name: str | None, timestamp: int = 0, owner: str | None = None) -> SessionStatus:
        """Open a session with the id `index`; if its name is open already, the new id takes over from the old one.

        `timestamp` is that of the frame, in microseconds. Sessions that have expired by then are forgotten first.

        Raises:
            Refused: SESSION_OWNED, if the name is held by a session of another owner. SESSIONS_FULL, if all open
                sessions have names. (An open name can be opened again even then.)
        """
        held = None if name is None else self._by_name.get(name)
        may_take = held is not None and self._owners.get(held) in (None, owner)
        self._expire(timestamp, but=held if may_take else None)
        old = held if may_take else None
        if held is not None and not may_take and (holder := self.find(held)) is not None:
            if held > 0:
                raise Refused(SESSION_OWNED, owned_by_another(holder))
            self.close(held)  # Of an earlier history: no session of its owner is open.
        if old is not None:
            replies = self.replies.pop(old)
            self._disown(old)
            del self._names[old]
            if old > 0:
                self._fence(old, index)
        elif len(self.replies) >= self.max_sessions and not (self.max_sessions and self._evict()):
            count = f"{len(self.replies)} sessions are open of at most {self.max_sessions}"
            raise Refused("SESSIONS_FULL", f"{count}, and all of them have names; close one")
        else:
            replies = Replies()
        replies.used_at = timestamp
        self._add(index, name, replies)
        if owner is not None:
            self._own(index, owner)
        return self._status(index, replies)

    @property
    def named_limit(self) -> int:
        """How many named sessions may be open for a leader to open one by a new name."""
        return self.max_sessions - self.max_sessions // RESERVED_PART

    @property
    def owned_limit(self) -> int:
        """How many named sessions one owner may have for a leader to open one by a new name for it."""
        return self.named_limit // OWNER_PARTS

    def full(self, name: str | None, under_way: int, timestamp: int) -> Refused | None:
        """Why a leader must not append an opening of this name, or of an unnamed session; None if it may.

        `under_way` is how many names are being opened: their records may be in the log but are not applied here.
        `timestamp` is a lower bound for that of the record's frame. An open name can be opened again at any time.

        An opening forgets expired sessions, so above the limit one at a time may be appended for that: it forgets a
        named session, or as many unnamed ones as one opening can.
        """
        if name is None:
            has_slot = len(self.replies) < self.max_sessions or (self.max_sessions and self._unnamed)
            if has_slot or self._expired(timestamp):
                return None
            reason = f"{len(self.replies):,} sessions are open of at most {self.max_sessions:,}, all of them with names"
        else:
            if name in self._by_name or len(self._names) + under_way < self.named_limit:
                return None
            expired = [] if under_way else self._expired(timestamp)
            if len(expired) == EXPIRED_AT_ONCE or not self._names.keys().isdisjoint(expired):
                return None
            reason = (
                f"{len(self._names):,} named sessions are open and {under_way:,} more are being opened, of at most "
                f"{self.named_limit:,}; the rest of {self.max_sessions:,} is for sessions without a name"
            )
        return self._full(reason)

    def share_full(self, name: str, owner: str, under_way: int, timestamp: int) -> Refused | None:
        """Why a leader must not append an opening of this name for this owner, which has its share; None if it may.

        `under_way` is how many names are being opened for that owner. As in `full`, an open name can be opened again,
        and above the limit one at a time that forgets sessions of this owner's, or as many as one opening can.
        """
        if name in self._by_name or self._named_of[owner] + under_way < self.owned_limit:
            return None
        expired = [] if under_way else self._expired(timestamp)
        if len(expired) == EXPIRED_AT_ONCE or any(self._owners.get(each) == owner for each in expired):
            return None
        return self._full(
            f"{self._named_of[owner]:,} named sessions of {owner!r} are open and {under_way:,} more are being opened, "
            f"and one name of a token may have {self.owned_limit:,}, unless it is an admin's"
        )

    def _full(self, reason: str) -> Refused:
        ways = "close some: `quire session close --prefix TEXT --idle SECONDS`, or DELETE /sessions/ID"
        expiry = f"; a session that is unused for {self.session_ttl_s:,} s expires" if self._expires else ""
        return Refused("SESSIONS_FULL", f"{reason}; {ways}{expiry}")

    def close(self, session: int) -> SessionStatus:
        """Forget an open session, its replies and its name; return its last status.

        Raises:
            Refused: SESSION_EXPIRED or SESSION_FENCED.
        """
        status = self.find(session)
        if status is None:
            raise self.refusal(session)
        self.size -= self.replies.pop(session).size
        self._forget(session)
        return status

    def close_all(self, sessions: Iterable[int]) -> list[int]:
        """Close these sessions; return the ids of those that were open."""
        closed = [session for session in dict.fromkeys(sessions) if session in self.replies]
        for session in closed:
            self.close(session)
        return closed

    def end_history(self, index: int) -> None:
        """End all sessions and forget fenced ids: the `history` record at `index` begins another history."""
        self.close_all(list(self._unnamed))
        kept = [(abs(session), name, replies, self._owners.get(session)) for session, name, replies in self.all_open()]
        self._fenced.clear()
        self._names.clear()
        self._by_name.clear()
        self._owners.clear()
        self._named_of.clear()
        self.replies.clear()
        for session, name, replies, owner in kept:
            self._add(-session, name, replies)
            if owner is not None:
                self._own(-session, owner)
        self.history_index = index

    def expire_from(self, timestamp: int) -> None:
        """Sessions expire from the record with this timestamp on."""
        self.expiring_since = timestamp

    def last_use(self, session: int) -> int:
        """When an open session was last used, or from when on its idle time counts: a frame's timestamp."""
        return max(self.replies[session].used_at, self.expiring_since or 0)

    def find(self, session: int) -> SessionStatus | None:
        """The status of a session, or None if it is not open."""
        replies = self.replies.get(session)
        return None if replies is None else self._status(session, replies)

    def page(self, after: int, most: int, prefix: str) -> tuple[list[tuple[SessionStatus, int]], int | None]:
        """(sessions, next `after`): the open sessions with ids above `after` and this name prefix, with their last use.

        Sorted by id. The page ends after `most` of them, or after PAGE_VISITED sessions were looked at. The next
        `after` is None on the last page.
        """
        ids = sorted(self.replies)
        first = bisect_right(ids, after)
        found: list[tuple[SessionStatus, int]] = []
        for session in ids[first : first + PAGE_VISITED]:
            if len(found) == most:
                return found, after
            if self._names.get(session, "").startswith(prefix):
                replies = self.replies[session]
                found.append((self._status(session, replies), self.last_use(session)))
            after = session
        return found, after if first + PAGE_VISITED < len(ids) else None

    def refusal(self, session: int) -> Refused:
        """The reply to a record of a session that is not open."""
        if session < self.history_index:
            text = f"session {session} is of an earlier history, which ended at index {self.history_index}"
            return Refused(HISTORY_CHANGED, f"{text}; open another session and compare the state")
        successor = self._fenced.get(session)
        if successor is not None:
            return Refused("SESSION_FENCED", f"session {session} was taken over by session {successor} of its name")
        return Refused("SESSION_EXPIRED", f"session {session} is not open: closed, expired or never opened")

    def all_open(self) -> Iterator[tuple[int, str | None, Replies]]:
        """Id, name and replies of each open session, the least recently used first."""
        for session, replies in self.replies.items():
            yield session, self._names.get(session), replies

    def all_fenced(self) -> list[tuple[int, int]]:
        """Pairs (old id, id that took over), the oldest first."""
        return list(self._fenced.items())

    def all_owned(self) -> list[tuple[int, str]]:
        """Pairs (id, owner) of the open sessions that have an owner, by id."""
        return list(self._owners.items())

    def put(self, session: int, name: str | None, replies: Replies) -> None:
        """Restore an open session, in the order of `all_open`. Raises ValueError if its id or name is open."""
        if session in self.replies or name in self._by_name:
            raise ValueError(f"the session {session} or its name is there twice")
        self._add(session, name, replies)
        self.size += replies.size

    def put_fenced(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Restore fenced ids, in the order of `all_fenced`."""
        self._fenced.update(pairs)

    def put_owned(self, pairs: Iterable[tuple[int, str]]) -> None:
        """Restore owners of sessions that were `put`, in the order of `all_owned`. Raises KeyError for another id."""
        for session, owner in pairs:
            if session not in self.replies:
                raise KeyError(session)
            self._own(session, owner)

    def _status(self, session: int, replies: Replies) -> SessionStatus:
        return SessionStatus(session, self._names.get(session), replies.recorded_end - 1, self._owners.get(session))

    def _make_room(self) -> None:
        while self.size > self.sessions_bytes and self._evict(holding=1):
            pass
        if self.size > self.sessions_bytes:
            for replies in self.replies.values():
                self.size -= replies.forget()
                if self.size <= self.sessions_bytes:
                    return

    def _evict(self, *, holding: int = 0) -> bool:
        """Forget the least recently used unnamed session with at least `holding` bytes; False if there is none."""
        table = self.replies
        session = next((each for each in self._unnamed if table[each].size >= holding), None)
        if session is None:
            return False
        self.size -= table.pop(session).size
        self._forget(session)
        return True

    def _expire(self, timestamp: int, but: int | None) -> None:
        """Forget sessions that have expired, but not the one whose name is being opened."""
        for session in self._expired(timestamp, but):
            self.close(session)

    @property
    def _expires(self) -> bool:
        return self.expiring_since is not None and self.session_ttl_s > 0

    def _expired(self, timestamp: int, but: int | None = None) -> list[int]:
        """The sessions that an opening with this timestamp forgets: EXPIRED_AT_ONCE at most."""
        expired: list[int] = []
        if self._expires:
            unused_since = timestamp - self.session_ttl_s * SECOND
            for session in self.replies:
                if len(expired) == EXPIRED_AT_ONCE or self.last_use(session) > unused_since:
                    break
                if session != but:
                    expired.append(session)
        return expired

    def _forget(self, session: int) -> None:
        """Remove a session that is no longer open from the names, or from the unnamed sessions."""
        self._disown(session)
        name = self._names.pop(session, None)
        if name is None:
            del self._unnamed[session]
        else:
            del self._by_name[name]

    def _own(self, session: int, owner: str) -> None:
        self._owners[session] = owner
        if session in self._names:
            self._named_of[owner] += 1

    def _disown(self, session: int) -> None:
        """Forget the owner of a session whose name is still known."""
        owner = self._owners.pop(session, None)
        if owner is not None and session in self._names:
            self._named_of[owner] -= 1
            if not self._named_of[owner]:
                del self._named_of[owner]

    def _add(self, session: int, name: str | None, replies: Replies) -> None:
        self.replies[session] = replies
        if name is None:
            self._unnamed[session] = None
        else:
            self._names[session] = name
            self._by_name[name] = session

    def _fence(self, old: int, successor: int) -> None:
        self._fenced[old] = successor
        if len(self._fenced) > self.max_sessions:
            self._fenced.popitem(last=False)


def owned_by_another(holder: SessionStatus) -> str:
    """Why a session of another owner is refused, for messages."""
    which = f"session {holder.session}" if holder.name is None else f"session {holder.session}, {holder.name!r:.60},"
    ways = f"use a token of that name, or have an admin close it: `quire session close {holder.session}`"
    return f"{which} belongs to {holder.owner!r}; {ways}"
