"""The format of an archive: Parquet files that hold a log's frames byte for byte, and a manifest that lists them.

    ARCHIVE/
      date=2026-11-21/segment=00000000000000042000/00000000000000042000-00000000000000084000.parquet
      _quire/manifest       lines: JSON, a space, its crc32c in hex
      _quire/new/           files being written, and those not yet renamed into their folder; emptied at the next run
      _quire/snapshots/     snapshots of the machine, as in a data_dir
      _quire/lock           held by the one process that appends

The manifest's first line has the cluster's id and the chain's end before the first frame. Each further line is one
file, or a gap that an operator accepted: records that the log had lost before they were archived, and the chain's
end after them. A file or a gap starts where the previous one ends. A file is part of the archive once its line is
durable, and is renamed from `_quire/new/` into its folder after that; a last line that a crash cut short is ignored.

A row is a record, with the columns of the source and one more, `lead`: the bytes of the log between the previous
record's value and this one's, which include the frame's header at the first record of a frame. So `lead` and `value`,
row by row, are the log itself, and its crcs and its chain are checked whenever an archive is read.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import orjson
from crc32c import crc32c

from quire.cluster.errors import LimitExceeded, Malformed
from quire.cluster.values import decode_json
from quire.log import NotRegularFile, Tail, open_regular

from ..errors import ArchiveDamaged, ArchiveGap, NoLog

Found = TypeVar("Found")
Line: TypeAlias = dict[str, Any]
"""A line's document, whose fields are still to be checked."""
OWN_FOLDER = "_quire"
"""Spark ignores names that start with an underscore."""
MANIFEST_FILE = f"{OWN_FOLDER}/manifest"
NEW_FOLDER = f"{OWN_FOLDER}/new"
MANIFEST_VERSION = 1
CRC_DIGITS = 8
FOOTER_TAIL_BYTES = 8
"""The footer's length as u32, and `PAR1`."""
MAX_LINE_BYTES = 4 << 10
MAX_FOOTER_BYTES = 16 << 20
_BEGINNING = b'{"version":%d,"cluster_id":"' % MANIFEST_VERSION

_FILE = re.compile(r"date=[0-9]{4}-[0-9]{2}-[0-9]{2}/segment=([0-9]{20})/([0-9]{20})-([0-9]{20})\.parquet")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_ID = 64
_MAX_INDEX, _MAX_U32, _MAX_U64 = (1 << 63) - 1, (1 << 32) - 1, (1 << 64) - 1


class ArchiveFile(NamedTuple):
    """One Parquet file: the records [from_index, to_index) of a segment and a day."""

    file: str
    segment: int
    from_index: int
    to_index: int
    epoch: int
    """Of the last frame, like `timestamp` and `crc32c`."""
    timestamp: int
    crc32c: int
    frames: int
    log_bytes: int
    """The size of those frames in the log."""
    file_bytes: int
    footer_crc32c: int
    """From `footer_crc32c`: Parquet has crcs for pages, but none for the footer that lists them."""
    sha256: str

    @property
    def tail(self) -> Tail:
        """The chain's end after the file."""
        return Tail(self.to_index, self.epoch, self.timestamp, self.crc32c)


class RecordedGap(NamedTuple):
    """Records that were never archived, and that an operator gave up: from `from_index` up to the tail's index."""

    from_index: int
    tail: Tail
    """The chain's end after them: the crc32c is that of their last frame, epoch and timestamp those before them."""

    @property
    def to_index(self) -> int:
        """The first record after them."""
        return self.tail.index

    def line(self) -> Line:
        """Its line's document, in which an earlier version finds a field that it does not know."""
        return {"gap": self.from_index, "tail": list(self.tail)}


class ArchiveManifest:
    """The files of an archive: a log from some boundary on, without a gap that is not recorded."""

    def __init__(
        self, path: str, cluster_id: str, origin: Tail, entries: Iterable[ArchiveFile | RecordedGap] = ()
    ) -> None:
        """`origin`: the chain's end before the first entry. Raises ArchiveGap."""
        self.path, self.cluster_id, self.origin = path, cluster_id, origin
        self.tail = origin
        """The chain's end after the last entry."""
        self.files: list[ArchiveFile] = []
        self.gaps: list[RecordedGap] = []
        self._ends: list[int] = []
        for entry in entries:
            self.add(entry)

    def add(self, entry: ArchiveFile | RecordedGap) -> None:
        """Add the next file or gap. Raises ArchiveGap: it does not start where the previous one ends."""
        if entry.from_index != self.tail.index:
            raise ArchiveGap(self.path, self.tail.index, entry.from_index)
        if isinstance(entry, ArchiveFile):
            self.files.append(entry)
            self._ends.append(entry.to_index)
        elif self.gaps and self.gaps[-1].to_index == entry.from_index:
            self.gaps[-1] = entry._replace(from_index=self.gaps[-1].from_index)
        else:
            self.gaps.append(entry)
        self.tail = entry.tail

    def before(self, place: int) -> Tail:
        """The chain's end before the file with this number."""
        first = self.files[place].from_index
        for gap in self.gaps:
            if gap.to_index == first:
                return gap.tail
        return self.files[place - 1].tail if place else self.origin

    def place_of(self, index: int) -> int:
        """The number of the file that holds an index within the bounds, or of the next one if the index is in a gap."""
        return bisect_right(self._ends, index)

    def gaps_within(self, from_index: int, to_index: int) -> list[RecordedGap]:
        """The gaps that hold some of [from_index, to_index)."""
        return [gap for gap in self.gaps if gap.from_index < to_index and from_index < gap.to_index]

    def part(self, from_index: int, to_index: int) -> ArchiveManifest:
        """The files and gaps that hold [from_index, to_index), if any, and the chain's end before them."""
        first = self.place_of(from_index)
        last = bisect_left(self.files, to_index, key=attrgetter("from_index"))
        files, gaps = self.files[first:last], self.gaps_within(from_index, to_index)
        entries: list[ArchiveFile | RecordedGap] = [*files, *gaps]
        entries.sort(key=attrgetter("from_index"))
        if not entries:
            return ArchiveManifest(self.path, self.cluster_id, self.tail)
        starts_with_file = bool(files) and entries[0] is files[0]
        before = self.files[first - 1].tail if first else self.origin
        return ArchiveManifest(self.path, self.cluster_id, self.before(first) if starts_with_file else before, entries)

    @classmethod
    def read(cls, path: str) -> ArchiveManifest:
        """The manifest of the archive at a path.

        Raises:
            NoLog: there is no archive, or it is empty.
            ArchiveDamaged: a line is damaged, or of another version.
            ArchiveGap: a file does not start where the previous one ends.
        """
        lines = whole_lines(path)
        try:
            head = next(lines, None)
            if head is None:
                raise NoLog(path, f"its {MANIFEST_FILE} is still empty")
            cluster_id, origin = _head(path, head)
            return cls(path, cluster_id, origin, map(_entry, lines))
        except (TypeError, KeyError, ValueError) as error:
            reason = f"a line lacks a field, or has an impossible one ({error})"
            raise ArchiveDamaged(path, MANIFEST_FILE, reason) from error


def check_first_line(path: str, line: bytes) -> None:
    """Check that this is how the manifest of an archive begins, even if a crash cut the line short.

    Raises:
        ArchiveDamaged: it is not.
    """
    try:
        if line.endswith(b"\n"):
            _head(path, _document(path, 1, line[:-1]))
        elif not line.startswith(_BEGINNING[: len(line)]):
            raise ValueError("it begins otherwise")
    except (TypeError, KeyError, ValueError) as error:
        raise ArchiveDamaged(path, MANIFEST_FILE, f"it is not the manifest of an archive ({error})") from error


def _head(path: str, head: Line) -> tuple[str, Tail]:
    """The cluster's id and the chain's end before the first frame, from the first line.

    Raises:
        ArchiveDamaged: it is of another version.
        TypeError, KeyError, ValueError: a field is missing, of another type, or impossible.
    """
    version = head["version"]
    if type(version) is not int or version != MANIFEST_VERSION:
        raise ArchiveDamaged(path, MANIFEST_FILE, f"it has version {version!r:.20}, which is unknown here")
    cluster_id, origin = head["cluster_id"], Tail(*head["origin"])
    if type(cluster_id) is not str or len(cluster_id) > _MAX_ID:
        raise ValueError(f"{cluster_id!r:.80} is not the id of a cluster")
    _check_tail(origin)
    return cluster_id, origin


def is_archive(path: str) -> bool:
    """Whether there is an archive at a path."""
    return os.path.isfile(os.path.join(path, MANIFEST_FILE))


def _entry(line: Line) -> ArchiveFile | RecordedGap:
    """The file or the gap of a line. Raises TypeError, ValueError: a field is missing, or impossible."""
    match line:
        case {"gap": from_index, "tail": [*tail], **rest} if not rest:
            gap = RecordedGap(from_index, Tail(*tail))
            _check_tail(gap.tail)
            _check_number(from_index, gap.to_index - 1)
            return gap
        case _:
            return _archive_file(line)


def _archive_file(line: Line) -> ArchiveFile:
    """A file that a line names. Raises TypeError, ValueError: a field is missing, of another type, or impossible."""
    held = ArchiveFile(**line)
    match = _FILE.fullmatch(held.file)
    if match is None or tuple(map(int, match.groups())) != (held.segment, held.from_index, held.to_index):
        raise ValueError(f"{held.file!r:.120} does not name the records [{held.from_index}, {held.to_index})")
    _check_number(held.segment, held.from_index)
    _check_number(held.from_index, held.to_index - 1)
    _check_number(held.frames, held.to_index - held.from_index)
    _check_number(held.footer_crc32c, _MAX_U32)
    _check_number(held.file_bytes, _MAX_INDEX)
    _check_number(held.log_bytes, _MAX_INDEX)
    _check_tail(held.tail)
    if _SHA256.fullmatch(held.sha256) is None:
        raise ValueError(f"{held.sha256!r:.80} is not a sha256")
    return held


def _check_tail(tail: Tail) -> None:
    for number, most in zip(tail, (_MAX_INDEX, _MAX_U64, _MAX_U64, _MAX_U32), strict=True):
        _check_number(number, most)


def _check_number(number: object, most: int) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"{number!r:.40} is not a number from 0 to {most}")


def open_manifest(path: str, access: int = os.O_RDONLY) -> BinaryIO | None:
    """The manifest, open for reading, and with O_RDWR for writing; None if there is none.

    Raises:
        ArchiveDamaged: it is not a regular file, but a link, for example.
    """
    try:
        descriptor = open_regular(os.path.join(path, MANIFEST_FILE), access | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except NotRegularFile as error:
        raise ArchiveDamaged(path, MANIFEST_FILE, "it is not a regular file") from error
    return os.fdopen(descriptor, "rb") if access == os.O_RDONLY else os.fdopen(descriptor, "r+b")


def manifest_stamp(path: str) -> tuple[int, int, int] | None:
    """A stamp that changes when the manifest grows or is replaced; None if there is no manifest."""
    try:
        status = os.stat(os.path.join(path, MANIFEST_FILE))
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def staged(held: ArchiveFile) -> str:
    """Where a file is before it is renamed into its folder."""
    return f"{NEW_FOLDER}/{os.path.basename(held.file)}"


def look_up(path: str, held: ArchiveFile, look: Callable[[str], Found]) -> Found:
    """What `look` finds at the place of a file of the archive at `path`.

    Raises:
        FileNotFoundError: the file is missing.
    """
    # A file is renamed only from the folder of new files into its own, so if it is no longer in the first, it is in the
    # second. The other order could miss it in both.
    try:
        return look(os.path.join(path, staged(held)))
    except FileNotFoundError:
        return look(os.path.join(path, held.file))


def open_parquet(path: str) -> BufferedReader:
    """A Parquet file, open for reading.

    Raises:
        OSError: it cannot be read, or is not a regular file, but a link, for example.
    """
    return os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def footer_crc32c(path: str) -> int:
    """The crc32c of a Parquet file's footer, its length and the final `PAR1`.

    Raises:
        OSError: it cannot be read, is not a regular file, or its footer is longer than MAX_FOOTER_BYTES.
    """
    with open_parquet(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - FOOTER_TAIL_BYTES))
        length = int.from_bytes(file.read(FOOTER_TAIL_BYTES)[:4], "little")
        if length > MAX_FOOTER_BYTES:
            raise OSError(errno.EFBIG, f"its footer has {length:,} bytes", path)
        file.seek(max(0, end - FOOTER_TAIL_BYTES - length))
        return crc32c(file.read(length + FOOTER_TAIL_BYTES))


def encode_line(document: Mapping[str, object]) -> bytes:
    """One line of a manifest."""
    text = orjson.dumps(document)
    return b"%b %08x\n" % (text, crc32c(text))


def whole_lines(path: str) -> Iterator[Line]:
    """The documents in the manifest's lines, without a last line that a crash cut short.

    Raises:
        NoLog: there is no manifest.
        ArchiveDamaged: another line is damaged.
    """
    file = open_manifest(path)
    if file is None:
        raise NoLog(path, f"it has no {MANIFEST_FILE}, so it is not an archive")
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < MAX_LINE_BYTES:
                    return  # A crash cut it short.
                raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} is longer than {MAX_LINE_BYTES} bytes")
            yield _document(path, number, line[:-1])


def _document(path: str, number: int, line: bytes) -> Line:
    """Raises ArchiveDamaged."""
    text, crc = line[: -CRC_DIGITS - 1], line[-CRC_DIGITS:]
    if b"%08x" % crc32c(text) != crc:
        raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} fails its crc32c")
    try:
        document = decode_json(text, 2)
    except (Malformed, LimitExceeded) as error:
        raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} cannot be read ({error})") from error
    if not isinstance(document, dict):
        raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} is not a map")
    return document
