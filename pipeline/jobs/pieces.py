"""A log cut into pieces for tasks, whose ends are frame boundaries: a job looks at frames, and each at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from quire.log.packing import Skimmer

from ..errors import OptionRefused
from ..origin.cluster import Cluster
from ..origin.joined import JoinedLog
from ..origin.origin import Origin, Stretch
from ..source.options import SourceOptions
from ..source.reading import StretchPartition, servers_of


def refuse_ranges(options: SourceOptions) -> None:
    """Raise OptionRefused for what names a part of the log, to a job that goes over all of it."""
    for name in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
        if getattr(options, name) != getattr(SourceOptions(), name):
            raise OptionRefused(name, "this job goes over the whole log; leave it out")


def absolute(options: SourceOptions) -> SourceOptions:
    """The same with paths that do not depend on the directory that a process is in: tasks are in another one."""
    path, archive = (each and os.path.abspath(each) for each in (options.path, options.archive))
    return replace(options, path=path, archive=archive)


def whole_frames(origin: Origin, options: SourceOptions, from_index: int, to_index: int) -> list[StretchPartition]:
    """The records between two frame boundaries, a piece for each segment, or of a cluster for each 64 MiB, about.

    Raises:
        ClusterUnavailable, RecordsLost: as the origin finds it.
    """
    stretches = origin.stretches(from_index, to_index)
    cluster_id, servers = origin.cluster_id(), servers_of(origin)
    live = origin.live if isinstance(origin, JoinedLog) else origin
    if isinstance(live, Cluster):
        stretches = _at_boundaries(stretches, servers, cluster_id, options.fetchTimeoutMs / 1000)
    return [StretchPartition(stretch, cluster_id, servers, turn) for turn, stretch in enumerate(stretches)]


def _at_boundaries(
    stretches: Sequence[Stretch], servers: tuple[str, ...], cluster_id: str, timeout_s: float
) -> list[Stretch]:
    """The same with each end at the boundary behind the frame that it lies in; a node does not know where that is."""
    found: list[Stretch] = []
    with closing(Cluster(servers, timeout_s, known=cluster_id, page_bytes=1)) as nodes:
        for place, stretch in enumerate(stretches):
            start = found[-1].to_index if found else stretch.from_index
            end = stretch.to_index
            if place + 1 < len(stretches) and stretch.segment is None:
                rows = next(nodes.rows(Stretch(end - 1, end, None), Skimmer()))
                end = rows.frames[-1][0].next_index
            if start < end:
                found.append(stretch._replace(from_index=start, to_index=end))
    return found
