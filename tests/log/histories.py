"""Histories of a log on a faulty disk, and what must be left of them after a crash.

The model is a plain list of frames: the log may hold at most `frames`, and must hold the first `least` of them. During
a truncation the log may be anything between; after it, a truncated frame is gone. `expiring` frames at the front may be
gone. `cutting` names the frame that is being split and how many of its records stay; `resetting` is the end of the
snapshot that the log is being reset to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quire.log import (
    HEADER_BYTES,
    Frame,
    Kind,
    Log,
    LogOptions,
    Tail,
    encode_records,
    encode_system,
    frame_values,
    walk_frames,
)
from quire.log.simulated import Disk, Keep
from tests.log.streamed import append_stream

CLUSTER_ID = b"0123456789abcdef"
SMALL = LogOptions(segment_bytes=2048, segment_overflow_bytes=1024, index_interval_bytes=256, write_buffer_bytes=700)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1
        return self.now


def open_log(disk: Disk, options: LogOptions = SMALL, *, standalone: bool = True, initial_index: int = 0) -> Log:
    """Open the log on a disk as a new process does."""
    return Log.open(
        disk.directory(),
        options,
        cluster_id=CLUSTER_ID,
        initial_index=initial_index,
        clock=Clock(),
        standalone=standalone,
    )


def all_frames(log: Log) -> list[Frame]:
    """Return every frame of a log, unflushed ones included, having checked that they are contiguous and chained."""
    frames: list[Frame] = []
    index = log.bounds.lowest_index
    while index < log.bounds.highest_index:
        raw, index = log.read_frames(index, 4096, unflushed=True)
        frames += walk_frames(raw)
    tail = log.origin
    for frame in frames:
        header = frame.header
        assert (header.index, header.prev_crc32c) == (tail.index, tail.crc32c)
        assert header.epoch >= tail.epoch
        assert header.timestamp >= tail.timestamp
        tail = Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)
    assert tail == log.tail
    assert log.size == sum(HEADER_BYTES + len(frame.payload) for frame in frames)
    return frames


@dataclass
class History:
    """A log and the model of it."""

    disk: Disk
    options: LogOptions = SMALL
    frames: list[Frame] = field(default_factory=list)
    least: int = 0
    counter: int = 0
    epoch: int = 0
    truncating: bool = False
    expiring: int = 0
    cutting: tuple[int, int] | None = None
    resetting: Tail | None = None
    members_below: int | None = None
    streaming: bytes | None = None
    log: Log = field(init=False)

    def open(self) -> None:
        self.log = open_log(self.disk, self.options)

    def fork(self, disk: Disk | None = None) -> History:
        """Return the same knowledge of a copy of the disk, or of `disk`; its log is not open."""
        return replace(self, disk=self.disk.fork() if disk is None else disk, frames=list(self.frames))

    def append(self, count: int, size: int = 100) -> None:
        """Append frames of one to three records, sometimes a members record or a new epoch."""
        for _ in range(count):
            self.counter += 1
            self.epoch = max(self.epoch, self.log.tail.epoch)
            if self.counter % 7 == 0:
                self.epoch += 1
            if self.counter % 11 == 0:
                payload, records, kind = encode_system({"type": "members", "members": [self.counter]}), 1, Kind.SYSTEM
            else:
                records, kind = 1 + self.counter % 3, Kind.RECORDS
                payload = encode_records([f"{self.counter}:{place}".ljust(size // records) for place in range(records)])
            header = self.log.append_payload(payload, count=records, kind=kind, epoch=self.epoch)
            self.frames.append(Frame(header, payload))
            self.note_durable()

    def note_durable(self) -> None:
        """Note that what the log calls durable must survive every crash."""
        durable = self.log.durable_index
        assert durable <= self.log.bounds.highest_index
        least = sum(1 for frame in self.frames if frame.header.next_index <= durable)
        self.least = max(self.least, least)

    def flush(self) -> None:
        self.log.flush()
        self.note_durable()
        assert self.least == len(self.frames)

    def truncate(self, kept: int) -> None:
        """Truncate to that many frames. Until it is done, the log may hold any number between."""
        index = self.frames[kept].header.index if kept < len(self.frames) else self.log.bounds.highest_index
        self.least = min(self.least, kept)
        self.truncating = True
        self.log.truncate(index)
        self.truncating = False
        del self.frames[kept:]
        self.epoch = max((frame.header.epoch for frame in self.frames), default=0)
        self.note_durable()

    def truncate_inside(self, place: int, kept: int) -> None:
        """Split the frame at `place`: its first `kept` records stay."""
        index = self.frames[place].header.index + kept
        # The frame stays, whole or cut: its first records must not be lost if they are durable.
        self.least = min(self.least, place + 1)
        self.truncating, self.cutting = True, (place, kept)
        self.log.truncate(index)
        self.truncating = False
        self.take_cut_frame([*self.frames[:place], self.log.reader.frame(index - 1)])
        self.epoch = max(frame.header.epoch for frame in self.frames)
        self.note_durable()
        assert self.least == len(self.frames)

    def take_cut_frame(self, found: list[Frame]) -> None:
        """Replace the frame that was split by the one that was found, which holds its first records."""
        assert self.cutting is not None
        place, kept = self.cutting
        self.cutting = None
        whole, cut = self.frames[place], found[place]
        assert frame_values(cut) == frame_values(whole)[:kept]
        assert cut.header.index == whole.header.index
        assert cut.header[3:5] == whole.header[3:5], "epoch and timestamp stay"
        self.frames = found[: place + 1]

    def append_stream(self, size: int) -> None:
        """Append a blob that arrives in chunks."""
        self.epoch = max(self.epoch, self.log.tail.epoch)
        self.counter += 1
        chunks = [bytes([self.counter % 256]) * 100] * (size // 100)
        self.streaming = b"".join(chunks)
        index = append_stream(self.log, chunks, metadata={"n": str(self.counter)}, epoch=self.epoch)
        raw, _ = self.log.read_frames(index, 1, unflushed=True)
        self.frames += walk_frames(raw)
        self.streaming = None
        self.note_durable()

    def expire(self, max_bytes: int, floor: int | None = None) -> int:
        """Expire the front of the log down to `max_bytes`; return how many frames went."""
        sizes = sum(frame.header.size for frame in self.frames)
        bases = self.log.segments.bases
        place = 0
        while sizes > max_bytes and place < len(self.frames):
            sizes -= self.frames[place].header.size
            place += 1
        # Whole segments: all frames of the one that holds the frame at `place` may go.
        later = [base for base in bases if place and base > self.frames[place - 1].header.index]
        limit = later[0] if later else bases[-1]
        self.expiring = sum(1 for frame in self.frames if frame.header.index < limit)
        self.log.expiry.remove(max_bytes=max_bytes, floor=floor)
        return self.drop_expired()

    def reset(self, origin: Tail) -> None:
        """Reset the log to a snapshot's end, unless it continues from there."""
        least = self.least
        self.resetting, self.truncating, self.least = origin, True, 0
        if self.log.reset(origin):
            assert self.log.tail == self.log.origin == origin
            self.frames, self.members_below, self.epoch = [], None, origin.epoch
        else:
            self.least = least
        self.resetting, self.truncating = None, False

    def drop_expired(self) -> int:
        """Drop from the list what is below the log, after a check that it was allowed to go."""
        lowest = self.log.bounds.lowest_index
        gone = sum(1 for frame in self.frames if frame.header.index < lowest)
        assert gone <= self.expiring, "a frame expired that must not"
        members = [frame.header.index for frame in self.frames[:gone] if frame.header.kind == Kind.SYSTEM]
        self.members_below = members[-1] if members else self.members_below
        del self.frames[:gone]
        self.least = max(0, self.least - gone)
        self.expiring = 0
        return gone

    def sync_mark(self) -> None:
        sync = self.log.mark_sync.begin()
        if sync is not None:
            sync.run()
            self.log.mark_sync.end(sync)

    def close(self) -> None:
        self.log.close()
        self.least = len(self.frames)

    def check_reopened(self) -> None:
        """Open after a crash and compare; the list is then what is left."""
        self.open()
        again, self.resetting = self.resetting, None
        if again is not None and self.log.tail in (again, Tail(0, 0, 0, 0)):
            # It was stopped when nothing was left of the old log.
            self.frames, self.members_below = [], None
        self.drop_expired()
        found = all_frames(self.log)
        if self.cutting is not None and found != self.frames[: len(found)]:
            self.take_cut_frame(found)
        self.cutting = None
        if self.streaming is not None and len(found) == len(self.frames) + 1:
            # It was stopped while the spool was removed: the frame was appended, without an answer.
            assert frame_values(found[-1]) == [self.streaming]
            self.frames.append(found[-1])
        self.streaming = None
        assert found == self.frames[: len(found)], "the log holds a frame that it must not"
        assert len(found) >= self.least, "a durable frame is lost"
        assert self.log.durable_index == self.log.bounds.highest_index
        self.frames, self.least = found, len(found)
        self.epoch = max((frame.header.epoch for frame in found), default=0)
        members = [frame.header.index for frame in found if frame.header.kind == Kind.SYSTEM]
        assert self.log.members_index == (members[-1] if members else self.members_below)
        starts: dict[int, int] = {}
        for frame in found:
            starts.setdefault(frame.header.epoch, frame.header.index)
        assert list(self.log.epochs) == list(starts.items())
        if again is not None:
            # The snapshot is durable, so its node resets the log again.
            self.reset(again)


def written(*, clean: bool = True) -> History:
    """A log of several segments, closed; the last frames are above the mark unless it was stopped cleanly."""
    history = History(Disk())
    history.open()
    history.append(40)
    history.flush()
    history.append(8)
    if clean:
        history.close()
    else:
        history.disk.lose_power(Keep.EVERYTHING)
    return history


def names(history: History, suffix: str = ".store") -> list[str]:
    """The files of its segments, in their order."""
    return [f"log/{name}" for name in history.disk.names("log") if name.endswith(suffix)]
