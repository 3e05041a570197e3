"""An archive: Parquet files that hold a log's frames to the byte, and a manifest that says which of them count.

    ARCHIVE/
      date=2026-11-21/segment=00000000000000042000/00000000000000042000-00000000000000084000.parquet
      _quire/manifest       lines: JSON, a space, its crc32c in hex
      _quire/new/           on its way; emptied at the next run
      _quire/snapshots/     snapshots of the machine, as in a data_dir
      _quire/lock           one archiver a directory

The manifest's first line says whose log it is and what stood before its first frame; each further line is one file,
which begins where the one before ends. A file counts once its line is there, durably; a line that was cut short by a
crash is none. A row is a record, with the columns of the source and one more, `lead`: the bytes of the log between the
record before and this one's value, which are a frame's header at its first record. So `lead` and `value`, row by row,
are the log itself, and its crcs and its chain are checked whenever an archive is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from crc32c import crc32c

from quire.log import Tail

from ..errors import ArchiveDamaged, ArchiveGap, NoLog

OWN_FOLDER = "_quire"
"""Spark passes over names that begin so."""
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
    """Of the last frame, as the next two."""
    timestamp: int
    crc32c: int
    frames: int
    log_bytes: int
    """Of those frames in the log."""
    file_bytes: int
    footer_crc32c: int
    """Of what `footer_crc32c` reads: what a page holds has crcs of its own, where pages stand has none in Parquet."""
    sha256: str

    @property
    def tail(self) -> Tail:
        """The chain's end behind the file."""
        return Tail(self.to_index, self.epoch, self.timestamp, self.crc32c)


class ArchiveManifest:
    """What counts in an archive: a log from some boundary on, without a gap."""

    def __init__(self, path: str, cluster_id: str, origin: Tail, files: list[ArchiveFile]) -> None:
        """`origin`: the chain's end before the first file. Raises ArchiveGap."""
        self.path, self.cluster_id, self.origin, self.files = path, cluster_id, origin, files
        self._firsts = [held.from_index for held in files]
        ends = [origin.index, *(held.to_index for held in files)]
        for reached, first in zip(ends, self._firsts, strict=False):
            if first != reached:
                raise ArchiveGap(path, reached, first)

    def add(self, held: ArchiveFile) -> None:
        """Take note of one more file, which follows."""
        self.files.append(held)
        self._firsts.append(held.from_index)

    @property
    def tail(self) -> Tail:
        """The chain's end behind the last file."""
        return self.files[-1].tail if self.files else self.origin

    def before(self, place: int) -> Tail:
        """The chain's end before the file at a place."""
        return self.files[place - 1].tail if place else self.origin

    def place_of(self, index: int) -> int:
        """The place of the file that holds an index within the bounds."""
        return bisect_right(self._firsts, index) - 1

    @classmethod
    def read(cls, path: str) -> ArchiveManifest:
        """The manifest of the archive at a path.

        Raises:
            NoLog: there is no archive.
            ArchiveDamaged: a line of it is not what was written.
            ArchiveGap: two files do not follow one another.
        """
        raw = read_manifest_bytes(path)
        if raw is None:
            raise NoLog(path, f"it has no {MANIFEST_FILE}, so it is no archive")
        lines = list(whole_lines(path, raw))
        if not lines:
            raise NoLog(path, f"its {MANIFEST_FILE} holds nothing yet")
        try:
            head = lines[0]
            if head["version"] != MANIFEST_VERSION:
                raise ArchiveDamaged(path, MANIFEST_FILE, f"it is of version {head['version']}, unknown here")
            files = [ArchiveFile(**line) for line in lines[1:]]
            return cls(path, head["cluster_id"], Tail(*head["origin"]), files)
        except (TypeError, KeyError) as error:
            raise ArchiveDamaged(path, MANIFEST_FILE, f"a line lacks a part ({error})") from error


def is_archive(path: str) -> bool:
    """Whether an archive stands at a path."""
    return os.path.isfile(os.path.join(path, MANIFEST_FILE))


def read_manifest_bytes(path: str) -> bytes | None:
    """The manifest's bytes, None if there is none."""
    try:
        with open(os.path.join(path, MANIFEST_FILE), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def manifest_stamp(path: str) -> tuple[int, int, int] | None:
    """What differs once the manifest has grown or been replaced; None if there is none."""
    try:
        status = os.stat(os.path.join(path, MANIFEST_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def footer_crc32c(path: str) -> int:
    """The crc32c of a Parquet file's footer: what stands in front of its length, and what follows. Raises OSError."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - FOOTER_TAIL_BYTES))
        length = int.from_bytes(file.read(FOOTER_TAIL_BYTES)[:4], "little")
        file.seek(max(0, end - FOOTER_TAIL_BYTES - length))
        return crc32c(file.read())


def encode_line(document: dict[str, Any]) -> bytes:
    """One line of a manifest."""
    text = orjson.dumps(document)
    return b"%b %08x\n" % (text, crc32c(text))


def whole_lines(path: str, raw: bytes) -> Iterator[dict[str, Any]]:
    """The lines' documents; a last one that was cut short by a crash is passed over.

    Raises:
        ArchiveDamaged: another one is not what was written.
    """
    lines = raw.split(b"\n")[:-1]  # Behind the last newline stands nothing, or what was cut short.
    for number, line in enumerate(lines, 1):
        text, crc = line[: -CRC_DIGITS - 1], line[-CRC_DIGITS:]
        if b"%08x" % crc32c(text) != crc:
            raise ArchiveDamaged(path, MANIFEST_FILE, f"line {number} fails its crc32c")
        document: dict[str, Any] = orjson.loads(text)
        yield document
