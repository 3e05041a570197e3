"""The installs of a simulated node: it fetches a leader's snapshot, chunk by chunk, and continues from it."""

from quire.log import NoRoom
from quire.replication.core import actions, events
from quire.replication.core.messages import Snapshot
from quire.sm import Applier, SnapshotPart, SnapshotStore

from ..checks import Violation
from ..network import Network
from .applying import Applying
from .life import Life

GONE = "the leader is gone, or its snapshot"


class Installing:
    """Fetches one snapshot at a time."""

    def __init__(self, life: Life, network: Network, snapshots: SnapshotStore, machine: Applying) -> None:
        self._life = life
        self._network = network
        self._snapshots = snapshots
        self._machine = machine
        self._stream_id = 0
        """The stream for which a snapshot is being fetched; 0: none."""
        self._part: SnapshotPart | None = None
        self._missing: list[int] = []
        self._fetched: Applier | None = None

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        self._stream_id = action.stream_id
        self._network.fetch(self._life.node, action, None, self._fetched_manifest)

    def _fail(self, action: actions.FetchSnapshot, why: str) -> None:
        self._life.node.step(events.FetchFailed(action.stream_id, why))

    def _fetched_manifest(self, action: actions.FetchSnapshot, raw: bytes | None) -> None:
        if self._stream_id != action.stream_id:
            return
        if raw is None:
            self._fail(action, GONE)
            return
        try:
            self._part = SnapshotPart.begin(self._snapshots, raw)
            self._missing = self._part.missing()
        except (OSError, NoRoom) as error:
            self._fail(action, str(error))
            return
        self._fetch_next(action)

    def _fetch_next(self, action: actions.FetchSnapshot) -> None:
        life = self._life
        if self._missing:
            self._network.fetch(life.node, action, self._missing[0], self._fetched_chunk)
            return
        if self._part is None:
            raise AssertionError("no part was begun")
        try:
            self._fetched = self._part.restore(life.new_machine, life.new_sessions)
        except OSError as error:
            self._fail(action, str(error))
            return
        boundary = self._fetched.boundary
        snapshot = Snapshot(*boundary.tail, boundary.members_index, boundary.epochs)
        life.node.step(events.SnapshotFetched(action.stream_id, snapshot))

    def _fetched_chunk(self, action: actions.FetchSnapshot, data: bytes | None) -> None:
        if self._stream_id != action.stream_id or self._part is None:
            return
        try:
            if data is None:
                raise OSError(GONE)
            self._part.put(self._missing[0], data)
        except (OSError, NoRoom) as error:
            self._fail(action, str(error))
            return
        del self._missing[0]
        self._fetch_next(action)

    def place_snapshot(self, index: int) -> None:
        if self._part is None or self._part.manifest.index != index:
            raise Violation("what is installed was fetched", self._life.node.node_id, index)
        self._part.complete()

    def snapshot_installed(self, index: int) -> None:
        applier, self._fetched, self._part = self._fetched, None, None
        node, snapshots = self._life.node, self._snapshots
        if applier is None or applier.applied_index != index:
            raise Violation("what is installed was read", node.node_id, index)
        self._machine.continue_with(applier)
        snapshots.remove_all([kept for kept in snapshots.indices if kept < index])
        self._life.checks.installed(node, index)
