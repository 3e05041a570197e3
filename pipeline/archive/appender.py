"""Append files to an archive, one process at a time; finish or remove what a killed run left in `_quire/new/`.

A file becomes part of the archive in these steps, each durable before the next:

1. The file is complete in the folder of new files, under a name of its own.
2. It has its final name, still in the folder of new files.
3. Its line is in the manifest. Now it is part of the archive; quire's readers look in the folder of new files as well.
4. It is renamed into its folder, where every reader of Parquet sees it.

| killed after | the next run |
|---|---|
| 1 or 2 | removes the file, since no line names it, and writes its records again |
| during 3 | cuts the incomplete line off; then as after 2 |
| a gap's line, before its file's line | keeps the gap, without --accept-gap as well; then as after 2 |
| 3 | renames the file into its folder |

So only files that are part of the archive are outside `_quire/`, and nothing outside `_quire/` is ever removed: a file
there that no line names is somebody's own.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from quire.log import FileDirectory, ReadOnlyDirectory, Tail
from quire.log.files import LOCK_NAME, make_folder, open_file, sync_folder
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER

from ..errors import ArchiveDamaged, ArchiveDiverges, ForeignLog, OptionRefused
from .manifest import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    MAX_LINE_BYTES,
    NEW_FOLDER,
    OWN_FOLDER,
    ArchiveFile,
    ArchiveManifest,
    RecordedGap,
    check_first_line,
    encode_line,
    manifest_stamp,
    open_manifest,
    staged,
)
from .writer import Written

OWN_SNAPSHOTS = f"{OWN_FOLDER}/{SNAPSHOTS_FOLDER}"
OWN_FOLDERS = (OWN_FOLDER, NEW_FOLDER, OWN_SNAPSHOTS, f"{OWN_FOLDER}/{LOCK_NAME}")
"""Where an archiver writes, besides the manifest and the folders of files; and what it locks."""


class ArchiveAppender:
    """An archive that is open for appending, by one process at a time."""

    def __init__(self, path: str, manifest: ArchiveManifest | None) -> None:
        self.path = path
        self._manifest = manifest
        self._accepted: dict[int, int] = {}
        self.recorded: list[RecordedGap] = []
        """The gaps that were recorded since it was opened."""

    @property
    def tail(self) -> Tail | None:
        """The chain's end after the archive's last frame; None if the archive is empty."""
        return None if self._manifest is None else self._manifest.tail

    def check_cluster(self, name: str, cluster_id: str) -> None:
        """Raise ForeignLog if the archive is of another cluster."""
        if self._manifest is not None and self._manifest.cluster_id != cluster_id:
            raise ForeignLog(name, cluster_id, self._manifest.cluster_id)

    def accept_gap(self, from_index: int, to_index: int) -> None:
        """Let a file that begins at `to_index` follow the archive's end at `from_index`; the gap is recorded first.

        Gaps that touch or overlap are one.
        """
        for first, last in list(self._accepted.items()):
            if first <= to_index and from_index <= last:
                del self._accepted[first]
                from_index, to_index = min(first, from_index), max(last, to_index)
        self._accepted[from_index] = to_index

    def beside_gaps(self, from_index: int, to_index: int) -> list[tuple[int, int]]:
        """The parts of the records [from_index, to_index) that are in no accepted gap, in order."""
        parts: list[tuple[int, int]] = []
        reached = from_index
        for first, last in sorted(self._accepted.items()):
            if reached < min(first, to_index):
                parts.append((reached, min(first, to_index)))
            reached = max(reached, last)
        if reached < to_index:
            parts.append((reached, to_index))
        return parts

    def commit(self, name: str, cluster_id: str, written: Written) -> None:
        """Append a new file to the archive, and before it the accepted gap that it follows; durable on return.

        `name`: the log's name in messages.

        Raises:
            ArchiveDiverges: the file does not follow the archive's last frame.
            OSError: the file system failed.
        """
        held = written.held
        if self._manifest is None:
            self._manifest = self._begin(cluster_id, Tail(held.from_index, 0, 0, written.prev_crc32c))
        tail = self._manifest.tail
        if self._accepted.get(tail.index) == held.from_index:
            gap = RecordedGap(tail.index, tail._replace(index=held.from_index, crc32c=written.prev_crc32c))
            self._append(encode_line(gap.line()))
            self._manifest.add(gap)
            self.recorded.append(gap)
            tail = gap.tail
        if held.from_index != tail.index or written.prev_crc32c != tail.crc32c:
            raise ArchiveDiverges(name, held.from_index, written.prev_crc32c, tail.crc32c)
        self._make_folder(held)  # If that fails, no line names the file yet.
        os.replace(os.path.join(self.path, written.new), os.path.join(self.path, staged(held)))
        sync_folder(os.path.join(self.path, NEW_FOLDER))
        self._append(encode_line(held._asdict()))
        self._manifest.add(held)
        self._place(held)

    def _make_folder(self, held: ArchiveFile) -> None:
        folder = os.path.dirname(held.file)
        _refuse_links(self.path, [os.path.dirname(folder), folder])
        make_folder(Path(self.path, folder))

    def _place(self, held: ArchiveFile) -> None:
        """Rename a file that is part of the archive into its folder; durable on return."""
        target = os.path.join(self.path, held.file)
        os.replace(os.path.join(self.path, staged(held)), target)
        sync_folder(os.path.dirname(target))

    def _begin(self, cluster_id: str, origin: Tail) -> ArchiveManifest:
        self._append(encode_line({"version": MANIFEST_VERSION, "cluster_id": cluster_id, "origin": list(origin)}))
        sync_folder(os.path.join(self.path, OWN_FOLDER))
        return ArchiveManifest(self.path, cluster_id, origin)

    def _append(self, line: bytes) -> None:
        with open(os.path.join(self.path, MANIFEST_FILE), "ab", opener=_open_own) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def recover(self) -> None:
        """Rename the files that a killed run left between steps 3 and 4, and remove other new files."""
        lined = {} if self._manifest is None else {staged(held): held for held in self._manifest.files}
        for name in ReadOnlyDirectory(os.path.join(self.path, NEW_FOLDER)).list():
            held = lined.get(f"{NEW_FOLDER}/{name}")
            if held is None:
                os.unlink(os.path.join(self.path, NEW_FOLDER, name))
            else:
                self._make_folder(held)
                self._place(held)


@contextmanager
def open_archive(path: str) -> Generator[ArchiveAppender]:
    """Open the archive at a path for appending, or create it, and finish what a killed run left unfinished.

    Raises:
        OptionRefused: the path holds something else.
        LogLocked: another process has the archive open for appending.
        ArchiveDamaged, ArchiveGap: its manifest is damaged, or has a gap; or there is a link in place of a folder.
    """
    is_own = not os.path.exists(path) or os.path.isdir(os.path.join(path, OWN_FOLDER))
    if not is_own and ReadOnlyDirectory(path).list():
        raise OptionRefused("archive", f"{path} holds something other than an archive; name another folder")
    _refuse_links(path, OWN_FOLDERS)
    _refuse_links(path, glob(f"{OWN_SNAPSHOTS}/*", root_dir=path))
    make_folder(Path(path, NEW_FOLDER))
    directory = FileDirectory(os.path.join(path, OWN_FOLDER))
    directory.lock()
    try:
        _cut_short_line(path)
        stamp = manifest_stamp(path)
        is_begun = stamp is not None and stamp[1] > 0
        keeper = ArchiveAppender(path, ArchiveManifest.read(path) if is_begun else None)
        keeper.recover()
        yield keeper
    finally:
        directory.unlock()


def _cut_short_line(path: str) -> None:
    """Truncate the manifest after its last complete line."""
    file = open_manifest(path, os.O_RDWR)
    if file is None:
        return
    with file:
        check_first_line(path, file.readline(MAX_LINE_BYTES))
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - MAX_LINE_BYTES)
        file.seek(begin)
        whole = file.read(MAX_LINE_BYTES).rfind(b"\n") + 1
        if begin + whole < size and (whole or not begin):  # Otherwise the last line is longer than any: damage.
            file.truncate(begin + whole)
            os.fsync(file.fileno())


def _refuse_links(path: str, names: Iterable[str]) -> None:
    """Raise ArchiveDamaged for a link among what is written below an archive's top: it may lead outside."""
    for name in names:
        if os.path.islink(os.path.join(path, name)):
            raise ArchiveDamaged(path, name, "it is a link, and an archive that is appended to has none")


def _open_own(path: str, flags: int) -> int:
    return open_file(path, flags | os.O_NOFOLLOW)
