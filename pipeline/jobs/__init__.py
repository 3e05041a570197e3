"""Jobs over a whole log: archive it, scrub it, replay it, report on it."""

from .archive import ArchiveSummary, archive
from .difference import Difference
from .finding import Finding
from .replay import ReplaySummary, replay
from .report import Report, report
from .scrub import ScrubbedNode, ScrubSummary, scrub

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
