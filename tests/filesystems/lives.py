"""Whole lives on one file system: of a node, and of a log alone."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.log import DiskFull, FileDirectory, Log, LogOptions, wall_clock
from tests.processes.cluster import Cluster, Node, run_quire

from .mounts import MIB

SIZE = 400 * MIB
HALTS_WHEN_FULL = frozenset({"sshfs"})
"""Their protocol has no error for a full disk."""
PADDING = "x" * 1000
BATCH = 100
FLAGS = (
    *("--machine", "tests.processes.adder:Adder"),
    *("--segment-bytes", str(MIB), "--retention-bytes", str(2 * MIB)),
)
PIECE = bytes(MIB)
JSON = {"Content-Type": "application/json"}


@contextmanager
def filled(path: Path) -> Generator[None]:
    """Leave no room on the file system at `path` within the block."""
    ballast = path / "ballast"
    try:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(PIECE):
                os.fsync(file.fileno())
        yield
    finally:
        ballast.unlink()


class NodeLife:
    """A cluster of one node whose data directory is at `path`; what it prints goes to `output`."""

    def __init__(self, path: Path, output: Path, *, halts_when_full: bool = False) -> None:
        self._path = path
        self._halts = halts_when_full
        self._cluster = Cluster(output, ("n1",), flags=FLAGS)
        self._node = self._cluster["n1"]
        self._node.data_dir = path / "n1"
        self._acknowledged = 0
        self._sent = 0

    def run(self) -> None:
        """From the first start to a clean stop: rotation, snapshots, expiry, kill -9, a full disk, room again."""
        try:
            self._cluster.start()
            self._goes_on()
            self._node.kill()
            self._cluster.start()
            self._check()
            self._fills()
            self._goes_on()
            self._cluster.stop()
            self._verify()
            self._cluster.start()
            self._check()
            self._cluster.stop()
        finally:
            self._cluster.close()

    @contextmanager
    def running(self) -> Generator[Node]:
        """The node, within the block."""
        try:
            self._cluster.start()
            yield self._node
        finally:
            self._cluster.close()

    def _goes_on(self) -> None:
        """Segments are sealed, two snapshots taken, and segments below them expire."""
        lowest = self._node.get("/index_bounds")["lowest_index"]
        for _ in range(2):
            for _ in range(4 * MIB // (BATCH * len(PADDING))):
                assert self._write() == 200
            assert self._node.call("POST", "/admin/snapshot").status == 200
        assert self._node.call("POST", "/admin/expire").status == 200
        bounds = self._node.get("/index_bounds")
        assert bounds["lowest_index"] > lowest, bounds

    def _fills(self) -> None:
        """The disk is full: a write is refused, reads are answered, and the node neither ends nor needs a restart.

        Where a full disk is told as another error, it halts, and starts again once there is room.
        """
        with filled(self._path):
            self._node.may_end = self._halts
            if self._halts:
                self._cluster.wait_until("the node halts", self._has_halted)
            else:
                self._cluster.wait_until("a write is refused", lambda: self._write() != 200)
                self._check()
        if self._halts:
            self._cluster.start()
        self._cluster.wait_until("a write is taken again", lambda: self._write() == 200)
        self._check()

    def _write(self) -> int:
        """Send a batch; the status of the answer."""
        body = json.dumps({"commands": [["add", 1, PADDING]] * BATCH}).encode()
        self._sent += BATCH
        status = self._node.call("POST", "/commands", body, JSON).status
        self._acknowledged += BATCH if status == 200 else 0
        return status

    def _has_halted(self) -> bool:
        if self._node.running.poll() is None:
            self._write()
            return False
        return self._node.ended() != 0

    def _check(self) -> None:
        state = int(self._node.local_state()["state"])
        assert self._acknowledged <= state <= self._sent, (self._acknowledged, state, self._sent)

    def _verify(self) -> None:
        done = run_quire("log", "verify", str(self._node.data_dir))
        assert done.code == 0, done


def live_log(path: Path) -> None:
    """A log alone: appends with rotation, a full disk, room again, a reopening with all that was flushed."""
    appended, log = 0, opened(path)

    def append(count: int) -> None:
        nonlocal appended
        for _ in range(count):
            log.append([[appended, PADDING]] * BATCH)
            log.flush()
            appended += 1

    append(40)
    with filled(path), suppress(DiskFull):
        append(SIZE // (BATCH * len(PADDING)))
    assert appended < SIZE // (BATCH * len(PADDING)), "it was never full"
    append(40)
    log.close()
    log = opened(path)
    assert log.bounds == (0, appended * BATCH)
    assert log.read(appended * BATCH - 1).value == [appended - 1, PADDING]
    log.close()
    done = run_quire("log", "verify", str(path))
    assert done.code == 0, done


def opened(path: Path) -> Log:
    options = LogOptions(segment_bytes=MIB, max_frame_bytes=MIB)
    return Log.open(FileDirectory(path), options, cluster_id=bytes(16), clock=wall_clock, standalone=True)
