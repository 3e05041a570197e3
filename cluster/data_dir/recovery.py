"""Forced recovery: a survivor of a lost majority becomes the only voter of a new history (`cluster/DESIGN.md`).

    log synced -> plan -> history record in the log -> promise of a new disk -> witnesses of it -> identity
        -> plan removed

The plan is the file `recovery`. While it is there, no node starts, because some files are of the old disk and others of
the new one. It holds all that the steps need, each step may be repeated, and the next run continues them.

All records of the survivor count, unacknowledged ones too. No other node may count its old disk for anything, so the
node gets a new one; nor may an old leader's message count, so the epoch rises by more than any that was not seen.
"""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from crc32c import crc32c

from quire.log import (
    FEATURES,
    HISTORY,
    MEMBERSHIP,
    Directory,
    Kind,
    Log,
    LogOptions,
    PayloadInvalid,
    encode_frame,
    encode_system,
    pack,
    stored_mark,
    unpack,
    walk_frames,
    wall_clock,
)
from quire.replication import Member, Members, PromiseFile, PromiseLost, Role, Witnesses, WitnessForeign
from quire.replication.core.members import DISK_ID_BYTES, MAX_REMOVED, NO_DISK, Removed
from quire.replication.core.messages import Promise
from quire.replication.promises import PROMISE_FILE
from quire.replication.witnesses import WITNESS_FILES

from .genesis import CLUSTER_ID_BYTES
from .identity import DataDirRefused, read_identity, write_identity, write_whole_file
from .survivor import HISTORY_TYPE, Survivor
from .witnessed import check_epoch

PLAN_FILE = "recovery"
PLAN_VERSION = 1
MAX_PLAN_BYTES = 1 << 20
EPOCH_STEP = 1 << 20
"""More epochs than the lost nodes can have begun unseen, and far fewer than a peer may be ahead (rule 18)."""
AGAIN = "a recovery of it was interrupted; run the same `quire recover` again, which finishes it"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """A recovery: what the survivor was, and what it becomes."""

    node_id: str
    name: str
    """Of the cluster, from now on."""
    address: str
    former_history: bytes
    former_disk_id: bytes
    others: tuple[tuple[str, str], ...]
    """The other members until now, as (node id, HOST:PORT): none of them may answer."""
    history: bytes
    disk_id: bytes
    epoch: int
    commit_index: int
    """Records of the survivor from here on might not have been acknowledged."""
    end: int
    """The end of the survivor's records, where the new history begins."""
    frames: bytes
    """The frames to append: `features` if the log lacks some, then `history`."""

    def to_bytes(self) -> bytes:
        """The file's content: crc32c of the rest, and a msgpack map."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        body = pack({"version": PLAN_VERSION} | fields | {"others": [list(pair) for pair in self.others]})
        return crc32c(body).to_bytes(4, "little") + body

    @classmethod
    def from_bytes(cls, raw: bytes) -> "RecoveryPlan":
        """Decode the file's content. Raises ValueError: it is damaged, or of another version."""
        body = raw[4:]
        if len(raw) <= 4 or crc32c(body) != int.from_bytes(raw[:4], "little"):
            raise ValueError("its crc32c differs")
        try:
            fields = unpack(body)
        except PayloadInvalid as error:
            raise ValueError(str(error)) from error
        match fields:
            case {
                "version": 1,
                "node_id": str(node_id),
                "name": str(name),
                "address": str(address),
                "former_history": bytes(former_history),
                "former_disk_id": bytes(former_disk_id),
                "others": list(others),
                "history": bytes(history),
                "disk_id": bytes(disk_id),
                "epoch": int(epoch),
                "commit_index": int(commit_index),
                "end": int(end),
                "frames": bytes(frames),
            }:
                rows = tuple((str(row[0]), str(row[1])) for row in others if isinstance(row, list) and len(row) == 2)
                former = former_history, former_disk_id
                return cls(node_id, name, address, *former, rows, history, disk_id, epoch, commit_index, end, frames)
            case _:
                raise ValueError("it is of another version")


def read_plan(directory: Directory) -> RecoveryPlan | None:
    """The plan of an unfinished recovery; None if there is none.

    Raises:
        DataDirRefused: it is damaged.
    """
    try:
        storage = directory.open(PLAN_FILE)
    except FileNotFoundError:
        return None
    with closing(storage):
        raw = storage.read_at(0, MAX_PLAN_BYTES)
    try:
        return RecoveryPlan.from_bytes(raw)
    except ValueError as error:
        reason = (
            f"its file {PLAN_FILE} cannot be used ({error}); recover from a copy of the directory, or another survivor"
        )
        raise DataDirRefused(directory.path, reason) from error


def refuse_unfinished(directory: Directory) -> None:
    """Check that no recovery of the directory is unfinished.

    Raises:
        DataDirRefused: one is.
    """
    if PLAN_FILE in directory.list():
        raise DataDirRefused(directory.path, AGAIN)


def make_plan(
    path: str, survivor: Survivor, name: str, address: str | None, clock: Callable[[], int] = wall_clock
) -> RecoveryPlan:
    """Plan a recovery from a survivor. `address` replaces its address in the members record.

    Raises:
        DataDirRefused: it was removed from the cluster, or is no member that holds all records.
    """
    me, members = survivor.identity, survivor.members
    if (index := survivor.removed_at) is not None:
        raise DataDirRefused(path, f"{me.node_id} was removed at index {index}; recover from a node that was a member")
    if survivor.role in ("", Role.JOINING):
        raise DataDirRefused(path, f"{me.node_id} is no member with this disk; recover from a node that was a member")
    own = members.of_node(me.node_id)
    at = address or ("" if own is None else own.address)
    epoch = survivor.epoch_seen + EPOCH_STEP
    check_epoch(path, "the recovery", epoch)
    disk_id, history = os.urandom(DISK_ID_BYTES), os.urandom(CLUSTER_ID_BYTES)
    records: list[dict[str, object]] = []
    if not {MEMBERSHIP, HISTORY} <= survivor.features:
        records.append({"type": "features", "names": sorted(FEATURES | survivor.features)})
    index = survivor.tail.index + len(records)
    gone = [Removed(m.node_id, m.disk_id, index) for m in members.members if m.disk_id != NO_DISK]
    removed = (*members.removed, *gone)[-MAX_REMOVED:]
    rows = Members((Member(me.node_id, disk_id, at, Role.VOTER),), removed).to_record()
    begun: dict[str, object] = {"from": [me.history, survivor.tail.index], **rows}
    records.append({"type": HISTORY_TYPE, "history": history, "name": name, **begun})
    return RecoveryPlan(
        node_id=me.node_id,
        name=name,
        address=at,
        former_history=me.history,
        former_disk_id=me.disk_id,
        others=tuple((m.node_id, m.address) for m in members.members if m.node_id != me.node_id),
        history=history,
        disk_id=disk_id,
        epoch=epoch,
        commit_index=survivor.commit_index,
        end=survivor.tail.index,
        frames=_frames(survivor, epoch, records, max(survivor.tail.timestamp, clock())),
    )


def _frames(survivor: Survivor, epoch: int, records: list[dict[str, object]], timestamp: int) -> bytes:
    raw, crc = b"", survivor.tail.crc32c
    for offset, record in enumerate(records):
        frame = encode_frame(
            index=survivor.tail.index + offset,
            epoch=epoch,
            timestamp=timestamp,
            count=1,
            prev_crc32c=crc,
            kind=Kind.SYSTEM,
            payload=encode_system(record),
        )
        crc = next(walk_frames(frame)).header.crc32c
        raw += frame
    return raw


def recover(directory: Directory, plan: RecoveryPlan, options: LogOptions) -> None:
    """Carry out a plan, or what an interrupted run left of it. The caller holds the lock. Blocks; durable on return.

    Raises:
        DataDirRefused: the directory has lost its identity.
        LogError, OSError: the device failed, or is full; run it again.
    """
    identity = read_identity(directory)
    if identity is None:
        raise DataDirRefused(directory.path, "it has no identity; recover from a copy of it, or another survivor")
    if PLAN_FILE not in directory.list():
        _make_durable(directory, plan, identity.cluster_id, options)
        write_whole_file(directory, PLAN_FILE, plan.to_bytes())
    _append(directory, plan, identity.cluster_id, options)
    _promise(directory, plan)
    _witness(directory, plan)
    write_identity(directory, replace(identity, disk_id=plan.disk_id, history=plan.history))
    directory.remove(PLAN_FILE)
    directory.sync()


def _make_durable(directory: Directory, plan: RecoveryPlan, cluster_id: bytes, options: LogOptions) -> None:
    """Make the records that the plan counts durable: those of a killed node may be in the page cache only."""
    with closing(_open(directory, cluster_id, options)) as log:
        if log.durable_index != plan.end:
            ends = f"its log ends at {log.durable_index}, and not at {plan.end} as it was read before"
            raise DataDirRefused(directory.path, f"{ends}; run the same `quire recover` again")


def _open(directory: Directory, cluster_id: bytes, options: LogOptions) -> Log:
    return Log.open(directory, options, cluster_id=cluster_id, clock=wall_clock, standalone=False)


def _append(directory: Directory, plan: RecoveryPlan, cluster_id: bytes, options: LogOptions) -> None:
    """Append the plan's frames, unless an earlier run did; a part of them is replaced."""
    ended = list(walk_frames(plan.frames))[-1].header
    with closing(_open(directory, cluster_id, options)) as log:
        if (log.tail.index, log.tail.crc32c) == (ended.next_index, ended.crc32c):
            return
        log.truncate(plan.end)
        log.append_frames(plan.frames)
        log.flush()


def _promise(directory: Directory, plan: RecoveryPlan) -> None:
    """Replace the promise by one of the new disk, made to this node itself in the epoch of the history record."""
    try:
        promises = PromiseFile.open(directory, plan.disk_id)
    except (PromiseLost, FileNotFoundError):
        with suppress(FileNotFoundError):
            directory.remove(PROMISE_FILE)
        promises = PromiseFile.create(directory, plan.disk_id)
    with closing(promises):
        if promises.promise.epoch < plan.epoch:
            promises.write(Promise(plan.epoch, plan.node_id, 0))


def _witness(directory: Directory, plan: RecoveryPlan) -> None:
    """Replace the witnesses by those of the new disk."""
    try:
        witnesses = Witnesses(directory, plan.disk_id)
    except WitnessForeign:
        for name in WITNESS_FILES:
            with suppress(FileNotFoundError):
                directory.remove(name)
        directory.sync()
        witnesses = Witnesses(directory, plan.disk_id)
    with closing(witnesses):
        witnesses.settle(plan.epoch, stored_mark(directory))
