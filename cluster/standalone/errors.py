"""What a standalone log answers; each is answered as the error that it is a kind of."""

from ..errors import CorruptHere, DiskFullError, NotCommitted, OutcomeUnknown


class NotFlushed(NotCommitted):
    """The record was appended and is not flushed yet, and so not readable."""

    def __init__(self, index: int, readable: int) -> None:
        Exception.__init__(self, f"index {index} is not flushed yet; records below {readable} are")
        self.index = index
        self.commit_index = readable


class RecordCorrupt(CorruptHere):
    """The record's bytes are rotten."""

    def __init__(self, index: int, reason: str) -> None:
        Exception.__init__(self, f"index {index} cannot be read: {reason}; look with `quire log verify`")
        self.index = index
        self.reason = reason


class DiskOfLogFull(DiskFullError):
    """No space is left; nothing was written."""

    def __init__(self) -> None:
        Exception.__init__(self, "the disk is full; nothing was written")


class NotFlushedInTime(OutcomeUnknown):
    """The record was appended; whether it will survive a power loss is not known yet."""

    def __init__(self, index: int, count: int, reason: str) -> None:
        super().__init__(f"appended at index {index}, but {reason}")
        self.write_index = index
        self.count = count
