"""What the journal says about the end of a log that was cut off when it was opened."""

import structlog

from quire.log import Log

logger = structlog.get_logger(__name__)


def report_torn(log: Log) -> None:
    """Say how many bytes the opening cut off, and warn if it cut off valid frames with them."""
    torn = log.torn
    if torn is None:
        return
    if torn.next_frame is None:
        logger.info("bytes after the last whole record were cut off", **torn._asdict())
    else:
        logger.warning(
            "bytes after the last whole record were cut off, and valid records behind them: the disk wrote out of "
            "order, as it may before a flush, or it lost bytes, which it may not; watch it",
            **torn._asdict(),
        )
