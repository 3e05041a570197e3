"""Removing a whole log, so that a crash on the way leaves one that still opens."""

from __future__ import annotations

from .mark import MARK_NAME, Mark, MarkFile
from .options import STORE_HEADER_BYTES
from .recovery import SEGMENTS_FOLDER
from .segments import remove_segment
from .storage import Directory
from .store import STORE_SUFFIX, base_of_name


def remove_log(directory: Directory) -> None:
    """Remove segments and mark from a data directory whose log is not open. Blocks.

    The mark says first that nothing is durable: what is left by a crash is then no rot. Segments go last to first, the
    mark goes when they are gone for good.
    """
    files = directory.child(SEGMENTS_FOLDER)
    names = files.list()
    bases = sorted(base for name in names if (base := base_of_name(name, STORE_SUFFIX)) is not None)
    marked = MARK_NAME in directory.list()
    if bases and marked:
        storage = directory.open(MARK_NAME)
        mark = MarkFile(storage)
        try:
            mark.write_synced(Mark(0, bases[0], bases[0], STORE_HEADER_BYTES, 0, 0, 0, clean=False))
        finally:
            mark.close()
    for base in reversed(bases):
        remove_segment(files, base)
    files.sync()
    if marked:
        directory.remove(MARK_NAME)
        directory.sync()
