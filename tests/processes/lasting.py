"""A cluster that writes far more than its nodes keep: disks stay bounded, and restarts short."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes.cluster import QUIRE, Cluster, Clusters, Node, ending_clusters, environment
from tests.sm.commands import example
from tests.verdict.verdict import check_states

MB = 1_000_000
MIB = 1 << 20
PADDING = "0" * 20
"""Behind each operand: the log grows by some 35 bytes a command."""
RECORD_BYTES = 64
"""More than a command takes."""
LOADED_S = 600.0

classroom = example("classroom")
classroom_check = example("classroom_check")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is written, how much each node keeps of it in bytes, and when snapshots are taken."""

    loads: int
    commands: int
    """Of one load."""
    kept: dict[str, int]
    segment_bytes: int
    snapshot_records: int

    def bound(self, node_id: str) -> int:
        """What a node's log takes at most once it has expired what it may: see docs/snapshots.md."""
        needed = 2 * self.snapshot_records * RECORD_BYTES
        return max(self.kept[node_id], needed) + 2 * self.segment_bytes


FULL = Size(50, 1_000_000, {"n1": 200 * MB, "n2": 200 * MB, "n3": 500 * MB}, 64 * MIB, 500_000)


def instructions(count: int) -> list[str]:
    """This many of the classroom's instructions, with zeros appended to each operand, as lines of JSON."""
    source = classroom.Instructions(classroom.DEFAULT_SEED)
    drawn = iter(source.draw, None)
    return [json.dumps([operation, padded(operand)]) + "\n" for operation, operand in islice(drawn, count)]


def padded(operand: int | str) -> str:
    """The same number with more digits."""
    mantissa, mark, exponent = str(operand).lower().partition("e")
    return mantissa + ("" if "." in mantissa else ".") + PADDING + mark + exponent


def log_bytes(node: Node) -> int:
    """What a node's log takes on its disk."""
    taken = 0
    for path in node.data_dir.glob("log/*"):
        with suppress(FileNotFoundError):  # It expired meanwhile.
            taken += path.stat().st_blocks * 512
    return taken


def run(clusters: Clusters, size: Size, folder: Path) -> dict[str, object]:
    """Write it all, with what each disk holds watched; restart every node; check; the figures."""
    cluster = clusters.make()
    flags = ["--segment-bytes", str(size.segment_bytes), "--snapshot-records", str(size.snapshot_records)]
    for node in cluster:
        node.flags += [*flags, "--retention-bytes", str(size.kept[node.node_id])]
    cluster.start()
    lines = instructions(size.commands)
    file = folder / "instructions.ndjson"
    file.write_text("".join(lines))

    began = time.monotonic()
    peaks = dict.fromkeys(cluster.nodes, 0)
    for _ in range(size.loads):
        load(cluster, file, peaks)
    seconds = time.monotonic() - began
    statuses = cluster.wait_for_equal()
    restarts = {node.node_id: restarted_s(cluster, node) for node in cluster}
    cluster.wait_for_equal()

    expected = classroom_check.answer(line for _ in range(size.loads) for line in lines)
    lowest = {node_id: int(status["lowest_index"]) for node_id, status in statuses.items()}
    assert lowest["n1"] > 0, "nothing has expired"
    assert lowest["n3"] < min(lowest["n1"], lowest["n2"]), "the node that keeps more has kept no more"
    check_states({node.node_id: node.local_state()["state"] for node in cluster}, expected)
    for node in cluster:
        within(cluster, node, size)
    return {
        "commands": size.loads * size.commands,
        "commands_per_s": round(size.loads * size.commands / seconds),
        "kept_bytes": size.kept,
        "peak_bytes": peaks,
        "log_bytes": {node.node_id: log_bytes(node) for node in cluster},
        "lowest_index": lowest,
        "restart_s": restarts,
        "answer": expected,
    }


def load(cluster: Cluster, file: Path, peaks: dict[str, int]) -> None:
    """`quire load` of the file; the most that each log took meanwhile."""
    command = [*QUIRE, "load", str(file), "--json", "--server", cluster.servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:

        def ended() -> bool:
            for node in cluster:
                peaks[node.node_id] = max(peaks[node.node_id], log_bytes(node))
            return process.poll() is not None

        cluster.wait_until(f"{file.name} is loaded", ended, LOADED_S)
        assert process.returncode == 0, process.communicate()


def within(cluster: Cluster, node: Node, size: Size) -> None:
    """Wait until a node's log takes no more than it may."""
    bound = size.bound(node.node_id)
    cluster.wait_until(f"{node.node_id} takes {bound:,} bytes at most", lambda: log_bytes(node) <= bound)


def restarted_s(cluster: Cluster, node: Node) -> float:
    """Kill a node and start it again; seconds until it says that it is ready."""
    node.kill()
    began = time.monotonic()
    cluster.start_again(node)
    return round(time.monotonic() - began, 2)


def main() -> int:
    """`python -m tests.processes.lasting`: the full size."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.lasting", description=__doc__)
    parser.parse_args()
    with TemporaryDirectory(prefix="lasting-") as folder, ending_clusters(Path(folder)) as clusters:
        figures = run(clusters, FULL, Path(folder))
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
