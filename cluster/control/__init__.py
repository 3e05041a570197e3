"""The control plane: PySyncObj, which suggests who should try to lead (rule 13). It is not trusted with safety."""

from .control import Control, ControlTimes

__all__ = ["Control", "ControlTimes"]
