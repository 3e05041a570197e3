"""The C library's heap, set up for a server that runs for years: large blocks return to the system when freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGE_BYTES = 2 << 20
"""Above a coalesced frame and a stream's window, which come and go all the time; below a snapshot's chunk."""
KEPT_FREE_BYTES = 4 << 20


def give_large_blocks_back() -> None:
    """Map blocks above `LARGE_BYTES` separately, and keep at most `KEPT_FREE_BYTES` free at the top of each heap.

    By default glibc raises both limits to the largest block freed so far, up to 32 MiB, in the heap of each thread:
    after two installs of a state of 9 MiB a node held 50 to 76 MB that nothing used. Other C libraries have no
    mallopt and are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
