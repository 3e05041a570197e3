"""Forced recovery: a survivor of a lost majority becomes the only voter of a new history (`cluster/DESIGN.md`).

    log synced -> plan -> history record in the log -> promise of a new disk -> witnesses of it -> identity
        -> plan removed

The plan is the file `recovery`. While it is there, no node starts, because some files are of the old disk and others of
the new one. It holds all that the steps need, each step may be repeated, and the next run continues them.

All records of the survivor count, unacknowledged ones too.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from quire.log import (
    FEATURES,
    HISTORY,
    MEMBERSHIP,
    Directory,
    LogOptions,
    wall_clock,
)
from quire.replication import Role
from quire.replication.core.members import DISK_ID_BYTES

from .genesis import CLUSTER_ID_BYTES
from .identity import DataDirRefused, read_identity, write_identity, write_whole_file
from .new_history import (
    EPOCH_STEP,
    NewHistory,
    append_frames,
    decode_plan,
    encode_plan,
    open_log,
    read_plan_file,
    replace_disk,
)
from .survivor import Survivor, refuse_restoring
from .witnessed import check_epoch

PLAN_FILE = "recovery"
PLAN_VERSION = 1
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
        return encode_plan({"version": PLAN_VERSION} | fields | {"others": [list(pair) for pair in self.others]})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "RecoveryPlan":
        """Decode the file's content. Raises ValueError: it is damaged, or of another version."""
        match decode_plan(raw):
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
    return read_plan_file(
        directory, PLAN_FILE, RecoveryPlan.from_bytes, "recover from a copy of the directory, or another survivor"
    )


def refuse_unfinished(directory: Directory) -> None:
    """Check that no recovery of the directory is unfinished, and no restore into it.

    Raises:
        DataDirRefused: one is.
    """
    refuse_restoring(directory)
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
    begun = NewHistory(me.node_id, at, name, me.history, history, disk_id, epoch)
    names = None if {MEMBERSHIP, HISTORY} <= survivor.features else FEATURES | survivor.features
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
        frames=begun.frames(survivor.tail, members, names, clock()),
    )


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
    append_frames(directory, plan.end, plan.frames, identity.cluster_id, options)
    replace_disk(directory, plan.node_id, plan.disk_id, plan.epoch)
    write_identity(directory, replace(identity, disk_id=plan.disk_id, history=plan.history))
    directory.remove(PLAN_FILE)
    directory.sync()


def _make_durable(directory: Directory, plan: RecoveryPlan, cluster_id: bytes, options: LogOptions) -> None:
    """Make the records that the plan counts durable: those of a killed node may be in the page cache only."""
    with closing(open_log(directory, cluster_id, options)) as log:
        if log.durable_index != plan.end:
            ends = f"its log ends at {log.durable_index}, and not at {plan.end} as it was read before"
            raise DataDirRefused(directory.path, f"{ends}; run the same `quire recover` again")
