"""Whether overwrites take new space: btrfs writes each of them elsewhere, unless the file has the flag nocow.

Without it, a full disk or a quota refuses to overwrite what is there already. A file gets the flag from its folder when
it is created; `chattr +C` sets it as well.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: of an int, in spite of their size.
_NOCOW = 0x00800000  # FS_NOCOW_FL
_BTRFS_INFO, _BTRFS_INFO_BYTES = 0x8400941F, 1024  # BTRFS_IOC_FS_INFO: only btrfs answers.


def _flags(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))[:4], "little")


def overwrite_in_place(folder: str | Path) -> None:
    """Let what is created in an empty folder be overwritten in place, if its file system can choose."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.listdir(descriptor):
            with suppress(OSError):  # It has no such flag.
                fcntl.ioctl(descriptor, _SET_FLAGS, (_flags(descriptor) | _NOCOW).to_bytes(8, "little"))
    finally:
        os.close(descriptor)


def overwrites_take_space(file: str | Path) -> bool:
    """Return whether an overwrite of this file takes new space; False if that is unknown."""
    with suppress(OSError), Path(file).open("rb") as opened:
        fcntl.ioctl(opened, _BTRFS_INFO, bytearray(_BTRFS_INFO_BYTES))
        return not _flags(opened.fileno()) & _NOCOW
    return False
