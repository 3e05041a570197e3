"""The snapshots that a simulated node takes, written while later frames are applied."""

from quire.log import FrameHeader, NoRoom
from quire.replication.core import Core
from quire.sm import Applier, Boundary, SnapshotStore, write_snapshot

from ..clock import MILLISECOND
from .life import Life

CHUNK_BYTES = 100
SNAPSHOT_US = 100 * MILLISECOND


class Snapshotting:
    """Takes a snapshot each time the log has grown by the form's number of records."""

    def __init__(self, life: Life, core: Core, snapshots: SnapshotStore) -> None:
        self._life = life
        self._core = core
        self._snapshots = snapshots
        self._taking = 0
        """The index of the snapshot that is being written; 0: none."""

    def at_boundary(self, header: FrameHeader, applier: Applier) -> None:
        """Begin a snapshot of the current state if one is due."""
        records = self._life.form.snapshot_records
        if not records or self._taking or header.index // records == header.next_index // records:
            return
        if not self._core.status().may_snapshot:
            return
        self._taking = applier.applied_index
        boundary, content = applier.boundary, list(applier.content())
        self._life.later(self._pause(), self._write, boundary, content)

    def _pause(self) -> int:
        return self._life.snapshot_random.randint(0, SNAPSHOT_US)

    def _write(self, boundary: Boundary, content: list[bytes]) -> None:
        """Write the snapshot, as the forked child does."""
        try:
            folder = self._snapshots.begin(self._taking)
            write_snapshot(folder, self._snapshots.owner, boundary, content, chunk_bytes=CHUNK_BYTES)
        except (OSError, NoRoom):
            # The parts that it left are harmless.
            self._taking = 0
            return
        self._life.later(self._pause(), self._complete)

    def _complete(self) -> None:
        index, self._taking = self._taking, 0
        node = self._life.node
        try:
            manifest = self._snapshots.complete(index)
            self._life.checks.snapshot_taken(node, manifest)
            leader = self._core.status().leader
            self._snapshots.retain(install.snapshot_index for install in (leader.installs if leader else ()))
        except OSError:
            if not node.condition.disk_failing:
                raise
