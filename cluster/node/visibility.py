"""Waiting for more to become visible: one future that all who wait share, so that a commit costs one wake-up."""

import asyncio


class Visibility:
    """Tells who waits that the visible bounds grew. One event loop; nothing is kept while nobody waits."""

    def __init__(self) -> None:
        self._growth: asyncio.Future[None] | None = None
        self._ended = False

    def grew(self) -> None:
        """The visible bounds grew: wake everyone who waits for that."""
        if self._growth is not None:
            growth, self._growth = self._growth, None
            growth.set_result(None)

    def end(self) -> None:
        """Nothing will become visible here any more: wake everyone, and let nobody wait again."""
        self._ended = True
        self.grew()

    async def next_growth(self, timeout_s: float) -> bool:
        """Whether the bounds grew within the time. They are as they were where it is False.

        Look at the bounds and call this without awaiting in between: no growth is missed then.
        """
        if self._ended:
            return False
        if self._growth is None:
            self._growth = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._growth], timeout=timeout_s)
        return bool(done) and not self._ended
