"""Storage that fails as disks do, for tests and simulations. No node runs on it."""

from __future__ import annotations

from .faulty import Disk, FaultyDirectory, FaultyStorage, Keep, Kept, PowerLoss

__all__ = ["Disk", "FaultyDirectory", "FaultyStorage", "Keep", "Kept", "PowerLoss"]
