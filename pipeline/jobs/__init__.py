"""Jobs over a whole log: archive it, scrub it, replay it, report on it."""

from ..archive.archive import ArchiveSummary, archive
from ..replay.difference import Difference
from ..replay.replay import ReplaySummary, replay
from ..report.report import Report, report
from ..scrub.finding import Finding
from ..scrub.scrub import ScrubbedNode, ScrubSummary, scrub

__all__ = [
    "ArchiveSummary",
    "Difference",
    "Finding",
    "ReplaySummary",
    "Report",
    "ScrubSummary",
    "ScrubbedNode",
    "archive",
    "replay",
    "report",
    "scrub",
]
