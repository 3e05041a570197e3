"""A flush, which makes appended frames durable, in a thread beside later appends; and a sync of the mark."""

from __future__ import annotations

from ..files import Sync
from ..segment.write_segment import Flush
from ..state import LogState


def begin_flush(state: LogState) -> Flush | None:
    """Write buffered frames to the file; return a flush of them, if one is needed and none is in progress."""
    if state.flush is not None or state.durable.index == state.tail.index:
        return None
    with state.failing("writing out"):
        state.writer.write_out()
    segment = state.writer.segment
    state.flush = Flush(state.writer.store, state.tail, segment, segment.end, state.generation)
    return state.flush


def end_flush(state: LogState, flush: Flush, error: OSError | None) -> None:
    """Note how a flush ended, and what it made durable."""
    if flush is not state.flush:
        raise ValueError("this flush has ended before, or is of another log")
    state.flush = None
    state.close_retired()
    if error is not None:
        state.fail(f"flushing: {error}")
    if state.failure is not None or state.closed:
        return
    # A truncation since it began may have replaced what it covered; a rotation may have proven more.
    if flush.generation == state.generation and flush.tail.index > state.durable.index:
        state.set_durable(flush.tail, flush.segment, flush.position)
        with state.failing("writing the mark"):
            state.mark.write(state.next_mark())


def flush_now(state: LogState) -> None:
    """Make every appended record durable. Blocks."""
    if state.durable.index == state.tail.index:
        return
    with state.failing("flushing"):
        state.sync_all()
        state.mark.write(state.next_mark())


def begin_mark_sync(state: LogState) -> Sync | None:
    """Return a sync of the mark; None if it has not moved or a sync is in progress."""
    with state.failing("writing the mark"):
        mark, latest = state.next_mark(), state.mark.latest
        if latest is None or mark != latest._replace(generation=0):
            state.mark.write(mark)
    return state.mark.begin_sync()


def end_mark_sync(state: LogState, sync: Sync, error: OSError | None) -> None:
    """Note how a sync of the mark ended."""
    if error is not None:
        state.fail(f"syncing the mark: {error}")
    elif not state.closed:
        with state.failing("writing the mark"):
            state.mark.end_sync(sync)
