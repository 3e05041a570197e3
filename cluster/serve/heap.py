"""The C library's heap, as a server that runs for years needs it: what was large goes back to the system when freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGE_BYTES = 2 << 20
"""Above a coalesced frame and a window, which come and go all the time; below a snapshot's chunk."""
KEPT_FREE_BYTES = 4 << 20


def give_large_blocks_back() -> None:
    """Map what is larger than `LARGE_BYTES` by itself, and keep little that is free, in each thread's heap.

    Left to itself glibc raises both limits to what was freed last, up to 32 MiB, in the heap of each thread: behind
    two installs of a state of 9 MiB a node held 50 MB that nothing used, with bad luck 76. Another C library, which
    knows no mallopt, is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
