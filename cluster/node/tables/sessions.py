"""Lookups of open sessions, and of who may use them, on the leader.

They read the session table and write nothing. A session that has an owner may be used by a caller of that name only.
That is checked before a record is appended, since the log does not hold who writes. A session's owner never changes, so
the table of a leader that has not applied everything yet can answer for the sessions that are in it; any other session
is looked up linearizably, at a frame boundary.
"""

from collections.abc import Awaitable, Callable

from quire.sm import SessionStatus, owned_by_another

from ...errors import HistoryChanged, SessionOwned, SessionUnknown, session_refused
from .reads import TableReads


class SessionLookup:
    """Finds open sessions; linearizable, so it is for the leader. A caller without a name may use all of them."""

    def __init__(self, reads: TableReads) -> None:
        self._reads = reads

    async def caught_up(self) -> None:
        """Return once this node has applied everything that was acknowledged before. Raises as `find`."""
        await self._reads.read(lambda _: None)

    @property
    def window(self) -> int:
        """How many commands of a session may be in flight and can be retried."""
        return self._reads.applier.sessions.session_window

    async def find(self, session: int) -> SessionStatus | None:
        """The status of a session; None if it is not open.

        Raises:
            NotLeader, NoLeader: this node does not lead.
            StateUnavailable: this node cannot answer, or no majority confirmed its leadership in time.
        """
        return await self._reads.read(lambda applier: applier.sessions.find(session))

    async def is_open_for(self, session: int, caller: str | None) -> bool:
        """Whether the session is open. Before that is denied, it is looked up linearizably, since it may be new.

        Raises:
            SessionOwned: it belongs to another than `caller`.
            NotLeader, NoLeader, StateUnavailable: as `find`.
        """
        self._reads.refuse_follower()
        # In the middle of a frame this may find a session that the frame closes; its commands are refused at apply.
        status = self._reads.applier.sessions.find(session) or await self.find(session)
        if status is not None:
            _refuse_others(status, caller)
        return status is not None

    async def open_among(
        self, sessions: list[int], caller: str | None, turn: Callable[[], Awaitable[None]]
    ) -> list[int]:
        """Those of the sessions that are open, linearizable. `turn` is as in `page`. Raises as `is_open_for`."""
        found = await self._reads.read(lambda applier: [applier.sessions.find(session) for session in sessions], turn)
        for status in found:
            if status is not None:
                _refuse_others(status, caller)
        return [status.session for status in found if status is not None]

    async def require(self, session: int, caller: str | None) -> None:
        """Return if the session is open.

        Raises:
            SessionUnknown, SessionRefused: it is not open, or was fenced.
            SessionOwned, NotLeader, NoLeader, StateUnavailable: as `is_open_for`.
        """
        if await self.is_open_for(session, caller):
            return
        refusal = self._reads.applier.sessions.refusal(session)
        if refusal.code in ("SESSION_FENCED", "HISTORY_CHANGED"):
            raise session_refused(refusal.code, refusal.text, [])
        raise SessionUnknown(session)

    async def page(
        self, after: int, most: int, prefix: str, turn: Callable[[], Awaitable[None]]
    ) -> tuple[list[tuple[SessionStatus, int]], int | None]:
        """A page of the open sessions, as `Sessions.page`. `turn` and what is raised: as `TableReads.read`."""
        return await self._reads.read(lambda applier: applier.sessions.page(after, most, prefix), turn)


def refuse_other_history(asked: str, own: str) -> None:
    """Raise HistoryChanged if a caller's history is not this cluster's."""
    if asked != own:
        text = f"the cluster was recovered: its history is {own}, not {asked[:32]!r}"
        raise HistoryChanged(f"{text}; open another session, or read from the start, and compare the state")


def _refuse_others(status: SessionStatus, caller: str | None) -> None:
    """Raise SessionOwned if the session belongs to another than `caller`."""
    if caller is not None and status.owner not in (None, caller):
        raise SessionOwned(owned_by_another(status))
