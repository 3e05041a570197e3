"""The sync of the mark, in a thread beside appends and flushes."""

from __future__ import annotations

from ..files import Sync
from ..state import LogState


class MarkSync:
    """Makes the mark of one log durable; `begin` is to be called once a second."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def begin(self) -> Sync | None:
        """Return a sync of the mark; None if it has not moved or a sync is in progress.

        Call `run` of the sync in any thread, then `end`.

        Raises:
            LogReadOnly: the device failed, now or earlier.
        """
        state = self._state
        state.refuse_if_unwritable()
        with state.failing("writing the mark"):
            mark, latest = state.next_mark(), state.mark.latest
            if latest is None or mark != latest._replace(generation=0):
                state.mark.write(mark)
        return state.mark.begin_sync()

    def end(self, sync: Sync, error: OSError | None = None) -> None:
        """Note how a sync of the mark ended."""
        state = self._state
        if error is not None:
            state.fail(f"syncing the mark: {error}")
        elif not state.closed:
            with state.failing("writing the mark"):
                state.mark.end_sync(sync)
