"""Nodes whose processes or disks a scenario touches: how they are damaged, and how they are made whole again."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.processes.cluster import DEADLINE_S, Cluster, Node, Unreachable
from tests.verdict.verdict import Wrong


class Held(NamedTuple):
    """A disk, what of its log is known to be committed, and where the log ends."""

    disk_id: str
    commit_index: int
    highest_index: int


class Recovery:
    """What is to be made whole again in one scenario."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.away: list[Node] = []
        """Killed, stopped or paused."""
        self.failed: list[Node] = []
        """Their machines raised: their processes are to be started again."""
        self.touched: list[Node] = []
        """Their disks were damaged or wiped."""
        self._ended = threading.Event()
        self._operators: list[threading.Thread] = []

    # What is done to them

    def damage(self, node: Node, files: Sequence[str], by: Node | None) -> None:
        """Start it again without these files, or with another's; it may refuse to, or end later.

        Raises Wrong: it came back as the same member with less than was committed.
        """
        before = self._cluster.wait_until(f"{node.node_id} says what it holds", lambda: _held(node))
        node.kill()
        for name in files:
            _remove(node.data_dir / name)
            if by is not None:
                _copy(by.data_dir / name, node.data_dir / name)
        self.touched.append(node)
        node.may_end = True
        node.start()

        def started() -> Held | None:
            return Held("", 0, 0) if _has_ended(node) else _held(node)

        after = self._cluster.wait_until(f"{node.node_id} refuses to start, or answers", started)
        if after.disk_id == before.disk_id and after.highest_index < before.commit_index:
            raise Wrong(
                f"{node.node_id} held what was committed to {before.commit_index}, lost its {', '.join(files)}, "
                f"and is the same member with a log that ends at {after.highest_index}"
            )

    def replace(self, node: Node) -> None:
        """Start it with an empty disk, and ask again and again to make it a voter, until all is healed."""
        node.kill()
        self._start_anew(node)
        self.touched.append(node)
        operator = threading.Thread(target=self._promote_until_healed, args=(node,), daemon=True)
        self._operators.append(operator)
        operator.start()

    def _start_anew(self, node: Node) -> None:
        shutil.rmtree(node.data_dir)
        node.may_end = False
        node.start()

    def _promote_until_healed(self, node: Node) -> None:
        asked = 0
        while not self._ended.wait(0.2):
            others = [other for other in self._cluster if other is not node and other.process is not None]
            asked += 1
            with suppress(Unreachable):
                if promote(others[asked % len(others)], node):
                    return

    # What makes them whole

    def resume(self) -> None:
        """Who was paused goes on, and nobody is asked any more to promote anybody."""
        self._ended.set()
        for operator in self._operators:
            operator.join(DEADLINE_S)
        for node in self.away:
            if node.process is not None:
                node.resume()

    def start_again(self) -> None:
        """Start who was killed, or failed; who refused its disk begins with an empty one. All are voters after."""
        for node in self.failed:
            if node.process is not None and not _has_ended(node):
                node.kill()
        for node in dict.fromkeys((*self.away, *self.failed, *self.touched)):
            if node.process is not None and _has_ended(node):
                node.ended()
                self._start_anew(node)
            elif node.process is None:
                node.start()
        for node in self.touched:
            self._cluster.wait_until(f"{node.node_id} is a voter", partial(self._is_voter, node))
            node.may_end = False

    def _is_voter(self, node: Node) -> bool:
        if _has_ended(node):
            node.ended()
            self._start_anew(node)
        if not node.is_ready():
            return False
        return node.status()["role"] != "observer" or promote(self._cluster.elected(), node)


def promote(asked: Node, node: Node) -> bool:
    """Whether a node says that another is a voter now, with the disk that it has. Raises Unreachable."""
    path, headers = f"/members/{node.node_id}", {"Content-Type": "application/json"}
    return asked.call("PATCH", path, b'{"role": "voter"}', headers).status == 200


def _held(node: Node) -> Held | None:
    status = node.status()
    if "disk_id" not in status:
        return None  # It does not know its cluster yet.
    return Held(str(status["disk_id"]), int(status["commit_index"]), int(status["highest_index"]))


def _has_ended(node: Node) -> bool:
    return node.running.poll() is not None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder that its node writes meanwhile."""
    with suppress(FileNotFoundError, shutil.Error):
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
