"""Room for a file, reserved before it is written."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from contextlib import suppress

_RESERVE = 0x40305828  # FS_IOC_RESVSP: fallocate, which Python has only with the C library's substitute for it.
_FIRST_BYTE = struct.pack("hhqqiI16x", 0, 0, 0, 1, 0, 0)
_ZEROS = bytes(1 << 20)


def allocate(descriptor: int, length: int) -> bool:
    """Make a file at least `length` bytes, and reserve room for them; return whether the file system has a call for it.

    Without one, zeros are written, which takes as long as any other write. The C library's substitute for the call
    writes into each block, also into those of the file, which another thread may be writing.

    Raises:
        OSError: there is no room; the file is as it was. (ext4 keeps the room that it got, and the size, if it is not
            given back.)
    """
    size = os.fstat(descriptor).st_size
    is_quick = _has_call(descriptor)
    # tmpfs begins anew after a signal: one that comes each few milliseconds would keep it from ever ending.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    try:
        if is_quick:
            os.posix_fallocate(descriptor, 0, length)
        else:
            _write_zeros(descriptor, size, length)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return is_quick


def _has_call(descriptor: int) -> bool:
    try:
        fcntl.ioctl(descriptor, _RESERVE, _FIRST_BYTE)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def _write_zeros(descriptor: int, position: int, end: int) -> None:
    while position < end:
        position += os.pwrite(descriptor, memoryview(_ZEROS)[: end - position], position)
