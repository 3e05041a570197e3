"""Compares the witnesses of a data directory with its other files when it is opened.

If a file is older than a witness says, it was restored from a copy, or the disk lost a write. The node has made a
promise or acknowledged records that are no longer in the file, so it must not start with it.
"""

import structlog

from quire.log import Directory, Log, Tail, is_mark_damaged, stored_mark
from quire.replication import Witnesses, WitnessForeign
from quire.replication.core.belief import EPOCH_LIMIT
from quire.replication.core.fitness import REPLACE_DISK
from quire.replication.core.messages import Last

from .identity import DataDirRefused

logger = structlog.get_logger(__name__)


def read_witnesses(directory: Directory, disk_id: bytes) -> Witnesses:
    """The witnesses of a formatted directory; empty if it was formatted by an earlier version.

    Raises:
        DataDirRefused: one is of another disk, or holds an impossible epoch.
    """
    try:
        witnesses = Witnesses(directory, disk_id)
    except WitnessForeign as error:
        raise DataDirRefused(directory.path, f"{error}; {REPLACE_DISK}") from error
    known = witnesses.known
    check_epoch(directory.path, "a witness", max(known.promised_epoch, known.end_epoch))
    return witnesses


def check_epoch(path: str, what: str, epoch: int) -> None:
    """Check that an epoch in a file is possible (rule 18); otherwise no node would ever believe this one.

    Raises:
        DataDirRefused: it is at or above 2^63.
    """
    if epoch >= EPOCH_LIMIT:
        raise DataDirRefused(path, f"{what} holds epoch {epoch}, and none is at or above 2^63; {REPLACE_DISK}")


def check_files(directory: Directory, witnesses: Witnesses, promised_epoch: int) -> None:
    """Check that the promise and the mark are not older than the witnesses say. The log is not open yet.

    Raises:
        DataDirRefused: one of them is older. Nothing was changed.
    """
    known = witnesses.known
    if promised_epoch < known.promised_epoch:
        epochs = f"it holds epoch {promised_epoch}, and epoch {known.promised_epoch} was promised"
        reason = f"its promise file is an older copy: {epochs}"
        raise DataDirRefused(directory.path, f"{reason}; {REPLACE_DISK}")
    mark = stored_mark(directory)
    if mark is None:
        raise DataDirRefused(directory.path, f"no slot of its mark file is valid; {REPLACE_DISK}")
    if mark.generation >= known.mark_generation:
        return
    if mark.clean or not is_mark_damaged(directory):
        # The log must not be opened with it: everything above an older clean mark would be cut off.
        generations = f"it has generation {mark.generation}, and {known.mark_generation} was durable"
        reason = f"its mark file is an older copy, perhaps with its log: {generations}"
        raise DataDirRefused(directory.path, f"{reason}; {REPLACE_DISK}")
    logger.warning(
        "a slot of the mark is damaged: the log is checked from the other slot's index on, and its end is compared"
    )
    witnesses.accept_generation(mark.generation)


def check_end(path: str, witnesses: Witnesses, tail: Tail) -> None:
    """Check that the durable end of the log reaches as far as the witnesses say.

    Raises:
        DataDirRefused: it does not, or holds an impossible epoch.
    """
    known = witnesses.known
    check_epoch(path, "its log", tail.epoch)
    end = Last(known.end_epoch, known.end_index)
    if (tail.epoch, tail.index) < end:
        reason = (
            f"its log is an older copy, or another node's: it ends at index {tail.index} in epoch {tail.epoch}, and "
            f"was durable up to {end.index} in epoch {end.epoch}"
        )
        raise DataDirRefused(path, f"{reason}; {REPLACE_DISK}")


def check_snapshot(path: str, witnesses: Witnesses | None, log: Log, index: int) -> None:
    """Check that the log may be emptied for a snapshot at `index` that it does not follow (rule 16).

    An install is for a follower that lacks committed records. A snapshot at or below the node's own commit_index joins
    its log, unless one of the two belongs to another node.

    Raises:
        DataDirRefused: committed records would be lost.
    """
    committed = max(log.mark_commit_index, 0 if witnesses is None else witnesses.known.commit_index)
    if index <= committed:
        reason = f"its snapshot at {index} does not join its log, which was committed up to {committed}"
        raise DataDirRefused(path, f"{reason}; {REPLACE_DISK}")
