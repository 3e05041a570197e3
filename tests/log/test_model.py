"""A log against a plain list, with crashes at random storage operations."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.log import Flush, LogReadOnly, Tail, frame_values
from quire.log.simulated import Disk, Keep, PowerLoss
from tests.log.histories import History, all_frames


class LogAgainstList(RuleBasedStateMachine):
    """`History` is the list; each rule is what a caller or a disk may do."""

    @initialize(seed=st.integers(0, 1 << 30))
    def create(self, seed: int) -> None:
        self.flush: Flush | None = None
        self.history = History(Disk(seed=seed))
        self.history.open()

    @rule(count=st.integers(1, 12), size=st.integers(3, 900))
    def append(self, count: int, size: int) -> None:
        self.history.append(count, size)

    @rule()
    def flush_all(self) -> None:
        self.history.flush()

    @precondition(lambda self: self.flush is None)
    @rule()
    def begin_flush(self) -> None:
        self.flush = self.history.log.begin_flush()

    @precondition(lambda self: self.flush is not None)
    @rule()
    def end_flush(self) -> None:
        flush, self.flush = self.flush, None
        assert flush is not None
        flush.run()
        self.history.log.end_flush(flush)
        self.history.note_durable()

    @precondition(lambda self: self.flush is None)
    @rule()
    def fail_a_flush_and_restart(self) -> None:
        disk, log = self.history.disk, self.history.log
        flush = log.begin_flush()
        if flush is None:
            return
        durable = log.durable_index
        disk.failing = lambda operation, _name: operation == "sync"
        try:
            flush.run()
        except OSError as error:
            log.end_flush(flush, error)
        disk.failing = None
        assert log.durable_index == durable
        try:
            log.append([1], epoch=self.history.epoch)
        except LogReadOnly:
            self.history.check_reopened()
            return
        raise AssertionError("a log took an append after a failed flush")

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self.history.truncate(data.draw(st.integers(0, len(self.history.frames))))

    @rule(data=st.data())
    def append_raw_frames_again(self, data: st.DataObject) -> None:
        history = self.history
        kept = data.draw(st.integers(0, len(history.frames)))
        cut = history.frames[kept:]
        raw = b""
        index = cut[0].header.index if cut else history.log.bounds.highest_index
        while index < history.log.bounds.highest_index:
            piece, index = history.log.read_frames(index, 5000, unflushed=True)
            raw += piece
        history.truncate(kept)
        history.log.append_frames(raw)
        history.frames += cut
        history.note_durable()

    @rule(size=st.integers(0, 20))
    def append_a_stream(self, size: int) -> None:
        self.history.append_stream(size * 100)

    @rule(data=st.data())
    def truncate_inside_a_frame(self, data: st.DataObject) -> None:
        frames = self.history.frames
        places = [place for place, frame in enumerate(frames) if frame.header.count > 1]
        if places:
            place = data.draw(st.sampled_from(places))
            self.history.truncate_inside(place, data.draw(st.integers(1, frames[place].header.count - 1)))

    @rule(max_bytes=st.integers(0, 8000), floor=st.one_of(st.none(), st.integers(0, 60)))
    def expire(self, max_bytes: int, floor: int | None) -> None:
        log = self.history.log
        lowest = log.bounds.lowest_index
        self.history.expire(max_bytes, floor)
        if floor is not None:
            assert log.bounds.lowest_index in range(lowest, max(lowest, floor) + 1)
        if log.segments.bases[1:2] and log.durable_index > log.segments.bases[-1] and floor is None:
            assert log.size <= max_bytes or len(log.segments.bases) == 1

    @rule(index=st.integers(0, 200))
    def reset_after_a_snapshot(self, index: int) -> None:
        self.history.reset(Tail(index, self.history.epoch, 10**9, 0xFEEDBEEF))

    @rule()
    def sync_mark(self) -> None:
        self.history.sync_mark()

    @rule()
    def stop_and_start(self) -> None:
        self.flush = None
        self.history.close()
        self.history.check_reopened()

    @rule()
    def kill(self) -> None:
        self.flush = None
        self.history.check_reopened()

    @rule(keep=st.sampled_from(Keep))
    def lose_power(self, keep: Keep) -> None:
        self.flush = None
        self.history.disk.lose_power(keep)
        self.history.check_reopened()

    @rule(operations=st.integers(1, 40), keep=st.sampled_from(Keep), data=st.data())
    def lose_power_on_the_way(self, operations: int, keep: Keep, data: st.DataObject) -> None:
        history, disk = self.history, self.history.disk
        self.flush = None
        kept = data.draw(st.integers(0, len(history.frames)))
        disk.on_power_loss = keep
        disk.stop_before = disk.operations + operations
        try:
            history.log.close()
            history.open()
            history.append(9)
            history.append_stream(900)
            history.truncate(kept)
            history.append(9)
            history.expire(2000)
            history.append(9)
            history.reset(Tail(500, history.epoch, 10**9, 0xFEEDBEEF))
            history.append(9)
        except PowerLoss:
            pass
        # Losing it twice changes nothing: what was kept is durable.
        disk.lose_power(keep)
        history.truncating = False
        history.check_reopened()

    @invariant()
    def every_durable_record_is_readable_and_no_other(self) -> None:
        history = self.history
        log = history.log
        durable = [frame for frame in history.frames if frame.header.next_index <= log.durable_index]
        lowest = log.bounds.lowest_index
        assert list(log.reader.stream(lowest, log.durable_index)) == durable
        assert list(log.reader.stream_unbounded()) == durable
        for frame in durable[:: max(1, len(durable) // 5)]:
            for place, value in enumerate(frame_values(frame)):
                assert log.read(frame.header.index + place).value == value
            assert log.lookup.bytes_between(lowest, frame.header.index) == sum(
                other.header.size for other in durable if other.header.index < frame.header.index
            )

    @invariant()
    def the_log_is_the_list(self) -> None:
        if self.flush is None:
            assert all_frames(self.history.log) == self.history.frames


TestLogAgainstList = pytest.mark.slow(LogAgainstList.TestCase)
