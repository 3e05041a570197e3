"""Linearizable lookups of open sessions, on the leader.

They read the session table at a frame boundary, and write nothing.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quire.sm import ApplyFailed, Sessions, SessionStatus

from ..errors import SessionRefused, SessionUnknown, StateUnavailable
from .applying import Applying
from .reading import Reading, late_read
from .writing import LeaderState, Writing

T = TypeVar("T")


class SessionLookup:
    """Finds open sessions; linearizable, so it is for the leader."""

    def __init__(
        self, leadership: LeaderState, reading: Reading, applying: Applying, writing: Writing, timeout_ms: int
    ) -> None:
        """A lookup takes at most `timeout_ms`."""
        self._leadership = leadership
        self._reading = reading
        self._applying = applying
        self._writing = writing
        self._timeout_ms = timeout_ms

    @property
    def window(self) -> int:
        """How many commands of a session may be in flight and can be retried."""
        return self._applying.applier.sessions.session_window

    async def find(self, session: int) -> SessionStatus | None:
        """The status of a session; None if it is not open.

        Raises:
            NotLeader, NoLeader: this node does not lead.
            StateUnavailable: this node cannot answer, or no majority confirmed its leadership in time.
        """
        return await self._read(lambda table: table.find(session))

    async def require(self, session: int) -> None:
        """Return if the session is open. Before it is refused, it is looked up linearizably, since it may be new.

        Raises:
            SessionUnknown, SessionRefused: it is not open, or was fenced.
            NotLeader, NoLeader, StateUnavailable: as `find`.
        """
        if (error := self._leadership.not_leader()) is not None:
            raise error
        sessions = self._applying.applier.sessions
        # In the middle of a frame this may find a session that the frame closes; its commands are refused at apply.
        if sessions.find(session) is not None or await self.find(session) is not None:
            return
        refusal = self._applying.applier.sessions.refusal(session)
        if refusal.code == "SESSION_FENCED":
            raise SessionRefused(refusal.code, refusal.text, [])
        raise SessionUnknown(session)

    async def page(self, after: int, most: int, prefix: str) -> tuple[list[tuple[SessionStatus, int]], int | None]:
        """A page of the open sessions, as `Sessions.page`. Raises as `find`."""
        return await self._read(lambda table: table.page(after, most, prefix))

    async def _read(self, read: Callable[[Sessions], T]) -> T:
        if (error := self._leadership.not_leader()) is not None:
            raise error
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._reading.linearize()
                return await self._applying.at_boundary(lambda applier: read(applier.sessions), on_loop=True)
        except ApplyFailed as failure:
            raise StateUnavailable(str(failure)) from failure
        except TimeoutError:
            raise StateUnavailable(late_read("linearizable", self._timeout_ms, self._writing.backlog)) from None
