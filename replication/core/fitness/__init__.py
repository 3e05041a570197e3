"""Whether a node is fit to lead: why not (`levels`, `codes`), and how an unfit leader hands over (`handover`)."""

from .codes import Codes
from .levels import DRAINED, FAILED, Fitness, FitnessStatus, Level

__all__ = ["DRAINED", "FAILED", "Codes", "Fitness", "FitnessStatus", "Level"]
