"""What is said at a start of the room for a log, and the refusal to start without any."""

from collections.abc import Generator
from contextlib import contextmanager

import structlog

from quire.log import DiskFull, Log

from .identity import DataDirRefused

logger = structlog.get_logger(__name__)


def report_room(log: Log, path: str, segment_bytes: int) -> None:
    """Warn if there is less room than a segment takes."""
    if log.room.allocated < segment_bytes:
        logger.warning(
            "there is less room than a segment takes, and nothing expires before one is full: give the volume more, or "
            "set --segment-bytes lower",
            path=path,
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
