"""Streams of frames across segments, while the log changes."""

from __future__ import annotations

import pytest

from quire.log import (
    FLUSH_NEVER,
    ChainBroken,
    Frame,
    FrameCorrupt,
    IndexExpired,
    IndexOutOfBounds,
    Log,
    LogClosed,
    LogOptions,
    NotYetFlushed,
    frame_values,
)
from quire.log.segment.reader import Found, Lookup
from quire.log.simulated import Disk
from tests.log.histories import SMALL, Clock, open_log

LARGE = LogOptions(segment_bytes=3 << 20, index_interval_bytes=1 << 16)


def log_of(disk: Disk, frames: int, size: int = 100, options: LogOptions = SMALL) -> Log:
    log = open_log(disk, options)
    for k in range(frames):
        log.append([f"{k}:{place}".ljust(size) for place in range(2)])
    log.flush()
    return log


def indices(frames: list[Frame]) -> list[int]:
    return [frame.header.index for frame in frames]


def test_a_stream_goes_from_segment_to_segment_and_holds_both_of_its_ends() -> None:
    log = log_of(Disk(), 40)
    assert len(log.segments.bases) > 4
    assert indices(list(log.reader.stream(0, 80))) == list(range(0, 80, 2))
    # The range ends inside a frame, which is yielded whole.
    assert indices(list(log.reader.stream(13, 52))) == list(range(12, 52, 2))
    assert indices(list(log.reader.stream(13, 51))) == list(range(12, 52, 2))
    assert list(log.reader.stream(7, 7)) == []
    assert str(frame_values(next(log.reader.stream(3, 4)))[1]).strip() == "1:1"


def test_a_stream_looks_up_an_index_once_and_not_once_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(Disk(), 40)
    lookups: list[int] = []
    original = Lookup.find

    def counting(lookup: Lookup, index: int) -> Found:
        lookups.append(index)
        return original(lookup, index)

    monkeypatch.setattr(Lookup, "find", counting)
    list(log.reader.stream(13, 80))
    assert lookups == [13, 12]  # the boundary at or below 13, and its place


def test_an_unbounded_stream_begins_at_the_lowest_index_and_includes_records_flushed_meanwhile() -> None:
    log = log_of(Disk(), 10)
    stream = log.reader.stream_unbounded()
    assert next(stream).header.index == 0
    for k in range(30):
        log.append([f"more {k}".ljust(60)])
    log.flush()
    log.append(["not flushed"])
    assert indices(list(stream)) == [*range(2, 20, 2), *range(20, 50)]
    assert indices(list(log.reader.stream_unbounded(45))) == [45, 46, 47, 48, 49]
    assert list(log.reader.stream_unbounded(50)) == []
    with pytest.raises(IndexOutOfBounds):
        list(log.reader.stream_unbounded(52))


def test_a_stream_of_unflushed_records_raises_its_own_error() -> None:
    log = log_of(Disk(), 3)
    log.append(["not flushed"])
    with pytest.raises(NotYetFlushed) as error:
        list(log.reader.stream(0, 7))
    assert (error.value.index, error.value.durable) == (6, 6)
    with pytest.raises(IndexOutOfBounds):
        list(log.reader.stream(0, 8))


@pytest.mark.parametrize("place", [0, 20, 35])
def test_a_corrupt_frame_ends_a_stream_with_its_position_and_never_in_a_gap(place: int) -> None:
    disk = Disk()
    log = log_of(disk, 40)
    header = log.reader.frame(2 * place).header
    base = max(base for base in log.segments.bases if base <= header.index)
    position = 64 + log.lookup.bytes_between(base, header.index)
    disk.flip_bit(f"log/{base:020d}.store", position + 70)
    got: list[Frame] = []
    with pytest.raises(FrameCorrupt) as error:
        got.extend(log.reader.stream(0, 80))
    assert (error.value.file, error.value.position) == (f"{base:020d}.store", position)
    assert indices(got) == list(range(0, header.index, 2))[: len(got)]
    with pytest.raises(FrameCorrupt):
        list(log.reader.stream_unbounded())


def test_a_whole_segment_that_was_exchanged_breaks_the_chain_of_a_stream() -> None:
    disk, other = Disk(), Disk()
    log = log_of(disk, 40)
    foreign = open_log(other)
    for k in range(40):
        foreign.append([f"{k}:{place}".rjust(100) for place in range(2)])
    foreign.flush()
    assert foreign.segments.bases == log.segments.bases
    base = log.segments.bases[2]
    disk.replace(f"log/{base:020d}.store", other.content(f"log/{base:020d}.store"))
    with pytest.raises(FrameCorrupt) as error:
        list(log.reader.stream(0, 80))
    assert (error.value.file, error.value.position) == (f"{base:020d}.store", 64)


def test_a_reader_in_a_segment_that_expires_finishes_its_chunk_and_then_raises() -> None:
    disk = Disk()
    log = log_of(disk, 12, size=1 << 19, options=LARGE)
    stream = log.reader.stream(0, 24)
    assert next(stream).header.index == 0
    assert log.expiry.remove(max_bytes=0) > 0
    lowest = log.bounds.lowest_index
    with pytest.raises(IndexExpired) as error:
        list(stream)
    assert error.value.lowest == lowest > error.value.index
    assert indices(list(log.reader.stream(lowest, 24))) == list(range(lowest, 24, 2))


def test_a_reader_of_a_segment_that_does_not_expire_continues() -> None:
    log = log_of(Disk(), 40)
    stream = log.reader.stream_unbounded(log.segments.bases[3])
    assert next(stream).header.index == log.segments.bases[3]
    assert log.expiry.remove(max_bytes=log.size // 2) > 0
    assert len(list(stream)) > 10


def test_a_reader_of_records_that_are_truncated_is_out_of_bounds() -> None:
    log = log_of(Disk(), 12, size=1 << 19, options=LARGE)
    stream = log.reader.stream_unbounded()
    assert [next(stream).header.index for _ in range(4)] == [0, 2, 4, 6]
    log.truncate(4)
    with pytest.raises(IndexOutOfBounds):
        list(stream)
    again = log.reader.stream_unbounded()
    next(again)
    log.truncate(2)
    log.append(["new"])
    log.flush()
    assert [frame_values(frame) for frame in again] == [["new"]]


@pytest.mark.parametrize("bounded", [True, False])
def test_a_stream_gives_nothing_that_was_cut_off_before_it_was_asked_for(bounded: bool) -> None:
    log = log_of(Disk(), 10)
    stream = log.reader.stream(0, 20) if bounded else log.reader.stream_unbounded()
    given = [next(stream) for _ in range(3)]
    log.truncate(10)
    for _ in range(5):
        log.append(["new", "new"])
    log.flush()
    given += stream
    assert given == list(log.reader.stream_unbounded())


@pytest.mark.parametrize("bounded", [True, False])
def test_a_stream_does_not_continue_after_a_frame_that_was_truncated(bounded: bool) -> None:
    for cut in range(1, 8):
        for records in (1, 2, 3):
            for frames in range(1, 20):
                log = log_of(Disk(), 10)
                stream = log.reader.stream(0, 20) if bounded else log.reader.stream_unbounded()
                given = [next(stream) for _ in range(3)]
                log.truncate(cut)
                for _ in range(frames):
                    log.append(["new"] * records)
                log.flush()
                if cut >= 6 and log.durable_index >= 20:
                    assert [*given, *stream] == list(
                        log.reader.stream(0, 20) if bounded else log.reader.stream_unbounded()
                    )
                elif cut < 6:
                    with pytest.raises((ChainBroken, IndexOutOfBounds)):
                        list(stream)


def test_a_bounded_stream_gives_nothing_unflushed_after_a_cut() -> None:
    log = log_of(Disk(), 30)
    stream = log.reader.stream(0, 60)
    assert next(stream).header.index == 0
    log.truncate(10)
    log.append(["durable"])
    log.flush()
    for _ in range(50):
        log.append(["n"])
    durable = log.durable_index
    assert durable < log.bounds.highest_index
    with pytest.raises(NotYetFlushed) as error:
        list(stream)
    assert (error.value.index, error.value.durable) == (durable, durable)


def test_a_stream_of_a_log_that_is_closed_meanwhile_is_refused() -> None:
    log = log_of(Disk(), 12, size=1 << 19, options=LARGE)
    stream = log.reader.stream(0, 24)
    next(stream)
    log.close()
    with pytest.raises(LogClosed):
        list(stream)


def test_with_the_policy_never_everything_appended_is_readable_at_once() -> None:
    log = Log.open(
        Disk().directory(),
        LogOptions(flush_policy=FLUSH_NEVER),
        cluster_id=bytes(16),
        clock=Clock(),
        standalone=True,
    )
    for k in range(10):
        log.append([k])
        assert log.read(k).value == k
    assert (log.durable_index, log.readable_index) == (0, 10)
    assert len(list(log.reader.stream(0, 10))) == 10
    assert log.read_frames(0, 1 << 20)[1] == 10
