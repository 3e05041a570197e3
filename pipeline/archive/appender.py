"""Append files to an archive, one process at a time; remove leftovers of a killed run.

A file becomes part of the archive in these steps, each durable before the next:

1. The file is complete in the folder of new files, under a name of its own.
2. It is renamed into its folder. It is visible there, but not yet part of the archive.
3. Its line is in the manifest. Now it is part of the archive.

If a run is killed between 1 and 3, the next run removes the file, since no line names it, and writes its records again.
If it is killed during 3, the line is incomplete and is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from quire.log import FileDirectory, Tail
from quire.log.files import make_folder, open_file, sync_folder

from ..errors import ArchiveDiverges, ForeignLog, OptionRefused
from .manifest import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    MAX_LINE_BYTES,
    OWN_FOLDER,
    ArchiveManifest,
    encode_line,
    manifest_stamp,
    open_manifest,
)
from .writer import NEW_FOLDER, Written


class ArchiveAppender:
    """An archive that is open for appending, by one process at a time."""

    def __init__(self, path: str, manifest: ArchiveManifest | None) -> None:
        self.path = path
        self._manifest = manifest

    @property
    def tail(self) -> Tail | None:
        """The chain's end after the archive's last frame; None if the archive is empty."""
        return None if self._manifest is None else self._manifest.tail

    def check_cluster(self, name: str, cluster_id: str) -> None:
        """Raise ForeignLog if the archive is of another cluster."""
        if self._manifest is not None and self._manifest.cluster_id != cluster_id:
            raise ForeignLog(name, cluster_id, self._manifest.cluster_id)

    def commit(self, name: str, cluster_id: str, written: Written) -> None:
        """Append a new file to the archive; durable on return. `name`: the log's name in messages.

        Raises:
            ArchiveDiverges: the file does not follow the archive's last frame.
            OSError: the file system failed.
        """
        held = written.held
        if self._manifest is None:
            self._manifest = self._begin(cluster_id, Tail(held.from_index, 0, 0, written.prev_crc32c))
        tail = self._manifest.tail
        if held.from_index != tail.index or written.prev_crc32c != tail.crc32c:
            raise ArchiveDiverges(name, held.from_index, written.prev_crc32c, tail.crc32c)
        target = os.path.join(self.path, held.file)
        make_folder(Path(target).parent)
        os.replace(os.path.join(self.path, written.new), target)
        sync_folder(os.path.dirname(target))
        self._append(encode_line(held._asdict()))
        self._manifest.add(held)

    def _begin(self, cluster_id: str, origin: Tail) -> ArchiveManifest:
        self._append(encode_line({"version": MANIFEST_VERSION, "cluster_id": cluster_id, "origin": list(origin)}))
        sync_folder(os.path.join(self.path, OWN_FOLDER))
        return ArchiveManifest(self.path, cluster_id, origin, [])

    def _append(self, line: bytes) -> None:
        with open(os.path.join(self.path, MANIFEST_FILE), "ab", opener=open_file) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def clean(self) -> None:
        """Remove files that no line of the manifest names."""
        counted = set() if self._manifest is None else {held.file for held in self._manifest.files}
        top = Path(self.path)
        for file in [*top.glob("date=*/segment=*/*.parquet"), *top.glob(f"{NEW_FOLDER}/*")]:
            is_own = file.parent.resolve().is_relative_to(top.resolve())  # And not of a folder that a link leads to.
            if is_own and str(file.relative_to(top)) not in counted:
                file.unlink()


@contextmanager
def open_archive(path: str) -> Generator[ArchiveAppender]:
    """Open the archive at a path for appending, or create it; leftovers of a killed run are removed.

    Raises:
        OptionRefused: the path holds something else.
        LogLocked: another process has the archive open for appending.
        ArchiveDamaged, ArchiveGap: its manifest is damaged, or has a gap.
    """
    if os.path.exists(path) and not os.path.isdir(os.path.join(path, OWN_FOLDER)) and os.listdir(path):
        raise OptionRefused("archive", f"{path} holds something other than an archive; name another folder")
    make_folder(Path(path, NEW_FOLDER))
    directory = FileDirectory(os.path.join(path, OWN_FOLDER))
    directory.lock()
    try:
        _cut_short_line(path)
        stamp = manifest_stamp(path)
        is_begun = stamp is not None and stamp[1] > 0
        keeper = ArchiveAppender(path, ArchiveManifest.read(path) if is_begun else None)
        keeper.clean()
        yield keeper
    finally:
        directory.unlock()


def _cut_short_line(path: str) -> None:
    """Truncate the manifest after its last complete line."""
    file = open_manifest(path)
    if file is None:
        return
    with file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - MAX_LINE_BYTES)
        file.seek(begin)
        whole = file.read(MAX_LINE_BYTES).rfind(b"\n") + 1
    if begin + whole < size and (whole or not begin):  # Otherwise the last line is longer than any: damage.
        with open(os.path.join(path, MANIFEST_FILE), "r+b") as opened:
            opened.truncate(begin + whole)
            os.fsync(opened.fileno())
