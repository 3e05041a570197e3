"""Syncs that the kernel runs beside this process (io_uring), for an event loop.

A thread that waits for the disk needs the GIL to begin, and again to tell the loop that it has ended: each time it
waits until the loop gives it up. Here the loop hands over the sync by one system call, and the kernel makes an eventfd
readable when it has ended. The structures are those of `linux/io_uring.h`; the numbers of the calls are the same on all
machines.

A container's default rules, or an administrator, may forbid these calls: then the sync needs a thread, as before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections import deque
from collections.abc import Callable

from quire.log.files import Ended

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_PARAMETERS_BYTES = 120
_SQ_OFFSETS, _CQ_OFFSETS = 40, 80  # Where the parameters have the offsets of the fields of both rings.
_AT_SQ_RING, _AT_CQ_RING, _AT_ENTRIES = 0, 0x8000000, 0x10000000
_ENTRY_BYTES, _COMPLETION_BYTES = 64, 16
_FSYNC, _DATA_ONLY = 3, 1
_REGISTER_EVENTFD = 4
_GET_EVENTS = 1
_ENTRIES = 8

_U32 = struct.Struct("<I")
_OFFSETS = struct.Struct("<7I")
_ENTRY = struct.Struct("<BBHiQQIIQ")  # opcode, flags, ioprio, fd, offset, address, length, fsync_flags, user_data
_COMPLETION = struct.Struct("<QiI")  # user_data, result, flags


class KernelSyncs:
    """A ring of the kernel, on one thread. `event` is readable whenever syncs have ended: then call `complete`."""

    def __init__(self) -> None:
        """Raises OSError if the kernel does not allow it, or has not got it."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._blocking = libc.syscall
        self._call = ctypes.PyDLL(None, use_errno=True).syscall  # It keeps the GIL: it takes microseconds.
        parameters = (ctypes.c_uint8 * _PARAMETERS_BYTES)()
        self._ring = self._called(self._call(_SETUP, _ENTRIES, ctypes.byref(parameters)))
        self.event = -1
        try:
            raw = bytes(parameters)
            sq_entries, cq_entries = _U32.unpack_from(raw, 0)[0], _U32.unpack_from(raw, 4)[0]
            _, self._sq_tail_at, sq_mask_at, _, _, _, self._array_at = _OFFSETS.unpack_from(raw, _SQ_OFFSETS)
            self._cq_head_at, self._cq_tail_at, cq_mask_at, _, _, self._completions_at, _ = _OFFSETS.unpack_from(
                raw, _CQ_OFFSETS
            )
            self._sq = mmap.mmap(self._ring, self._array_at + 4 * sq_entries, offset=_AT_SQ_RING)
            cq_bytes = self._completions_at + _COMPLETION_BYTES * cq_entries
            self._cq = mmap.mmap(self._ring, cq_bytes, offset=_AT_CQ_RING)
            self._entries = mmap.mmap(self._ring, _ENTRY_BYTES * sq_entries, offset=_AT_ENTRIES)
            self._sq_mask, self._cq_mask = self._u32(self._sq, sq_mask_at), self._u32(self._cq, cq_mask_at)
            self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            event = ctypes.c_int(self.event)
            self._called(self._call(_REGISTER, self._ring, _REGISTER_EVENTFD, ctypes.byref(event), 1))
        except BaseException:
            self.close()
            raise
        self._next = 0
        self._running: dict[int, Ended] = {}
        self._told: deque[Callable[[], None]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a sync runs, or has ended and `complete` has not told it."""
        return bool(self._running or self._told)

    def begin(self, descriptor: int, ended: Ended) -> None:
        """Begin an fdatasync.

        Raises:
            OSError: the kernel did not take it, and nothing has begun.
        """
        self._next += 1
        tail = self._u32(self._sq, self._sq_tail_at)
        place = tail & self._sq_mask
        _ENTRY.pack_into(self._entries, place * _ENTRY_BYTES, _FSYNC, 0, 0, descriptor, 0, 0, 0, _DATA_ONLY, self._next)
        _U32.pack_into(self._sq, self._array_at + 4 * place, place)
        _U32.pack_into(self._sq, self._sq_tail_at, (tail + 1) & 0xFFFFFFFF)
        self._running[self._next] = ended
        try:
            self._called(self._call(_ENTER, self._ring, 1, 0, 0, None, 0))
        except OSError:
            _U32.pack_into(self._sq, self._sq_tail_at, tail)  # It is not to be taken with the next one.
            del self._running[self._next]
            raise

    def wait(self) -> None:
        """Block until a sync ends. Its result is given at once; `complete` calls the rest."""
        if not self._collect() and self._running:
            try:
                self._called(self._blocking(_ENTER, self._ring, 0, 1, _GET_EVENTS, None, 0))
            except InterruptedError:
                return
            self._collect()

    def complete(self) -> None:
        """Call what the syncs that have ended returned."""
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            return
        self._collect()
        while self._told:
            told = self._told.popleft()
            if self._told:
                os.eventfd_write(self.event, 1)  # Should this one raise.
            told()

    def close(self) -> None:
        """Close it; no sync may run. May be called again."""
        for descriptor in (self._ring, self.event):
            if descriptor >= 0:
                os.close(descriptor)
        self._ring = self.event = -1

    def _collect(self) -> bool:
        """Take the results that are there; return whether there were any."""
        head, tail = self._u32(self._cq, self._cq_head_at), self._u32(self._cq, self._cq_tail_at)
        if head == tail:
            return False
        while head != tail:
            place = self._completions_at + _COMPLETION_BYTES * (head & self._cq_mask)
            number, result, _ = _COMPLETION.unpack_from(self._cq, place)
            head = (head + 1) & 0xFFFFFFFF
            _U32.pack_into(self._cq, self._cq_head_at, head)
            self._told.append(self._running.pop(number)(result))
        return True

    @staticmethod
    def _u32(memory: mmap.mmap, at: int) -> int:
        value: int = _U32.unpack_from(memory, at)[0]
        return value

    @staticmethod
    def _called(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
