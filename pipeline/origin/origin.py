"""The interface of a log to read from: a data_dir, a cluster, an archive, or an archive followed by one of the others.

Every call blocks, and one thread uses an object. The driver asks for bounds and stretches; a task, in another process,
opens an origin of its own and reads one stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from quire.log.packing import Skimmer

from .rows import Rows

STRETCH_BYTES = 64 << 20
"""About what one task reads, where segments do not say it: the usual size of one."""


class Bounds(NamedTuple):
    """The readable records [lowest_index, highest_index), all committed."""

    lowest_index: int
    highest_index: int


class Stretch(NamedTuple):
    """The records [from_index, to_index) that one task reads; `segment` is the base of the segment that holds them."""

    from_index: int
    to_index: int
    segment: int | None


class Origin(Protocol):
    """A log to read from."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    @property
    def servers(self) -> tuple[str, ...]:
        """The nodes to ask for the log: observers, followers, the leader, and last those that do not answer.

        Empty if the log is in files.
        """
        ...

    def servers_of(self, task_number: int) -> tuple[str, ...]:
        """The nodes in the order in which a task asks them: with another number, another of equals is first."""
        ...

    def cluster_id(self) -> str:
        """The id of the cluster whose log this is, in hex; once the cluster was recovered, that of its history.

        So checkpoints, archives and spools of an earlier history are foreign, as those of another cluster are.

        Raises:
            NoLog, ClusterUnavailable: there is no log, or no node answers.
            ForeignLog: its parts are of different clusters.
        """
        ...

    def bounds(self, *, quick: bool = False) -> Bounds:
        """The records that can be read now.

        If `quick`, nodes that are slow to answer are left out: then they may hold older records, and newer ones.
        """
        ...

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        """The first index within the bounds whose record is not older than a time in microseconds, or their end.

        Raises:
            RecordsLost: it may be one of these, which are lost.
        """
        ...

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        """The end of the frames from `from_index` on that fit in `max_bytes`, at most `to_index`; one frame always
        fits.
        """
        ...

    def crc32c_before(self, index: int) -> int:
        """The crc32c of the frame that holds the record before an index.

        Raises:
            RecordsLost: that record has expired.
        """
        ...

    def stretches(self, from_index: int, to_index: int, least: int = 1) -> Sequence[Stretch]:
        """The records as stretches that suit the origin, such as segments. No record is read.

        There are at least `least`, if there are as many records; from a cluster, if there are as many frames.
        """
        ...

    def rows(self, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        """The rows of a stretch, in order, verified by crc and chain; without a skimmer, what headers of frames have.

        Raises:
            FrameCorrupt: at this file and position.
            RecordsLost: these have expired, or their segment is missing; they may begin before the stretch.
            ClusterUnavailable: no node returned them in time.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def split(stretches: Sequence[Stretch], least: int) -> list[Stretch]:
    """The same records in at least `least` stretches, if there are that many records: large ones are split evenly."""
    records = sum(stretch.to_index - stretch.from_index for stretch in stretches)
    if len(stretches) >= least or not records:
        return list(stretches)
    size = max(1, records // least)
    pieces: list[Stretch] = []
    for stretch in stretches:
        count = stretch.to_index - stretch.from_index
        parts = -(-count // size)
        boundaries = [stretch.from_index + count * part // parts for part in range(parts + 1)]
        pieces += [stretch._replace(from_index=first, to_index=last) for first, last in pairwise(boundaries)]
    return pieces
