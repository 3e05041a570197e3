"""How much of each session is under way by POST. (A stream has a window of its own.)"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from ...errors import Overloaded


class Windows:
    """The records of each session that wait for their answers on this leader. One event loop."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()

    @contextmanager
    def room_for(self, session: int, count: int, window: int) -> Generator[None, None, None]:
        """Room for so many records of the session, as long as the block runs.

        Raises:
            Overloaded: with them, more than `window` were under way. A retry of what is farther behind could no longer
                be answered.
        """
        if self._under_way[session] + count > window:
            raise Overloaded()
        self._under_way[session] += count
        try:
            yield
        finally:
            self._under_way[session] -= count
            if not self._under_way[session]:
                del self._under_way[session]
