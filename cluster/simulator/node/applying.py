"""The machine of a running node: applies what is committed, at once or after a while."""

from quire.log import Log, walk_frames
from quire.sm import Applier, ApplyFailed

from ...node.writing import Pending
from ..checks import Violation
from .life import Life
from .reads import Queue
from .snapshotting import Snapshotting

APPLY_BYTES = 1 << 16


class Applying:
    """Applies what is committed, each frame under the checks, and answers the readers that wait for it."""

    def __init__(
        self, life: Life, log: Log, applier: Applier, pending: Pending, readers: Queue, snapshotting: Snapshotting
    ) -> None:
        self.applier = applier
        self._life = life
        self._log = log
        self._pending = pending
        self._readers = readers
        self._snapshotting = snapshotting
        self._to_index = 0
        self._waits = False

    @property
    def applied_index(self) -> int:
        return self.applier.applied_index

    @property
    def digest(self) -> bytes:
        return self.applier.digest

    @property
    def features(self) -> frozenset[str]:
        """Those that the log names."""
        return self.applier.features

    @property
    def machine_failed(self) -> bool:
        return self.applier.failure is not None

    def apply_to(self, index: int) -> None:
        self._to_index = max(self._to_index, index)
        life = self._life
        apply_us = life.node.condition.apply_us
        if not apply_us:
            self._apply()
        elif not self._waits:
            self._waits = True
            life.later(life.random.randint(0, apply_us), self._apply)

    def continue_with(self, applier: Applier) -> None:
        """Continue with what an installed snapshot held."""
        self.applier = applier
        self._to_index = max(self._to_index, applier.applied_index)

    def _apply(self) -> None:
        self._waits = False
        applier, log, node = self.applier, self._log, self._life.node
        while applier.applied_index < self._to_index and log.failure is None and applier.failure is None:
            raw, _ = log.read_frames(applier.applied_index, APPLY_BYTES, to_index=self._to_index)
            if not raw:
                raise Violation(
                    "what is to be applied can be read", node.node_id, applier.applied_index, self._to_index
                )
            try:
                self._apply_frames(raw)
            except ApplyFailed:
                if not node.condition.machine_is_broken:
                    raise
                self._readers.fail()
        self._readers.answer(applier)

    def _apply_frames(self, raw: bytes) -> None:
        applier, life = self.applier, self._life
        for frame in walk_frames(raw):
            applied = applier.apply(frame)
            life.checks.applied(life.node, frame, applied, applier.digest)
            self._pending.applied(applied)
            self._snapshotting.at_boundary(frame.header, applier)
