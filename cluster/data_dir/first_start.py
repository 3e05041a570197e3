"""What a data directory without an identity may hold: nothing, or what a crash during its first start left behind.

The identity is written last (`DataDir.format`), so a directory without one was either never formatted or has lost it.
If it was lost, the promise, the snapshots and the log are those of a voter that has acknowledged records, and none of
them may be touched. If it was never formatted, the node has promised nobody, there is no snapshot, and the log holds at
most the genesis frame. Such a log is moved to `quarantine/`; nothing is deleted, and other programs' files stay.
"""

import re
from contextlib import closing

from quire.log import (
    HEADER_BYTES,
    STORE_HEADER_BYTES,
    Directory,
    FrameInvalid,
    UnknownVersion,
    decode_header,
    store_bases,
)
from quire.replication import PromiseFile, PromiseLost
from quire.replication.core.fitness import REPLACE_DISK
from quire.replication.promises import PROMISE_FILE
from quire.replication.witnesses import WITNESS_FILES
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER

from .genesis import GENESIS_FILE, MAX_GENESIS_BYTES
from .identity import DataDirRefused

LOG_FOLDER = "log"
MARK_FILE = "mark"
QUARANTINE_FOLDER = "quarantine"
_OURS = re.compile(r"[0-9]{20}\.(store|store\.new|index|spool|rewrite)")
_CHUNK_BYTES = 1 << 20


def check_unformatted(directory: Directory) -> None:
    """Check that a directory without an identity was never formatted. Changes nothing.

    Raises:
        DataDirRefused: it holds a promise, a snapshot or records: it has lost its identity. Or it is another program's.
    """
    names = set(directory.list())
    if held := _held(directory, names):
        raise DataDirRefused(directory.path, f"its identity file is missing, and it holds {held}; {REPLACE_DISK}")
    if foreign := _foreign(directory, names):
        reason = (
            f"it holds {LOG_FOLDER}/{foreign}, which is not a file of a log, and no identity: it is something else's"
        )
        raise DataDirRefused(directory.path, f"{reason}; give an empty directory, or one that does not exist")


def _held(directory: Directory, names: set[str]) -> str:
    """What the directory holds that no first start leaves behind; empty if nothing."""
    if PROMISE_FILE in names and (promised := _promised(directory)):
        return promised
    if SNAPSHOTS_FOLDER in names and directory.existing(SNAPSHOTS_FOLDER).list():
        return "snapshots"
    if LOG_FOLDER in names and (held := _held_in_log(directory)):
        return held
    # They are made after the identity, so that no first start leaves one behind.
    return "the witnesses of one" if names & set(WITNESS_FILES) else ""


def _held_in_log(directory: Directory) -> str:
    return "a log with records" if _has_records(directory.existing(LOG_FOLDER)) else ""


def _foreign(directory: Directory, names: set[str]) -> str:
    """A file in the place of the log that is none of a log's, if no other file of ours is there; empty if none is."""
    if LOG_FOLDER not in names:
        return ""
    foreign = [name for name in sorted(directory.existing(LOG_FOLDER).list()) if not _is_ours(name)]
    return foreign[0] if foreign else ""


def _promised(directory: Directory) -> str:
    try:
        epoch = PromiseFile.read(directory).epoch
    except PromiseLost:
        # A start that was killed while it made the file has not come to its second slot.
        return "a damaged promise" if PromiseFile.has_second_slot(directory) else ""
    return f"a promise of epoch {epoch}" if epoch else ""


def _is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None


def _has_records(files: Directory) -> bool:
    """Whether a log holds more than the genesis frame. A torn frame no longer than a genesis does not count."""
    bases = store_bases(files)
    if bases[1:] or bases[:1] not in ([], [0]):
        return True
    for base in bases:
        with closing(files.open(f"{base:020d}.store")) as store:
            end = _first_frame_end(store.read_at(STORE_HEADER_BYTES, HEADER_BYTES))
            position = STORE_HEADER_BYTES + end
            while chunk := store.read_at(position, _CHUNK_BYTES):
                if chunk.strip(b"\0"):
                    return True
                position += len(chunk)
    return False


def _first_frame_end(raw: bytes) -> int:
    """The length of the first frame, if it may be a genesis; the maximum length of a genesis, if it is torn."""
    try:
        header = decode_header(raw)
    except (FrameInvalid, UnknownVersion):
        return MAX_GENESIS_BYTES
    return header.size if header.index == 0 and header.epoch == 0 else 0


def set_unfinished_aside(directory: Directory) -> None:
    """Move what a killed first start left to `quarantine/`: its log, mark and genesis. The promise stays.

    If it is killed at any point, the next start moves the rest.
    """
    names = set(directory.list())
    unfinished = [name for name in (MARK_FILE, GENESIS_FILE) if name in names]
    stores = directory.child(LOG_FOLDER).list() if LOG_FOLDER in names else []
    if not unfinished and not stores:
        return
    quarantine = directory.child(QUARANTINE_FOLDER)
    directory.sync()
    number = sum(1 for name in quarantine.list() if name.startswith("unfinished-")) + 1
    target = quarantine.child(f"unfinished-{number}")
    quarantine.sync()
    if stores:
        files = directory.child(LOG_FOLDER)
        for name in sorted(stores, reverse=True):
            files.move(name, target, name)
        target.sync()
        files.sync()
    for name in unfinished:
        directory.move(name, target, name)
    target.sync()
    directory.sync()
