"""Jobs over a whole log, for programs: archive it, scrub it, replay it, report on it. `cli` runs them as commands."""

from .archive.archive import ArchiveSummary, archive
from .archive.hold import LogHold, cursor_of
from .replay.difference import Difference
from .replay.replay import ReplaySummary, replay
from .report.figures import Report
from .report.report import report
from .scrub.scrub import ScrubbedNode, ScrubSummary, scrub
from .scrub.walk import Finding

__all__ = [
    "ArchiveSummary",
    "Difference",
    "Finding",
    "LogHold",
    "ReplaySummary",
    "Report",
    "ScrubSummary",
    "ScrubbedNode",
    "archive",
    "cursor_of",
    "replay",
    "report",
    "scrub",
]
