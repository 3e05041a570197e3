"""The session table: who may use a sequence, and where each stands.

A session is opened by a system record; the record's index is its id. A name opened again gets a new id that goes on
with the old one's sequence and replies, and the old id is fenced: two holders of a name never share a sequence.

The ids of a name's former holders are remembered up to a limit, the oldest forgotten first, so that a client that
opens its name at every start does not grow the table. A forgotten one is unknown, which executes nothing either.

At `max_sessions` the unnamed session goes that was used longest ago, by the order of the log: opened, or any record of
it applied, a retry, too. Whoever comes back to it is answered SESSION_EXPIRED, and nothing of it executes again. Named
ones never go. What replies hold in memory is bounded for each session and for all of them together: beyond the first a
session forgets its oldest replies, beyond the second unnamed sessions go, and where none is left, named ones forget
their replies. They keep their sequence, so a retry is answered REPLY_GONE.

Everything is plain, and `replies` stands in the order of use, which a snapshot has to keep.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..machine import Refused
from .replies import Replies

SESSION_WINDOW = 8192
MAX_SESSIONS = 100_000
SESSION_BYTES = 8 << 20  # A full window of commands with answers of a kilobyte.
SESSIONS_BYTES = 512 << 20  # 500 sessions with full windows of short commands hold 200 MB.


class SessionStatus(NamedTuple):
    """An open session: its id, its name if it has one, and the last sequence that was answered (0: none yet)."""

    session: int
    name: str | None
    sequence: int


class Sessions:
    """The open sessions of one replica, and the fenced ones. Changed by the applier alone, in the log's order.

    `session_window` commands of each can be retried; `max_sessions` are open at most, and as many fenced ids are
    remembered. The replies of one session hold at most `session_bytes` (and its tail, TAIL_BYTES), those of all
    together `sessions_bytes`. All four are the same on every replica: they stand in genesis.
    """

    def __init__(
        self,
        *,
        session_window: int = SESSION_WINDOW,
        max_sessions: int = MAX_SESSIONS,
        session_bytes: int = SESSION_BYTES,
        sessions_bytes: int = SESSIONS_BYTES,
    ) -> None:
        self.session_window = session_window
        self.max_sessions = max_sessions
        self.session_bytes = session_bytes
        self.sessions_bytes = sessions_bytes
        self.size = 0  # Bytes that all replies hold.
        self.replies: OrderedDict[int, Replies] = OrderedDict()  # by id, the one that was used longest ago first
        self._names: dict[int, str] = {}  # by id, of the named ones
        self._by_name: dict[str, int] = {}
        self._fenced: OrderedDict[int, int] = OrderedDict()  # the id that took over, by the old id

    def open(self, index: int, name: str | None) -> SessionStatus:
        """Open a session whose id is `index`; under a name that is open, the new id takes over from the old one.

        Raises:
            Refused: SESSIONS_FULL, where all that are open have names. (Each of those can be opened again even then.)
        """
        old = None if name is None else self._by_name.get(name)
        if old is not None:
            replies = self.replies.pop(old)
            del self._names[old]
            self._fence(old, index)
        elif len(self.replies) >= self.max_sessions and not (self.max_sessions and self._evict()):
            count = f"{len(self.replies)} sessions are open of at most {self.max_sessions}"
            raise Refused("SESSIONS_FULL", f"{count}, and all of them have names; close one")
        else:
            replies = Replies()
        self.replies[index] = replies
        if name is not None:
            self._names[index] = name
            self._by_name[name] = index
        return SessionStatus(index, name, replies.recorded_end - 1)

    def close(self, session: int) -> SessionStatus:
        """Forget an open session, its replies and its name; give where it stood.

        Raises:
            Refused: SESSION_EXPIRED or SESSION_FENCED.
        """
        status = self.find(session)
        if status is None:
            raise self.refusal(session)
        self.size -= self.replies.pop(session).size
        if status.name is not None:
            del self._names[session]
            del self._by_name[status.name]
        return status

    def find(self, session: int) -> SessionStatus | None:
        """Where the session stands, or None if it is not open."""
        replies = self.replies.get(session)
        if replies is None:
            return None
        return SessionStatus(session, self._names.get(session), replies.recorded_end - 1)

    def refusal(self, session: int) -> Refused:
        """What a session that is not open is answered."""
        successor = self._fenced.get(session)
        if successor is not None:
            return Refused("SESSION_FENCED", f"session {session} was taken over by session {successor} of its name")
        return Refused("SESSION_EXPIRED", f"session {session} is not open: closed, expired or never opened")

    def all_open(self) -> Iterator[tuple[int, str | None, Replies]]:
        """Id, name and replies of each open session, the one that was used longest ago first."""
        for session, replies in self.replies.items():
            yield session, self._names.get(session), replies

    def all_fenced(self) -> list[tuple[int, int]]:
        """(old id, the id that took over), the oldest first."""
        return list(self._fenced.items())

    def put(self, session: int, name: str | None, replies: Replies) -> None:
        """Restore an open session, in the order of `all_open`."""
        self.replies[session] = replies
        self.size += replies.size
        if name is not None:
            self._names[session] = name
            self._by_name[name] = session

    def put_fenced(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Restore fenced ids, in the order of `all_fenced`."""
        self._fenced.update(pairs)

    def grew(self, size: int) -> None:
        """Count what replies hold more now, and make room where it is too much."""
        self.size += size
        while self.size > self.sessions_bytes and self._evict(holding=1):
            pass
        if self.size > self.sessions_bytes:
            for replies in self.replies.values():
                self.size -= replies.forget()
                if self.size <= self.sessions_bytes:
                    return

    def _evict(self, *, holding: int = 0) -> bool:
        """Forget, of the unnamed sessions that hold so many bytes, the one that was used longest ago; False if none."""
        names, table = self._names, self.replies
        session = next((each for each, held in table.items() if held.size >= holding and each not in names), None)
        if session is None:
            return False
        self.size -= table.pop(session).size
        return True

    def _fence(self, old: int, successor: int) -> None:
        self._fenced[old] = successor
        if len(self._fenced) > self.max_sessions:
            self._fenced.popitem(last=False)
