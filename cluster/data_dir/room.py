"""What is said at a start of the room for a log, and the refusal to start without any."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog

from quire.log import Directory, DiskFull, Log
from quire.log.overwrites import overwrites_take_space

from .first_start import MARK_FILE
from .identity import DataDirRefused

logger = structlog.get_logger(__name__)


def report_room(directory: Directory, log: Log, segment_bytes: int) -> None:
    """Warn if a full disk would refuse more here than elsewhere, or if there is less room than a segment takes."""
    if overwrites_take_space(Path(directory.path, MARK_FILE)):
        logger.warning(
            "each overwrite takes new space on this file system: on a full disk this log refuses more than elsewhere, "
            "and does not start. Stop it, and copy its files with `cp -a --reflink=never` into a new folder that has "
            "the flag of `chattr +C`",
            path=directory.path,
        )
    if log.room.allocated < segment_bytes:
        logger.warning(
            "there is less room than a segment takes, and nothing expires before one is full: give the volume more, or "
            "set --segment-bytes lower",
            path=directory.path,
            allocated=log.room.allocated,
            segment_bytes=segment_bytes,
        )


@contextmanager
def refusing_to_start_when_full(path: str) -> Generator[None]:
    """Refuse the start if the disk has no room for it. Raises DataDirRefused."""
    try:
        yield
    except DiskFull as error:
        reason = f"{error}; make room, then start again (a segment of the log takes --segment-bytes, or what there is)"
        raise DataDirRefused(path, reason) from error
