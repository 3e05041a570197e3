"""Overwrites in place, where a file system would write elsewhere.

btrfs does so, and then a full disk or a quota refuses to overwrite what is there already. A file with the flag nocow
(`chattr +C`) is overwritten in place. It gets the flag from its folder when it is created.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: of an int, in spite of their size.
_NOCOW = 0x00800000  # FS_NOCOW_FL


def overwrite_in_place(folder: str) -> None:
    """Let what is created in and below an empty folder be overwritten in place, if its file system has the flag."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.listdir(descriptor):
            with suppress(OSError):
                flags = int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))[:4], "little")
                fcntl.ioctl(descriptor, _SET_FLAGS, (flags | _NOCOW).to_bytes(8, "little"))
    finally:
        os.close(descriptor)
