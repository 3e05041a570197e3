"""Jobs over a whole log: archive it, scrub it, replay it, report on it."""

from .archive import ArchiveSummary, archive
from .finding import Finding
from .scrub import ScrubbedNode, ScrubSummary, scrub

__all__ = ["ArchiveSummary", "Finding", "ScrubSummary", "ScrubbedNode", "archive", "scrub"]
