"""A rotten byte in durable data is found at the start and named, and never taken for a torn tail (`log/DESIGN.md`).

A node of a cluster refuses to start, too: repair from other nodes (rule 14) is not built.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes.cluster import Cluster, Node, ending_clusters
from tests.processes.data_files import (
    FrameAt,
    contents,
    flip,
    frames_in,
    read_mark,
    stores,
)
from tests.processes.load import running_load
from tests.processes.refusals import FAILED, last_sentence

SEGMENT_BYTES = 65_536
SEGMENTS = 4
BATCH = 100
ENDS_WITHIN_S = 20.0  # What open does not scan is found when it is applied.


class Damage(NamedTuple):
    """Where a byte was changed: which file, at which position the frame or header that it spoils begins, and which."""

    file: Path
    begins: int
    flipped: int


@dataclass(frozen=True)
class Stopped:
    """A cluster whose n3 does not run, and copies of n3's data_dir: as a kill left it, and as a clean stop did."""

    cluster: Cluster
    node: Node
    killed: Path
    clean: Path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """Small segments, some of them sealed, and a mark that names everything."""
    folder = tmp_path_factory.mktemp("rot")
    with ending_clusters(folder) as clusters:
        cluster = clusters.formed(flags=["--segment-bytes", str(SEGMENT_BYTES)])
        node = cluster["n3"]
        with running_load(cluster, batch=BATCH) as load:
            cluster.wait_until("some segments are sealed", lambda: len(stores(node.data_dir)) > SEGMENTS)
            load.end()
        load.check(cluster)
        durable_index = node.status()["durable_index"]
        cluster.wait_until("the mark names all", lambda: read_mark(node.data_dir).durable_index == durable_index)
        node.kill()
        killed, clean = (Path(shutil.copytree(node.data_dir, folder / name)) for name in ("killed", "clean"))
        node.start()
        cluster.wait_until("n3 is ready", node.is_ready)
        cluster.stop("n3")
        shutil.copytree(node.data_dir, clean, dirs_exist_ok=True)
        yield Stopped(cluster, node, killed, clean)


def payload_of(store: Path, frame: FrameAt) -> Damage:
    return Damage(store, frame.position, frame.end - 1)


def header_of(store: Path, frame: FrameAt) -> Damage:
    return Damage(store, frame.position, frame.position + 8)


def in_the_first_segment_s_middle_payload(data_dir: Path) -> Damage:
    store = stores(data_dir)[0]
    frames = frames_in(store)
    return payload_of(store, frames[len(frames) // 2])


def in_a_sealed_segment_s_last_payload(data_dir: Path) -> Damage:
    store = stores(data_dir)[1]
    return payload_of(store, frames_in(store)[-1])


def in_a_sealed_segment_s_frame_header(data_dir: Path) -> Damage:
    store = stores(data_dir)[1]
    return header_of(store, frames_in(store)[1])


def in_a_sealed_segment_s_store_header(data_dir: Path) -> Damage:
    return Damage(stores(data_dir)[1], 0, 20)


def in_the_write_segment_s_first_payload(data_dir: Path) -> Damage:
    store = stores(data_dir)[-1]
    frames = frames_in(store)
    assert frames[0].end <= read_mark(data_dir).position
    return payload_of(store, frames[0])


def in_the_write_segment_s_last_frame_below_the_mark(data_dir: Path) -> Damage:
    store = stores(data_dir)[-1]
    mark = read_mark(data_dir)
    frame = next(frame for frame in frames_in(store) if frame.end == mark.position)
    return header_of(store, frame)


@pytest.mark.full
@pytest.mark.parametrize(
    ("end", "spoilt"),
    [
        ("killed", in_the_first_segment_s_middle_payload),
        pytest.param("killed", in_a_sealed_segment_s_last_payload, marks=pytest.mark.full),
        pytest.param("killed", in_a_sealed_segment_s_frame_header, marks=pytest.mark.full),
        pytest.param("killed", in_a_sealed_segment_s_store_header, marks=pytest.mark.full),
        pytest.param("killed", in_the_write_segment_s_first_payload, marks=pytest.mark.full),
        pytest.param("killed", in_the_write_segment_s_last_frame_below_the_mark, marks=pytest.mark.full),
        pytest.param("clean", in_a_sealed_segment_s_frame_header, marks=pytest.mark.full),
        pytest.param("clean", in_the_write_segment_s_first_payload, marks=pytest.mark.full),
        pytest.param("clean", in_the_write_segment_s_last_frame_below_the_mark, marks=pytest.mark.full),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_node_refuses_to_run_on_a_rotten_byte_and_names_file_and_position(
    stopped: Stopped, tmp_path: Path, end: str, spoilt: Callable[[Path], Damage]
) -> None:
    data_dir = Path(shutil.copytree(getattr(stopped, end), tmp_path / "n3"))
    assert read_mark(data_dir).clean == (end == "clean")
    damage = spoilt(data_dir)
    flip(damage.file, damage.flipped)
    before = contents(data_dir / "log")

    ended = stopped.node.run_to_end("--data-dir", str(data_dir), timeout_s=ENDS_WITHIN_S)

    sentence = last_sentence(ended, FAILED)
    assert damage.file.name in sentence
    positions = re.findall(r"[0-9]+", sentence.replace(str(data_dir), "").replace(damage.file.name, ""))
    assert str(damage.begins) in positions, f"{damage} in: {sentence}"
    assert contents(data_dir / "log") == before, "rot is evidence: nothing is changed"


def test_a_torn_tail_above_the_mark_is_cut_and_what_stands_there_is_shipped(stopped: Stopped) -> None:
    cluster, node = stopped.cluster, stopped.node
    shutil.copytree(stopped.killed, node.data_dir, dirs_exist_ok=True)
    mark, store = read_mark(node.data_dir), stores(node.data_dir)[-1]
    with store.open("r+b") as opened:
        opened.seek(mark.position)
        opened.write(b"\x5a" * 1000)  # half of a frame that was never acknowledged
    assert cluster.leader.apply(["add", 1])["index"] == mark.durable_index

    cluster.start("n3")

    cluster.wait_for_equal()
    cluster.check_received(node, mark.durable_index)
    assert node.status()["stream"]["from_index"] == mark.durable_index
    assert node.raw_frames() == cluster.leader.raw_frames()
    cluster.stop("n3")
