"""A byte that rots in what was durable is found at the start, named, and never taken for a torn tail (DESIGN 4).

A node in a cluster refuses, too, until holes (rule 14) are built.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes.cluster import Cluster, Clusters, Node
from tests.processes.data_files import (
    STORE_HEADER_BYTES,
    FrameAt,
    contents,
    flip,
    frames_in,
    read_mark,
    stores,
)
from tests.processes.load import running_load

SEGMENT_BYTES = 65_536
SEGMENTS = 4
BATCH = 100


class Damage(NamedTuple):
    """Where a byte was changed: which file, at which position the frame or header that it spoils begins, and which."""

    file: Path
    begins: int
    flipped: int


@pytest.fixture
def killed(clusters: Clusters) -> Iterator[tuple[Cluster, Node]]:
    """A cluster with small segments, full of some, whose n3 was killed; it catches up after the damage is undone."""
    cluster = clusters.formed(flags=["--segment-bytes", str(SEGMENT_BYTES)])
    node = cluster["n3"]
    with running_load(cluster, batch=BATCH) as load:
        cluster.wait_until("some segments are sealed", lambda: len(stores(node.data_dir)) > SEGMENTS)
        load.finish()
    cluster.wait_for_equal()
    durable_index = node.status()["durable_index"]
    cluster.wait_until("the mark names all", lambda: read_mark(node.data_dir).durable_index == durable_index)
    node.kill()
    yield cluster, node
    if node.process is None:
        cluster.start("n3")
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()


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
    before = contents(node.data_dir / "log")

    ended = node.run_to_end()

    assert ended.code == 1, ended
    assert "Traceback" not in ended.stderr
    sentence = ended.stderr.strip().splitlines()[-1]
    assert sentence.startswith("quire serve: "), ended.stderr
    assert damage.file.name in sentence
    assert f"{damage.begins}" in sentence.replace(damage.file.name, ""), f"{damage} in: {sentence}"
    assert contents(node.data_dir / "log") == before, "rot is evidence: nothing is changed"
    flip(damage.file, damage.flipped)


def test_a_torn_tail_above_the_mark_is_cut_and_shipped_again(killed: tuple[Cluster, Node]) -> None:
    cluster, node = killed
    mark, store = read_mark(node.data_dir), stores(node.data_dir)[-1]
    with store.open("r+b") as opened:
        opened.seek(mark.position)
        opened.write(b"\x5a" * 1000)  # half of a frame that was never acknowledged

    cluster.start("n3")

    assert node.status()["stream"]["from_index"] == mark.durable_index
    assert mark.position >= STORE_HEADER_BYTES
    assert cluster.leader.apply(["add", 1])["index"] == mark.durable_index
    cluster.wait_for_equal()
    assert node.raw_frames() == cluster.leader.raw_frames()
