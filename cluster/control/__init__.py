"""The control plane: PySyncObj suggests which node should campaign (rule 13). Safety does not depend on it."""

from .control import Control, ControlTimes

__all__ = ["Control", "ControlTimes"]
