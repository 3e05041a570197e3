"""Sets up the C library's heap for a long-running server: large blocks are returned to the system when freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGE_BYTES = 2 << 20
"""Larger than a coalesced frame and a stream's window, which are allocated all the time; smaller than a snapshot's
chunk."""
KEPT_FREE_BYTES = 4 << 20


def give_large_blocks_back() -> None:
    """Map blocks above `LARGE_BYTES` separately, and keep at most `KEPT_FREE_BYTES` free at the top of each heap.

    By default glibc raises both limits to the largest block freed so far, up to 32 MiB, in the heap of each thread:
    after two installs of a state of 9 MiB a node held 50 to 76 MB of unused memory. C libraries without mallopt are
    left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
