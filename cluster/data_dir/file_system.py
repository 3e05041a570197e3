"""What is told at start about the file system of a data directory: what quire relies on, and this one does not do."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from quire.log.files import HELD_OPEN, is_overwritten_in_place, opened_folder

logger = structlog.get_logger(__name__)

SHOWN = 5
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
NO_FLUSH = frozenset({"nobarrier", "volatile", "fsync=volatile"})
"""Options of ext4 and btrfs, and of overlay as older and newer kernels list it, with which a sync is none."""


class Mount(NamedTuple):
    """What a path is mounted from: the kind of file system, and its options with those of the mount.

    `in_place`: what is overwritten there takes no room. It is a matter of the folder on btrfs.
    """

    kind: str
    options: frozenset[str]
    in_place: bool = True


def mount_of(path: str | Path) -> Mount | None:
    """The mount that `path`, a folder, is on; None if that is unknown, as where there is no /proc."""
    try:
        with opened_folder(path) as descriptor:
            opened = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return None
    number = dict(line.split(":\t", 1) for line in opened.splitlines() if ":\t" in line).get("mnt_id")
    return None if number is None else mount_numbered(mounts, number)


def mount_numbered(mounts: bytes, number: str) -> Mount | None:
    """The mount with this id in mountinfo. A mount point, of any file system of the machine, may hold any bytes."""
    lines = os.fsdecode(mounts).split("\n")
    return next((mount_of_line(line) for line in lines if line.partition(" ")[0] == number), None)


def mount_of_line(line: str) -> Mount:
    """A line of mountinfo (see proc_pid_mountinfo(5))."""
    of_mount, _, of_file_system = line.partition(" - ")
    kind, _, options = of_file_system.split(" ", 2)
    return Mount(kind, frozenset((*of_mount.split(" ")[5].split(","), *options.split(","))))


def file_system_alarms(path: str | Path) -> list[str]:
    """A sentence for each thing that a data directory's file system does not do, with what to do. Blocks."""
    mount = mount_of(path)
    if mount is not None and mount.kind == "btrfs":
        with suppress(OSError):  # It is as unknown as a mount may be.
            mount = mount._replace(in_place=is_overwritten_in_place(path))
    return [] if mount is None else alarms_of(mount, path)


def alarms_of(mount: Mount, path: str | Path) -> list[str]:
    """`file_system_alarms`, given the mount."""
    kind, options, in_place = mount
    found = []
    if kind in IN_MEMORY:
        found.append(f"is on {kind}, in memory: what this node acknowledges is gone when the machine restarts; move it")
    if lax := sorted(options & NO_FLUSH):
        lost = "what this node acknowledges may be lost with the machine's power"
        found.append(f"is mounted with {lax[0]}, so that nothing is flushed: {lost}; mount it without")
    if kind.startswith("nfs") and not (kind == "nfs4" and "vers=4.2" in options):
        found.append(
            "is on NFS below version 4.2, which reserves no room: a full server fails a flush, and this node halts; "
            "mount it with vers=4.2"
        )
    if not in_place:
        found.append(
            f"is on {kind} and copied on write: a full disk refuses more than new records, also a start; "
            "move its files into a folder with chattr +C"
        )
    return [f"data_dir {path} {sentence}" for sentence in found]


def note_held_open(path: str | Path) -> None:
    """Log the files below `path` that were removed while another program held them open; they are ignored."""
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
        if name.startswith(HELD_OPEN)
    ]
    if found:
        logger.info(
            "files that another program held open when they were removed are ignored; they go when it closes them",
            count=len(found),
            files=sorted(found)[:SHOWN],
        )
