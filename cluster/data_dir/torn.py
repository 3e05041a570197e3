"""Logs what was cut off the end of a log when it was opened."""

import structlog

from quire.log import Log

logger = structlog.get_logger(__name__)


def report_torn(log: Log) -> None:
    """Log how many bytes the opening cut off; warn if there were valid frames among them."""
    torn = log.torn
    if torn is None:
        return
    if torn.next_frame is None:
        logger.info("bytes after the last whole record were cut off", **torn._asdict())
    else:
        logger.warning(
            "bytes after the last whole record were cut off, and valid records after them: the disk either wrote out "
            "of order, which is allowed before a flush, or lost bytes, which never is; check the disk",
            **torn._asdict(),
        )
