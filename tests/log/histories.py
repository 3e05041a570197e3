"""Histories of a log on a faulty disk, and what must be left of them after a crash.

The expectation is a plain list of frames: `frames` is the longest the log may be, `least` how many of them it must
hold. While a truncation is under way the log may be anything between; when it is complete, a cut frame is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.log import HEADER_BYTES, Frame, Kind, Log, LogOptions, Tail, encode_records, encode_system, walk_frames
from tests.storage import Disk, Keep, PowerLoss

CLUSTER_ID = b"0123456789abcdef"
SMALL = LogOptions(segment_bytes=2048, segment_overflow_bytes=1024, index_interval_bytes=256, write_buffer_bytes=700)


class Clock:
    """A clock that a test turns."""

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
    """A log with what is known of it."""

    disk: Disk
    options: LogOptions = SMALL
    frames: list[Frame] = field(default_factory=list)
    least: int = 0
    counter: int = 0
    epoch: int = 0
    truncating: bool = False
    log: Log = field(init=False)

    def open(self) -> None:
        self.log = open_log(self.disk, self.options)

    def append(self, count: int, size: int = 100) -> None:
        """Append frames of one to three records, now and then a members record or a new epoch."""
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
        """What the log calls durable must be there after any crash."""
        durable = self.log.durable_index
        assert durable <= self.log.bounds.highest_index
        least = sum(1 for frame in self.frames if frame.header.next_index <= durable)
        self.least = max(self.least, least)

    def flush(self) -> None:
        self.log.flush()
        self.note_durable()
        assert self.least == len(self.frames)

    def truncate(self, kept: int) -> None:
        """Keep that many frames. On the way to it the log may be any between."""
        index = self.frames[kept].header.index if kept < len(self.frames) else self.log.bounds.highest_index
        self.least = min(self.least, kept)
        self.truncating = True
        self.log.truncate(index)
        self.truncating = False
        del self.frames[kept:]
        self.epoch = max((frame.header.epoch for frame in self.frames), default=0)
        self.note_durable()

    def sync_mark(self) -> None:
        sync = self.log.begin_mark_sync()
        if sync is not None:
            sync.run()
            self.log.end_mark_sync(sync)

    def close(self) -> None:
        self.log.close()
        self.least = len(self.frames)

    def check_reopened(self) -> None:
        """Open after a crash and compare; go on from what is left."""
        self.open()
        found = all_frames(self.log)
        assert found == self.frames[: len(found)], "the log holds a frame that it must not"
        assert len(found) >= self.least, "a durable frame is lost"
        assert self.log.durable_index == self.log.bounds.highest_index
        self.frames, self.least = found, len(found)
        self.epoch = max((frame.header.epoch for frame in found), default=0)
        members = [frame.header.index for frame in found if frame.header.kind == Kind.SYSTEM]
        assert self.log.members_index == (members[-1] if members else None)
        starts: dict[int, int] = {}
        for frame in found:
            starts.setdefault(frame.header.epoch, frame.header.index)
        assert list(self.log.epochs) == list(starts.items())


Steps = Callable[[History], None]


def explore(prepare: Steps, steps: Steps, *, seeds: range = range(5)) -> int:
    """Stop `steps` before each storage operation and after the last, in every way; check what a reopening finds.

    The reopening itself is stopped at each of its operations, too, with one seed. Returns how many crashes were tried.
    """
    tried = 0
    for keep in Keep:
        for seed in seeds if keep is Keep.SOME else range(1):
            stop = 0
            while True:
                stop += 1
                history = History(Disk(seed=seed * 10_000 + stop))
                history.open()
                prepare(history)
                stopped = _run_until(history, steps, stop, keep)
                _check(history, keep, recover_stops=seed == 0)
                tried += 1
                if not stopped:
                    break
    return tried


def _run_until(history: History, steps: Steps, stop: int, keep: Keep) -> bool:
    disk = history.disk
    disk.on_power_loss = keep
    disk.stop_before = disk.operations + stop
    try:
        steps(history)
    except PowerLoss:
        if not history.truncating:
            history.note_durable()
        return True
    disk.lose_power()
    return False


def _check(history: History, keep: Keep, *, recover_stops: bool) -> None:
    disk = history.disk
    if recover_stops:
        # Stop the recovery itself, once at each operation further than the time before.
        stop = 0
        while True:
            stop += 1
            disk.on_power_loss = keep
            disk.stop_before = disk.operations + stop
            try:
                history.open()
            except PowerLoss:
                continue
            disk.stop_before = None
            break
    history.check_reopened()
    # What is left takes appends, stops cleanly, and is the same after that.
    history.append(3)
    history.flush()
    history.close()
    history.check_reopened()
