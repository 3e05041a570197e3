"""Storage that fails as disks do, for every test that needs it."""

from __future__ import annotations

from .faulty import Disk, FaultyDirectory, FaultyStorage, Keep, Kept, PowerLoss

__all__ = ["Disk", "FaultyDirectory", "FaultyStorage", "Keep", "Kept", "PowerLoss"]
