"""Whether a node is fit to lead: why not (`levels`, `codes`), and how an unfit leader hands over (`handover`)."""

from .codes import Codes
from .levels import DRAINED, FAILED, REPLACE_DISK, ROTTEN, Fitness, FitnessStatus, Level

__all__ = ["DRAINED", "FAILED", "REPLACE_DISK", "ROTTEN", "Codes", "Fitness", "FitnessStatus", "Level"]
