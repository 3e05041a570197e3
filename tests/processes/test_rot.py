"""A byte that rots in what was durable is found at the start, named, and never taken for a torn tail (DESIGN 4).

A node in a cluster refuses, too, until holes (rule 14) are built.
"""

import re
from collections.abc import Callable, Iterator
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
from tests.processes.refusals import FAILED, check_refused
from tests.processes.verdict import check_cluster, check_received

SEGMENT_BYTES = 65_536
SEGMENTS = 4
BATCH = 100


class Damage(NamedTuple):
    """Where a byte was changed: which file, at which position the frame or header that it spoils begins, and which."""

    file: Path
    begins: int
    flipped: int


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Node]]:
    """A cluster with small segments, some of them sealed, and its n3, killed. It comes back once no test spoils it."""
    with ending_clusters(tmp_path_factory.mktemp("rot")) as clusters:
        cluster = clusters.formed(flags=["--segment-bytes", str(SEGMENT_BYTES)])
        node = cluster["n3"]
        with running_load(cluster, batch=BATCH) as load:
            cluster.wait_until("some segments are sealed", lambda: len(stores(node.data_dir)) > SEGMENTS)
            load.finish()
        check_cluster(cluster, load)
        durable_index = node.status()["durable_index"]
        cluster.wait_until("the mark names all", lambda: read_mark(node.data_dir).durable_index == durable_index)
        node.kill()
        yield cluster, node
        if node.process is None:
            cluster.start("n3")
        cluster.wait_for_equal()
        assert node.raw_frames() == cluster.leader.raw_frames()


def payload_of(store: Path, frame: FrameAt) -> Damage:
    return Damage(store, frame.position, frame.end - 1)


def header_of(store: Path, frame: FrameAt) -> Damage:
    return Damage(store, frame.position, frame.position + 8)


def in_the_first_segment_s_middle_payload(node: Node) -> Damage:
    store = stores(node.data_dir)[0]
    frames = frames_in(store)
    return payload_of(store, frames[len(frames) // 2])


def in_a_sealed_segment_s_last_payload(node: Node) -> Damage:
    store = stores(node.data_dir)[1]
    return payload_of(store, frames_in(store)[-1])


def in_a_sealed_segment_s_frame_header(node: Node) -> Damage:
    store = stores(node.data_dir)[1]
    return header_of(store, frames_in(store)[1])


def in_a_sealed_segment_s_store_header(node: Node) -> Damage:
    return Damage(stores(node.data_dir)[1], 0, 20)


def in_the_write_segment_s_first_payload(node: Node) -> Damage:
    store = stores(node.data_dir)[-1]
    frames = frames_in(store)
    assert frames[0].end <= read_mark(node.data_dir).position
    return payload_of(store, frames[0])


def in_the_write_segment_s_last_frame_below_the_mark(node: Node) -> Damage:
    store = stores(node.data_dir)[-1]
    mark = read_mark(node.data_dir)
    frame = next(frame for frame in frames_in(store) if frame.end == mark.position)
    return header_of(store, frame)


@pytest.mark.parametrize(
    "spoilt",
    [
        in_the_first_segment_s_middle_payload,
        in_a_sealed_segment_s_last_payload,
        in_a_sealed_segment_s_frame_header,
        in_a_sealed_segment_s_store_header,
        in_the_write_segment_s_first_payload,
        in_the_write_segment_s_last_frame_below_the_mark,
    ],
    ids=lambda function: function.__name__,
)
def test_a_node_refuses_to_start_on_a_rotten_byte_and_names_file_and_position(
    killed: tuple[Cluster, Node], spoilt: Callable[[Node], Damage]
) -> None:
    _, node = killed
    damage = spoilt(node)
    flip(damage.file, damage.flipped)
    try:
        before = contents(node.data_dir / "log")
        ended = node.run_to_end()
        after = contents(node.data_dir / "log")
    finally:
        flip(damage.file, damage.flipped)

    check_refused(ended, FAILED, f"data_dir {node.data_dir}", damage.file.name)
    sentence = ended.stderr.strip().splitlines()[-1].replace(damage.file.name, "").replace(str(node.data_dir), "")
    assert str(damage.begins) in re.findall(r"\d+", sentence), f"{damage} in: {sentence}"
    assert after == before, "rot is evidence: nothing is changed"


def test_a_torn_tail_above_the_mark_is_cut_and_what_stands_there_is_shipped(killed: tuple[Cluster, Node]) -> None:
    cluster, node = killed
    mark, store = read_mark(node.data_dir), stores(node.data_dir)[-1]
    with store.open("r+b") as opened:
        opened.seek(mark.position)
        opened.write(b"\x5a" * 1000)  # half of a frame that was never acknowledged
    assert cluster.leader.apply(["add", 1])["index"] >= mark.durable_index

    cluster.start("n3")

    cluster.wait_for_equal()
    check_received(cluster, node, mark.durable_index)
    assert node.status()["stream"]["from_index"] == mark.durable_index
    assert node.raw_frames() == cluster.leader.raw_frames()
    node.kill()
