"""The errors of a log, each with its values and by whose fault it is.

The caller's fault: `IndexOutOfBounds`, `IndexExpired`, `NotYetFlushed`, `NotFrameBoundary`, `UnexpectedIndex`,
`RecordsTruncated`, `RecordTooLarge`, `PayloadInvalid`, `LogLocked`, `ForeignStore`. A peer's fault: `FrameInvalid`,
`ChainBroken`. The disk's fault: `FrameCorrupt`, `LogRotten`, `LogReadOnly`, `DiskFull`, `FileFailed`, `Unreadable`. A
process without descriptors or memory: `ResourcesExhausted`; both are `NoRoom`. A later program's files:
`UnknownVersion`.
"""

from __future__ import annotations

from quire import QuireError


class LogError(QuireError):
    """The base of every error that `quire.log` defines."""


class IndexOutOfBounds(LogError):
    """The index lies outside [lowest, highest)."""

    def __init__(self, index: int, lowest: int, highest: int) -> None:
        super().__init__(f"index {index} is outside the log's [{lowest}, {highest})")
        self.index, self.lowest, self.highest = index, lowest, highest


class IndexExpired(LogError):
    """The record was in the log; its segment has expired."""

    def __init__(self, index: int, lowest: int) -> None:
        super().__init__(f"index {index} has expired: the log begins at {lowest}")
        self.index, self.lowest = index, lowest


class NotYetFlushed(LogError):
    """The record is appended but not durable yet, so it cannot be read."""

    def __init__(self, index: int, durable: int) -> None:
        super().__init__(f"index {index} is not flushed yet: the log is durable below {durable}")
        self.index, self.durable = index, durable


class NotFrameBoundary(LogError):
    """The index lies inside a frame, and frames are atomic."""

    def __init__(self, index: int, frame_index: int, next_index: int) -> None:
        super().__init__(f"index {index} lies inside the frame [{frame_index}, {next_index})")
        self.index, self.frame_index, self.next_index = index, frame_index, next_index


class RecordsTruncated(LogError):
    """The records from `index` on were truncated before they were durable. Those below it are unchanged."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the records from index {index} on were truncated before they were flushed")
        self.index = index


class UnexpectedIndex(LogError):
    """The next index is not the one that the caller expected; nothing was appended."""

    def __init__(self, expected: int, highest: int) -> None:
        super().__init__(f"expected to append at {expected}, but the next index is {highest}")
        self.expected, self.highest = expected, highest


class RecordTooLarge(LogError):
    """The frame fits in no segment, or exceeds `max_frame_bytes`; nothing was appended."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes exceeds the limit of {limit} bytes")
        self.size, self.limit = size, limit


class PayloadInvalid(LogError):
    """A payload, or a value in it, breaks the format."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the payload is invalid: {reason}")
        self.reason = reason


class FrameInvalid(LogError):
    """The bytes at `position`, counted from the start of those given, are not a valid frame."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"no valid frame at byte {position}: {reason}")
        self.reason, self.position = reason, position


class FileFailed(QuireError, OSError):
    """An operation on a file or folder failed."""

    def __init__(self, operation: str, path: str, error: OSError) -> None:
        self.why = (error.strerror or str(error)).lower()
        super().__init__(error.errno, self.why, path)
        self.operation = operation

    def __str__(self) -> str:
        return f"{self.operation} of {self.filename}: {self.why}"

    def __reduce__(self) -> tuple[object, ...]:
        return *super().__reduce__()[:2], {**self.__dict__, "errno": self.errno, "filename": self.filename}


def sentence_of(error: OSError, path: object) -> str:
    """What failed, where and why; `path` is what was being used, if the error does not name a file."""
    if isinstance(error, QuireError):
        return str(error)
    return f"{error.filename or path} cannot be used: {(error.strerror or str(error)).lower()}"


class Unreadable(FrameInvalid, FileFailed):
    """The device does not give the byte at `position` of a file: rot, as wrong bytes are.

    `before` are the bytes between the position asked for and that one.
    """

    def __init__(self, path: str, position: int, before: bytes, error: OSError) -> None:
        FileFailed.__init__(self, "read", path, error)
        self.file, self.position, self.before = path, position, before
        self.reason = f"{self.why} at byte {position}"

    def __str__(self) -> str:
        return f"{self.file} cannot be read: {self.reason}"


class ChainBroken(LogError):
    """The frame is valid by itself but does not follow the previous one."""

    def __init__(self, index: int, field: str, expected: int, found: int) -> None:
        super().__init__(f"the frame at index {index} does not follow: {field} is {found}, expected {expected}")
        self.index, self.field, self.expected, self.found = index, field, expected, found


class FrameCorrupt(LogError):
    """A stored frame failed its checksum when it was read."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} is corrupt at byte {position}: {reason}")
        self.file, self.position, self.reason = file, position, reason


class LogRotten(LogError):
    """Durable bytes are not those that were written, so the log does not open."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(
            f"{file} is rotten at byte {position}: {reason}; the log does not open. "
            "Inspect it with `quire log verify`; set the bad bytes aside with `quire log repair`"
        )
        self.file, self.position, self.reason = file, position, reason


class LogReadOnly(LogError):
    """A write or sync failed. Only a restart tells what is durable."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the log takes no more writes: {reason}")
        self.reason = reason


class NotRegularFile(QuireError, OSError):
    """What is at the path is a folder, a pipe, a socket, a device, or a link, where none is followed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not a regular file")
        self.path = path


class FileUnlinked(QuireError, OSError):
    """The synced file no longer has a name, and this program did not remove it: its content is lost.

    For the waiters of the sync, this is an error of the device.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(f"{path} was removed while this process writes it (descriptor {descriptor})")
        self.path, self.descriptor = path, descriptor


class LogClosed(LogError):
    """The log was closed or removed."""

    def __init__(self) -> None:
        super().__init__("the log is closed")


class NoRoom(LogError):
    """The file cannot be opened or grow; nothing was changed, and the log stays usable: a later call may succeed."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__(text)
        self.file = file


class DiskFull(NoRoom):
    """The disk has no room for `size` bytes of the file."""

    def __init__(self, file: str, size: int) -> None:
        super().__init__(file, f"the disk is full: {file} cannot grow to {size} bytes")
        self.size = size


class ResourcesExhausted(NoRoom):
    """The process or the machine has no file descriptor or memory left."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, f"{file} cannot be opened or grow now: {reason}")
        self.reason = reason


class LogLocked(LogError):
    """Another process has locked the directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory} is in use by another process")
        self.directory = directory


class ForeignStore(LogError):
    """The store file belongs to another cluster."""

    def __init__(self, file: str, found: bytes, expected: bytes) -> None:
        super().__init__(f"{file} belongs to cluster {found.hex()}, not to {expected.hex()}")
        self.file, self.found, self.expected = file, found, expected


class UnknownVersion(LogError):
    """A file or frame has a format version that this program does not know."""

    def __init__(self, file: str, version: int) -> None:
        super().__init__(f"{file} has format version {version}; this program knows version 1")
        self.file, self.version = file, version
