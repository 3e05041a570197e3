"""Where records come from: the files of a data_dir, or the nodes of a cluster. Both answer the same few questions.

All of it blocks; an object is used by one thread. The driver asks for bounds and stretches, and a task of Spark, in
another process, opens an origin of its own and reads one stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from quire.log.packing import Skimmer

from .rows import Rows


class Bounds(NamedTuple):
    """What may be read: [lowest_index, highest_index), all of it committed."""

    lowest_index: int
    highest_index: int


class Stretch(NamedTuple):
    """Records [from_index, to_index), read by one task; `segment` is the base of the segment that holds all of them."""

    from_index: int
    to_index: int
    segment: int | None


class Origin(Protocol):
    """A log to read from."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def servers(self) -> tuple[str, ...]:
        """The nodes that hold the log, the leader last; none where it lies in files."""
        ...

    def cluster_id(self) -> str:
        """The id of the cluster whose log it is, in hex.

        Raises:
            NoLog, ForeignLog, ClusterUnavailable: there is none, or more than one.
        """
        ...

    def bounds(self) -> Bounds:
        """What may be read at this moment."""
        ...

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        """The first index within the bounds whose record is not older than a time in microseconds, or their end."""
        ...

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        """The farthest index up to `to_index` that so many bytes of frames reach, from `from_index` on; that behind one
        frame at least.
        """
        ...

    def stretches(self, from_index: int, to_index: int) -> Sequence[Stretch]:
        """The records as the origin would have them read: a stretch for each segment. Nothing is read."""
        ...

    def rows(self, stretch: Stretch, skimmer: Skimmer) -> Iterator[Rows]:
        """The rows of a stretch, in order, verified by crc and chain.

        Raises:
            FrameCorrupt: with file and position, or the node.
            RecordsLost: they are there no more.
            ClusterUnavailable: no node gave them in time.
        """
        ...

    def close(self) -> None:
        """Give back what it holds open."""
        ...


def split(stretches: Sequence[Stretch], least: int) -> list[Stretch]:
    """The same records in at least so many stretches, if they are enough: large ones are split evenly."""
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
