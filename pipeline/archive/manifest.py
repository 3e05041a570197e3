"""The format of an archive: Parquet files that hold a log's frames byte for byte, and a manifest that lists them.

    ARCHIVE/
      date=2026-11-21/segment=00000000000000042000/00000000000000042000-00000000000000084000.parquet
      _quire/manifest       lines: JSON, a space, its crc32c in hex
      _quire/new/           files being written; emptied at the next run
      _quire/snapshots/     snapshots of the machine, as in a data_dir
      _quire/lock           held by the one process that appends

The manifest's first line has the cluster's id and the chain's end before the first frame. Each further line is one
file, which starts where the previous file ends. A file is part of the archive once its line is durable; a last line
that a crash cut short is ignored.

A row is a record, with the columns of the source and one more, `lead`: the bytes of the log between the previous
record's value and this one's, which include the frame's header at the first record of a frame. So `lead` and `value`,
row by row, are the log itself, and its crcs and its chain are checked whenever an archive is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
from crc32c import crc32c

from quire.log import Tail

from ..errors import ArchiveDamaged, ArchiveGap, NoLog

OWN_FOLDER = "_quire"
"""Spark ignores names that start with an underscore."""
MANIFEST_FILE = f"{OWN_FOLDER}/manifest"
MANIFEST_VERSION = 1
CRC_DIGITS = 8
FOOTER_TAIL_BYTES = 8
"""The footer's length as u32, and `PAR1`."""


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


class ArchiveManifest:
    """The files of an archive: a log from some boundary on, without a gap."""

    def __init__(self, path: str, cluster_id: str, origin: Tail, files: list[ArchiveFile]) -> None:
        """`origin`: the chain's end before the first file. Raises ArchiveGap."""
        self.path, self.cluster_id, self.origin, self.files = path, cluster_id, origin, files
        self._firsts = [held.from_index for held in files]
        ends = [origin.index, *(held.to_index for held in files)]
        for reached, first in zip(ends, self._firsts, strict=False):
            if first != reached:
                raise ArchiveGap(path, reached, first)

    def add(self, held: ArchiveFile) -> None:
        """Add the next file."""
        self.files.append(held)
        self._firsts.append(held.from_index)

    @property
    def tail(self) -> Tail:
        """The chain's end after the last file."""
        return self.files[-1].tail if self.files else self.origin

    def before(self, place: int) -> Tail:
        """The chain's end before the file with this number."""
        return self.files[place - 1].tail if place else self.origin

    def place_of(self, index: int) -> int:
        """The number of the file that holds an index within the bounds."""
        return bisect_right(self._firsts, index) - 1

    @classmethod
    def read(cls, path: str) -> ArchiveManifest:
        """The manifest of the archive at a path.

        Raises:
            NoLog: there is no archive, or it is empty.
            ArchiveDamaged: a line is damaged, or of another version.
            ArchiveGap: a file does not start where the previous one ends.
        """
        raw = read_manifest_bytes(path)
        if raw is None:
            raise NoLog(path, f"it has no {MANIFEST_FILE}, so it is not an archive")
        lines = list(whole_lines(path, raw))
        if not lines:
            raise NoLog(path, f"its {MANIFEST_FILE} is still empty")
        try:
            head = lines[0]
            if head["version"] != MANIFEST_VERSION:
                raise ArchiveDamaged(path, MANIFEST_FILE, f"it has version {head['version']}, which is unknown here")
            files = [ArchiveFile(**line) for line in lines[1:]]
            return cls(path, head["cluster_id"], Tail(*head["origin"]), files)
        except (TypeError, KeyError) as error:
            raise ArchiveDamaged(path, MANIFEST_FILE, f"a line lacks a field ({error})") from error


def is_archive(path: str) -> bool:
    """Whether there is an archive at a path."""
    return os.path.isfile(os.path.join(path, MANIFEST_FILE))


def read_manifest_bytes(path: str) -> bytes | None:
    """The manifest's bytes; None if there is no manifest."""
    try:
        with open(os.path.join(path, MANIFEST_FILE), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def manifest_stamp(path: str) -> tuple[int, int, int] | None:
    """A stamp that changes when the manifest grows or is replaced; None if there is no manifest."""
    try:
        status = os.stat(os.path.join(path, MANIFEST_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def footer_crc32c(path: str) -> int:
    """The crc32c of a Parquet file's footer, its length and the final `PAR1`. Raises OSError."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - FOOTER_TAIL_BYTES))
        length = int.from_bytes(file.read(FOOTER_TAIL_BYTES)[:4], "little")
        file.seek(max(0, end - FOOTER_TAIL_BYTES - length))
        return crc32c(file.read())


def encode_line(document: Mapping[str, object]) -> bytes:
    """One line of a manifest."""
    text = orjson.dumps(document)
    return b"%b %08x\n" % (text, crc32c(text))


def whole_lines(path: str, raw: bytes) -> Iterator[dict[str, Any]]:
    """The documents in the lines, without a last line that a crash cut short.

    Raises:
        ArchiveDamaged: another line is damaged.
    """
    lines = raw.split(b"\n")[:-1]  # After the last newline there is nothing, or an incomplete line.
    for number, line in enumerate(lines, 1):
        text, crc = line[: -CRC_DIGITS - 1], line[-CRC_DIGITS:]
        if b"%08x" % crc32c(text) != crc:
            raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} fails its crc32c")
        yield orjson.loads(text)
