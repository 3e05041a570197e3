"""The core's disk actions on the log and the promise file, and the log as the core sees it.

Appends and truncations are done on return. Flushes and promises wait for the device: the driver runs them in the
writer's thread.

Consecutive writes of clients share a frame. Its kind is `records` if all of them are sessionless, or if they are one
session's consecutive sequences; else `runs`, with one run for each write. A blob has a frame of its own. A write is
never split, and its records are consecutive. `log/DESIGN.md` has the payloads of the kinds.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from quire.log import (
    Expiry,
    FrameCorrupt,
    FrameHeader,
    FrameInvalid,
    Kind,
    Log,
    LogError,
    LogReadOnly,
    NoRoom,
    PayloadInvalid,
    ResourcesExhausted,
    Sync,
    Tail,
    UnknownVersion,
    Walk,
    decode_header,
    decode_system,
    encode_system,
    pack,
    walk_frames,
)
from quire.log.packing import array_head

from .core.events import Reason, RoomProbed
from .core.members import Members
from .core.messages import Last, Promise, Snapshot
from .core.state import NotReadableNow, RotHere
from .lag import lacking_bytes
from .promises import PromiseFile

RUN_BYTES = 32
"""The maximum that a write adds to a `runs` frame besides its records: its session, sequence and count, packed."""

SHORT_ARRAY = 16  # A shorter array has a head of one byte.

EPOCH_RECORD_BYTES = 4096  # More than an `epoch_start` and a members record need: without it nobody can lead.


OwnerT = TypeVar("OwnerT")
OwnerT_co = TypeVar("OwnerT_co", covariant=True)


@dataclass(eq=False, slots=True)
class Write(Generic[OwnerT_co]):
    """A client's write: the payload of a frame of its kind, with the smallest array head.

    `expected_index`: reject the write unless its first record gets this index. `sequence` is that of its first record
    in `session`; both are 0 without a session. `owner` is the object that waits for the outcome. For the journal:
    whether its records are commands, which it may name, how long they were checked, when it was proposed, in monotonic
    seconds (0: `Writing.propose` sets it), and the context of its request.
    """

    payload: bytes
    count: int
    kind: Kind = Kind.RECORDS
    expected_index: int | None = None
    session: int = 0
    sequence: int = 0
    are_commands: bool = False
    check_s: float = 0.0
    proposed_at: float = 0.0
    context: Context | None = field(default=None, repr=False)
    owner: OwnerT_co = field(kw_only=True, repr=False)
    size: int = field(init=False)
    """The maximum number of bytes that it adds to a frame."""

    def __post_init__(self) -> None:
        self.size = len(self.payload) + RUN_BYTES


class Share(NamedTuple, Generic[OwnerT_co]):
    """A write's share of a frame: its records begin `offset` records after the frame's first one."""

    write: Write[OwnerT_co]
    offset: int


class DraftFrame(NamedTuple, Generic[OwnerT_co]):
    """A frame to append: its payload, and the writes whose records it holds."""

    kind: Kind
    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody needs here.
    payload: bytes
    shares: Sequence[Share[OwnerT_co]]
    session: int = 0
    sequence: int = 0


def coalesce(
    writes: Iterable[Write[OwnerT]], next_index: int, misplaced: list[Write[OwnerT]]
) -> Iterator[DraftFrame[OwnerT]]:
    """Yield the frames that hold `writes`, in order. A write whose `expected_index` differs goes to `misplaced`.

    `next_index` is the log's highest_index before the first frame. All but the last must be appended.
    """
    shares: list[Share[OwnerT]] = []
    count = 0
    for write in writes:
        if write.expected_index not in (None, next_index + count):
            misplaced.append(write)
        elif write.kind is Kind.RECORDS:
            shares.append(Share(write, count))
            count += write.count
        else:
            if shares:
                yield _draft(shares, count)
            yield DraftFrame(write.kind, write.count, write.payload, (Share(write, 0),), write.session, write.sequence)
            next_index += count + write.count
            shares, count = [], 0
    if shares:
        yield _draft(shares, count)


def _draft(shares: list[Share[OwnerT]], count: int) -> DraftFrame[OwnerT]:
    first = shares[0].write
    if len(shares) == 1:
        return DraftFrame(Kind.RECORDS, count, first.payload, shares, first.session, first.sequence)
    records: list[bytes | memoryview] = [array_head(count)]
    records += [_records(write) for write, _ in shares]
    if _is_one_run(shares):
        return DraftFrame(Kind.RECORDS, count, b"".join(records), shares, first.session, first.sequence)
    runs = pack([[write.session, write.sequence, write.count] for write, _ in shares])
    return DraftFrame(Kind.RUNS, count, b"".join([array_head(2), runs, *records]), shares)


def _records(write: Write[object]) -> bytes | memoryview:
    """The payload without its array head. A short one is copied: a view costs more, and loads the garbage collector."""
    if write.count < SHORT_ARRAY:
        return write.payload[1:]
    return memoryview(write.payload)[len(array_head(write.count)) :]


def _is_one_run(shares: Sequence[Share[object]]) -> bool:
    """Whether the frame header alone can hold the session and sequence of every record."""
    first = shares[0].write
    if first.session == 0:
        return all(write.session == 0 for write, _ in shares)
    return all(write.session == first.session and write.sequence == first.sequence + offset for write, offset in shares)


class Placed(NamedTuple, Generic[OwnerT_co]):
    """A frame of clients' writes in the log: its range [index, next_index), and the writes whose records it holds."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    next_index: int
    epoch: int
    shares: Sequence[Share[OwnerT_co]]


class Rejected(NamedTuple, Generic[OwnerT_co]):
    """A write that was not appended at all."""

    write: Write[OwnerT_co]
    reason: Reason


class Appended(NamedTuple, Generic[OwnerT_co]):
    """The outcome of `append_writes`."""

    placed: Sequence[Placed[OwnerT_co]]
    rejected: Sequence[Rejected[OwnerT_co]]
    disk_full: bool
    """Whether there was no room, or no descriptor or memory, for a write."""


class SnapshotView(Protocol):
    """What the core reads about a node's snapshots. All of it is in memory."""

    @property
    def indices(self) -> Sequence[int]:
        """Of the whole snapshots, ascending."""
        ...

    @property
    def fetching(self) -> int:
        """The index of a partly fetched snapshot, 0 if there is none."""
        ...

    def members_of(self, members_index: int) -> Mapping[str, object] | None:
        """The fields of the members record at that index, if it is the last one below a whole snapshot."""
        ...


@contextmanager
def _reading() -> Generator[None]:
    try:
        yield
    except ResourcesExhausted as error:
        raise NotReadableNow(str(error)) from error
    except FrameCorrupt as error:
        raise RotHere(str(error)) from error


def _members_of(payload: bytes | memoryview, index: int) -> Members:
    """The members in the record at `index`."""
    try:
        return Members.from_record(decode_system(payload))
    except (KeyError, TypeError, ValueError) as error:
        raise PayloadInvalid(f"the record at {index} names no members: {error!r}") from error


class Disk:
    """One node's log and promise, behind the core's one writer. Also the core's `LogView`."""

    def __init__(
        self,
        log: Log,
        promises: PromiseFile,
        *,
        snapshots: SnapshotView | None = None,
        older_epochs: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`older_epochs` are those that began below the newest of `snapshots`."""
        self.log = log
        self.promises = promises
        self._snapshots = snapshots
        self.commit_index = max(log.mark_commit_index, *self.snapshot_indices, 0)
        """Every record below it is known at the start to be committed: snapshots hold only committed records."""
        self._older_epochs = list(older_epochs)
        self._members: tuple[int, Members] | None = None  # The last members record: its index, and what it says.

    # LogView

    @property
    def highest_index(self) -> int:
        """The next index to be written."""
        return self.log.tail.index

    @property
    def lowest_index(self) -> int:
        """The first index held."""
        return self.log.bounds.lowest_index

    @property
    def snapshot_indices(self) -> Sequence[int]:
        """The indices of this node's whole snapshots, ascending."""
        return () if self._snapshots is None else self._snapshots.indices

    @property
    def fetching(self) -> int:
        """The index of a partly fetched snapshot, 0 if there is none."""
        return 0 if self._snapshots is None else self._snapshots.fetching

    @property
    def members_index(self) -> int | None:
        """The index of the last `genesis` or `members` record."""
        return self.log.members_index

    @property
    def members(self) -> Members:
        """The members in this record. The same object is returned while it is the last such record.

        Raises:
            LogError: it cannot be read, or has no members.
        """
        index = self.log.members_index
        if index is None:
            raise PayloadInvalid("the log has no genesis, so nobody is a member")
        if self._members is None or self._members[0] != index:
            self._members = index, self._members_at(index)
        return self._members[1]

    def _members_at(self, index: int) -> Members:
        """Read them from the log, or from a snapshot if that record has expired.

        Nothing expires above the older of two snapshots, and an install keeps the snapshot at which the log begins. So
        this record is the last one in the newest snapshot below the log's end.
        """
        try:
            if index >= self.lowest_index:
                raw, _ = self.log.read_frames(index, 1, unflushed=True)
                return _members_of(next(walk_frames(raw)).payload, index)
            record = None if self._snapshots is None else self._snapshots.members_of(index)
            if record is None:
                raise PayloadInvalid(f"the members record at {index} has expired, and no snapshot has it")
            return Members.from_record(record)
        except (KeyError, TypeError, ValueError) as error:
            raise PayloadInvalid(f"the record at {index} names no members: {error!r}") from error

    def timestamp_of(self, index: int) -> int | None:
        """The timestamp of the frame that begins at `index`; None if it has expired. Raises NotReadableNow."""
        if index < self.lowest_index:
            return None
        with _reading():
            raw, _ = self.log.read_frames(index, 1, unflushed=True)
        return next(walk_frames(raw)).header.timestamp

    @property
    def last_epoch(self) -> int:
        """The epoch of the last frame."""
        return self.log.tail.epoch

    @property
    def durable(self) -> Last:
        """The last durable (epoch, index)."""
        tail = self.log.durable_tail
        return Last(tail.epoch, tail.index)

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, first index) pairs, ascending, expired epochs included."""
        lowest, held = self.log.bounds.lowest_index, self.log.epochs
        older = [pair for pair in self._older_epochs if pair[1] < lowest]
        # The log itself takes its first record for the beginning of its first epoch.
        return [*older, *(held[1:] if older and held and older[-1][0] == held[0][0] else held)]

    def bytes_from(self, index: int) -> int:
        """The bytes of the durable frames from this boundary on."""
        return lacking_bytes(self.log, index)

    def is_boundary(self, index: int) -> bool:
        """Whether a frame of this log ends or begins at `index`."""
        if not self.log.bounds.lowest_index <= index <= self.log.tail.index:
            return False
        with _reading():
            return index == self.log.tail.index or self.log.lookup.boundary_at_or_below(index) == index

    def crc32c_before(self, index: int) -> int:
        """The crc32c field of the frame that ends at this boundary."""
        for tail in (self.log.tail, self.log.durable_tail, self.log.origin):
            if index == tail.index:
                return tail.crc32c
        with _reading():
            raw, _ = self.log.read_frames(self.log.lookup.boundary_at_or_below(index - 1), 1, unflushed=True)
        return decode_header(raw).crc32c

    def verifies_before(self, index: int) -> bool:
        """Whether the frame that ends at this boundary verifies in the file; true at the log's start: it is gone."""
        if index == self.lowest_index:
            return True
        try:
            with _reading():
                raw, _ = self.log.read_frames(self.log.lookup.boundary_at_or_below(index - 1), 1, unflushed=True)
            return next(walk_frames(raw)).header.next_index == index
        except (RotHere, FrameInvalid, UnknownVersion):
            return False

    # Actions

    def append_writes(self, epoch: int, time: int, writes: Sequence[Write[OwnerT]]) -> Appended[OwnerT]:
        """Append clients' writes in as few frames as possible; return which are in the file now and which are not.

        Their timestamp is `time`, or the last frame's if that is later.
        """
        placed: list[Placed[OwnerT]] = []
        rejected: list[Rejected[OwnerT]] = []
        misplaced: list[Write[OwnerT]] = []
        full: Reason | None = None
        for draft in coalesce(writes, self.log.tail.index, misplaced):
            try:
                header = None if full else self._append(epoch, time, draft)
            except NoRoom as error:  # Append nothing after it: no later write of a client may overtake an earlier one.
                exhausted = isinstance(error, ResourcesExhausted)
                header, full = None, Reason.RESOURCES_EXHAUSTED if exhausted else Reason.DISK_FULL
            if header is None:
                rejected += (Rejected(share.write, full or Reason.DISK_FULL) for share in draft.shares)
            else:
                placed.append(Placed(header.index, header.next_index, epoch, draft.shares))
        rejected += (Rejected(write, Reason.WRONG_INDEX) for write in misplaced)
        return Appended(placed, rejected, full is not None)

    def _append(self, epoch: int, time: int, draft: DraftFrame[object]) -> FrameHeader:
        return self.log.append_payload(
            draft.payload,
            count=draft.count,
            kind=draft.kind,
            epoch=epoch,
            session=draft.session,
            sequence=draft.sequence,
            timestamp=time,
        )

    def append_system(self, epoch: int, time: int, value: Mapping[str, object]) -> int:
        """Append one of the core's system records, which may use the room that is reserved from clients' writes.

        Return its index.

        Its timestamp is `time`, or the last frame's if that is later.
        """
        return self.log.append_payload(
            encode_system(value), count=1, kind=Kind.SYSTEM, epoch=epoch, timestamp=time, reserved=True
        ).index

    def probe_room(self) -> RoomProbed:
        """Whether an append finds room now. If no room is allocated it asks the file system, and writes what waits."""
        has_room, room = self.log.room.probe(), self.log.room
        return RoomProbed(has_room, has_room or room.left >= EPOCH_RECORD_BYTES, is_written=not room.is_stuck)

    def append_frames(self, raw: bytes) -> None:
        """Append a leader's frames, as `Log.append_frames`; none of them if a members record in them is invalid."""
        start = self.log.tail.index
        self.log.append_frames(raw, _members_of)
        index = self.log.members_index
        if index is not None and index >= start:
            with suppress(LogError):  # The frames are in the log; the next call of `members` raises the error.
                self._members = index, self._members_in(raw, index)

    def _members_in(self, raw: bytes, index: int) -> Members:
        """The members of a record that was appended with these frames."""
        try:
            return self._members_at(index)
        except ResourcesExhausted:  # These frames have filled its segment, whose file cannot be opened again now.
            record = next(frame for frame in walk_frames(raw) if frame.header.index == index)
            return _members_of(record.payload, index)

    def truncate(self, index: int, walk: Walk | None = None) -> None:
        """Truncate the log to a frame boundary, as `Log.truncate`. Blocks; durable on return.

        Raises:
            ResourcesExhausted, DiskFull: nothing was changed.
            LogError: it failed; only a restart tells which frames are still there.
        """
        members = self._members_below(index)
        self._forget_end()
        self.log.truncate(index, walk)
        self._members = members  # Another record may get the index of one that was truncated.

    def _members_below(self, index: int) -> tuple[int, Members] | None:
        """The members after a truncation to `index`; None if they can then be read without opening a file.

        A change opens the files that it needs before it begins. The file of the remaining segment stays open.
        """
        if self._members is not None and self._members[0] == self.log.members_index and self._members[0] < index:
            return self._members
        below = self.log.lookup.members_index_before(index)
        try:
            return None if below is None else (below, self._members_at(below))
        except PayloadInvalid:  # If the remaining segment has other members, these are not needed.
            return None

    def install(self, snapshot: Snapshot) -> None:
        """Make the log begin at a valid snapshot. Blocks; durable on return.

        Raises:
            ResourcesExhausted, DiskFull: nothing was changed.
            LogError: it failed; the next start repeats it.
        """
        tail = Tail(snapshot.index, snapshot.epoch, snapshot.timestamp, snapshot.crc32c)
        self._forget_end()
        self.log.reset(tail, members_index=snapshot.members_index)
        self._older_epochs = list(snapshot.epochs)
        self._members = None

    def begin_expiry(self, *, aged_to: int = 0, max_bytes: int | None, floor: int) -> Expiry | None:
        """Take the oldest segment out of the log as `LogExpiry.begin`; keep its epochs."""
        older = list(self.epochs)
        expiry = self.log.expiry.begin(aged_to=aged_to, max_bytes=max_bytes, floor=floor)
        if expiry is not None:
            self._older_epochs = older
        return expiry

    def store_promise(self, promise: Promise) -> None:
        """Write and fsync both slots, and then both witnesses. Blocks; durable on return.

        Raises:
            DiskFull: an overwrite found no room. Nothing may be answered; call it again.
        """
        self.promises.write(promise)

    def marked(self, sync: Sync) -> Callable[[], None]:
        """A function that runs a sync of the mark that has just begun, and then updates a witness. It blocks."""
        mark, witnesses = self.log.mark.latest, self.promises.witnesses

        def run() -> None:
            sync.run()
            if witnesses is not None:
                witnesses.note(mark)

        return run

    def _forget_end(self) -> None:
        if self.promises.witnesses is None:
            return
        try:
            self.promises.witnesses.forget_end(self.log.mark.latest)
        except OSError as error:
            raise LogReadOnly(f"writing a witness: {error}") from error
