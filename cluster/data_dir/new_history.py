"""The beginning of a new history in a data directory, by a forced recovery or a restore: its records, and a new disk.

No other node may count the node's old disk for anything, so the node gets a new one; nor may an old leader's message
count, so the epoch rises by more than any that was not seen. Each step may be repeated.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

from crc32c import crc32c

from quire.log import (
    Directory,
    Kind,
    Log,
    LogOptions,
    PayloadInvalid,
    Tail,
    encode_frame,
    encode_system,
    pack,
    stored_mark,
    unpack,
    walk_frames,
    wall_clock,
)
from quire.replication import Member, Members, PromiseFile, PromiseLost, Role, Witnesses, WitnessForeign
from quire.replication.core.members import MAX_REMOVED, NO_DISK, Removed
from quire.replication.core.messages import Promise
from quire.replication.promises import PROMISE_FILE
from quire.replication.witnesses import WITNESS_FILES

from .identity import DataDirRefused
from .survivor import HISTORY_TYPE

MAX_PLAN_BYTES = 1 << 20
EPOCH_STEP = 1 << 20
"""More epochs than the lost nodes can have begun unseen, and far fewer than a peer may be ahead (rule 18)."""


Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class NewHistory:
    """A history, and the one voter that begins it with an empty promise on a new disk."""

    node_id: str
    address: str
    name: str
    """Of the cluster, from now on."""
    former_history: bytes
    history: bytes
    disk_id: bytes
    epoch: int

    def frames(self, end: Tail, members: Members, features: Collection[str] | None, clock: int) -> bytes:
        """The frames to append at the end of the former history: `features`, unless it is None, then `history`.

        `members` are those at the end: all their disks are removed.
        """
        records: list[dict[str, object]] = []
        if features is not None:
            records.append({"type": "features", "names": sorted(features)})
        index = end.index + len(records)
        gone = [Removed(m.node_id, m.disk_id, index) for m in members.members if m.disk_id != NO_DISK]
        removed = (*members.removed, *gone)[-MAX_REMOVED:]
        rows = Members((Member(self.node_id, self.disk_id, self.address, Role.VOTER),), removed).to_record()
        begun: dict[str, object] = {"from": [self.former_history, end.index], **rows}
        records.append({"type": HISTORY_TYPE, "history": self.history, "name": self.name, **begun})
        return self._encoded(end, records, max(end.timestamp, clock))

    def _encoded(self, end: Tail, records: list[dict[str, object]], timestamp: int) -> bytes:
        raw, crc = b"", end.crc32c
        for offset, record in enumerate(records):
            frame = encode_frame(
                index=end.index + offset,
                epoch=self.epoch,
                timestamp=timestamp,
                count=1,
                prev_crc32c=crc,
                kind=Kind.SYSTEM,
                payload=encode_system(record),
            )
            crc = next(walk_frames(frame)).header.crc32c
            raw += frame
        return raw


def encode_plan(fields: Mapping[str, object]) -> bytes:
    """The content of a plan's file: crc32c of the rest, and a msgpack map."""
    body = pack(fields)
    return crc32c(body).to_bytes(4, "little") + body


def decode_plan(raw: bytes) -> object:
    """The map in a plan's file. Raises ValueError: it is damaged."""
    body = raw[4:]
    if len(raw) <= 4 or crc32c(body) != int.from_bytes(raw[:4], "little"):
        raise ValueError("its crc32c differs")
    try:
        return unpack(body)
    except PayloadInvalid as error:
        raise ValueError(str(error)) from error


def read_plan_file(directory: Directory, name: str, decode: Callable[[bytes], Plan], advice: str) -> Plan | None:
    """The plan in a file; None if there is no such file. `advice` is what to do about one that is damaged.

    Raises:
        DataDirRefused: it is damaged.
    """
    try:
        storage = directory.open(name)
    except FileNotFoundError:
        return None
    with closing(storage):
        raw = storage.read_at(0, MAX_PLAN_BYTES)
    try:
        return decode(raw)
    except ValueError as error:
        raise DataDirRefused(directory.path, f"its file {name} cannot be used ({error}); {advice}") from error


def open_log(directory: Directory, cluster_id: bytes, options: LogOptions) -> Log:
    """The log of a cluster's node."""
    return Log.open(directory, options, cluster_id=cluster_id, clock=wall_clock, standalone=False)


def append_frames(directory: Directory, end: int, frames: bytes, cluster_id: bytes, options: LogOptions) -> None:
    """Append the frames at `end`, unless an earlier run did; a part of them is replaced. Durable on return."""
    ended = list(walk_frames(frames))[-1].header
    with closing(open_log(directory, cluster_id, options)) as log:
        if (log.tail.index, log.tail.crc32c) == (ended.next_index, ended.crc32c):
            return
        log.truncate(end)
        log.append_frames(frames)
        log.flush()


def replace_disk(directory: Directory, node_id: str, disk_id: bytes, epoch: int) -> None:
    """Replace the promise and the witnesses by those of a new disk, promised to this node itself. Durable on return."""
    _promise(directory, node_id, disk_id, epoch)
    _witness(directory, disk_id, epoch)


def _promise(directory: Directory, node_id: str, disk_id: bytes, epoch: int) -> None:
    try:
        promises = PromiseFile.open(directory, disk_id)
    except (PromiseLost, FileNotFoundError):
        with suppress(FileNotFoundError):
            directory.remove(PROMISE_FILE)
        promises = PromiseFile.create(directory, disk_id)
    with closing(promises):
        if promises.promise.epoch < epoch:
            promises.write(Promise(epoch, node_id, 0))


def _witness(directory: Directory, disk_id: bytes, epoch: int) -> None:
    try:
        witnesses = Witnesses(directory, disk_id)
    except WitnessForeign:
        for name in WITNESS_FILES:
            with suppress(FileNotFoundError):
                directory.remove(name)
        directory.sync()
        witnesses = Witnesses(directory, disk_id)
    with closing(witnesses):
        witnesses.settle(epoch, stored_mark(directory))
