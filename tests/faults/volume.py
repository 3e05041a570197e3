"""A file system of a node's own, in memory, that can be full.

Without the right to mount one (CAP_SYS_ADMIN) it is a folder, and the node's process gets no more room for its files.
"""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.processes.faulty import Faults

VOLUME_BYTES = 512 << 20
TRIES = 50


class Volume:
    """Where a node has its data_dir."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self.folder = folder
        self._faults = faults
        folder.mkdir(parents=True)
        self._is_mounted = _mount(folder, f"size={VOLUME_BYTES}")

    def fill(self) -> None:
        """It has no more room than what it holds takes. Raises OSError."""
        if not self._is_mounted:
            self._faults.begin("full")
            return
        for _ in range(TRIES):  # A file that grows meanwhile makes it too small a size.
            sizes = os.statvfs(self.folder)
            if _mount(self.folder, f"remount,size={(sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize}"):
                return
        raise OSError(f"{self.folder} cannot be made smaller")

    def empty(self) -> None:
        """It has room again."""
        if self._is_mounted:
            _mount(self.folder, f"remount,size={VOLUME_BYTES}")

    def close(self) -> None:
        """It is gone, with all that it holds."""
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def _mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def volumes(folder: Path, faults: dict[str, Faults]) -> Generator[dict[str, Volume]]:
    """A volume for each node, below this folder."""
    made: dict[str, Volume] = {}
    try:
        for node_id, its in faults.items():
            made[node_id] = Volume(folder / f"volume-{node_id}", its)
        yield made
    finally:
        for volume in made.values():
            volume.close()
