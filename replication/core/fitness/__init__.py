"""Whether a node is fit to lead: what ails it (`levels`), and how an unfit leader makes way (`handover`)."""

from .levels import Fitness, FitnessStatus, Level

__all__ = ["Fitness", "FitnessStatus", "Level"]
