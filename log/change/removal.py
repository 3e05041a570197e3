"""Removing a whole log, so that a crash on the way leaves one that still opens."""

from __future__ import annotations

from ..options import STORE_HEADER_BYTES
from ..segment.mark import MARK_NAME, Mark, MarkFile
from ..segment.segments import remove_segment
from ..segment.store import STORE_SUFFIX, base_of_name
from ..storage import Directory
from .recovery import SEGMENTS_FOLDER
from .rewrite import REWRITE_SUFFIX
from .spool import SPOOL_SUFFIX


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
    for name in names:
        if any(base_of_name(name, suffix) is not None for suffix in (SPOOL_SUFFIX, REWRITE_SUFFIX)):
            files.remove(name)
    for base in reversed(bases[1:]):
        remove_segment(files, base)
    # Without this sync a power loss could bring a later segment back and not the first one, which the mark names.
    files.sync()
    if bases:
        remove_segment(files, bases[0])
        files.sync()
    if marked:
        directory.remove(MARK_NAME)
        directory.sync()
