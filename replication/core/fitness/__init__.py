"""Whether a node is fit to lead: why it is unfit (`levels`), and how an unfit leader hands over (`handover`)."""

from .levels import DRAINED, Fitness, FitnessStatus, Level

__all__ = ["DRAINED", "Fitness", "FitnessStatus", "Level"]
