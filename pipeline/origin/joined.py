"""An archive and a live log as one history; see `Origin`.

Whatever the archive holds is read from it: it does not change, so nothing can expire between planning and reading, and
the nodes are spared. What follows is read from the live log, whose first frame must follow the archive's last.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.log.packing import Skimmer

from ..archive.files import ArchiveFiles
from ..errors import ArchiveDiverges, ArchiveGap, ForeignLog, RecordsLost
from ..source.rows import Rows
from .origin import Bounds, Origin, Stretch


class JoinedLog:
    """The archive's records, and behind them the live log's."""

    def __init__(self, archive: ArchiveFiles, live: Origin) -> None:
        self.archive, self.live = archive, live
        self.name = f"{archive.name} and {live.name}"

    @property
    def _boundary(self) -> int:
        """Where the live log is read from: the archive's end, as it was when bounds were asked for."""
        return self.archive.manifest.tail.index

    def cluster_id(self) -> str:
        """Raises ForeignLog: they are of two clusters."""
        archived, found = self.archive.cluster_id(), self.live.cluster_id()
        if found != archived:
            raise ForeignLog(self.live.name, found, archived)
        return found

    def bounds(self) -> Bounds:
        """Raises ArchiveGap: the live log begins behind the archive's end."""
        # The archive last: what has expired from the live log by then was archived before.
        live, archived = self.live.bounds(), self.archive.bounds()
        if live.lowest_index > archived.highest_index:
            raise ArchiveGap(self.archive.name, archived.highest_index, live.lowest_index)
        return Bounds(archived.lowest_index, max(archived.highest_index, live.highest_index))

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        found = self.archive.index_at(timestamp, Bounds(bounds.lowest_index, self._boundary))
        if found < self._boundary or bounds.highest_index <= self._boundary:
            return found
        return max(self._boundary, self.live.index_at(timestamp, self.live.bounds()))

    def index_behind(self, from_index: int, to_index: int, max_bytes: int) -> int:
        # A batch of a stream does not reach across the boundary: it is short once.
        if from_index < self._boundary:
            return self.archive.index_behind(from_index, min(to_index, self._boundary), max_bytes)
        return self.live.index_behind(from_index, to_index, max_bytes)

    def stretches(self, from_index: int, to_index: int) -> list[Stretch]:
        archived = self.archive.stretches(from_index, min(to_index, self._boundary))
        return [*archived, *self.live.stretches(max(from_index, self._boundary), to_index)]

    def rows(self, stretch: Stretch, skimmer: Skimmer) -> Iterator[Rows]:
        if stretch.from_index < self._boundary:
            yield from self.archive.rows(stretch._replace(to_index=min(stretch.to_index, self._boundary)), skimmer)
        if stretch.to_index > self._boundary:
            first = max(stretch.from_index, self._boundary)
            try:
                for rows in self.live.rows(stretch._replace(from_index=first), skimmer):
                    self._check_boundary(rows)
                    yield rows
            except RecordsLost as error:
                if self.archive.bounds().highest_index <= error.from_index:
                    raise
                # It was archived since the stretch was planned, and expired then.
                yield from self.rows(stretch._replace(from_index=error.from_index), skimmer)

    def _check_boundary(self, rows: Rows) -> None:
        tail = self.archive.manifest.tail
        header = rows.frames[0][0]
        if header.index == tail.index and header.prev_crc32c != tail.crc32c:
            raise ArchiveDiverges(self.live.name, tail.index, header.prev_crc32c, tail.crc32c)

    def close(self) -> None:
        self.live.close()
