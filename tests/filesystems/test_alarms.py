"""A node on a real mount of which it warns says so; on others it has no alarm."""

from pathlib import Path

import pytest

from tests.processes.cluster import QUIRE, Cluster

from .mounts import MAKE, MIB, mounted

pytestmark = pytest.mark.full

SIZE = 400 * MIB


def alarms_on(path: Path) -> list[str]:
    """What a new node says on a mount."""
    cluster = Cluster(path / "cluster", ("n1",))
    node = cluster["n1"]
    node.program, node.flags = QUIRE, ["--segment-bytes", str(MIB)]
    try:
        cluster.start()
        found = node.alarms()
        cluster.stop()
    finally:
        cluster.close()
    told = node.output.read_text()
    assert all(alarm in told for alarm in found)
    return [alarm.removeprefix(f"data_dir {node.data_dir} ") for alarm in found]


@pytest.mark.parametrize(
    ("kind", "option", "sentence"),
    [
        ("tmpfs", "", "is on tmpfs, in memory: "),
        ("overlay", "volatile", "so that nothing is flushed: "),
        ("ext4", "nobarrier", "is mounted with nobarrier, so that nothing is flushed: "),
    ],
)
def test_a_node_where_a_flush_is_none_has_an_alarm(kind: str, option: str, sentence: str) -> None:
    with mounted(kind, SIZE, (option,) if option else ()) as path:
        (alarm,) = alarms_on(path)
        assert sentence in alarm


def test_a_node_whose_files_are_copied_on_write_has_an_alarm() -> None:
    with mounted("btrfs", SIZE) as path:
        data_dir = path / "cluster" / "n1"
        data_dir.mkdir(parents=True)
        (data_dir / ".nfs1").touch()  # Not empty, and nothing of a node's: too late for the flag.
        (alarm,) = alarms_on(path)
        assert "is on btrfs and copied on write: " in alarm


@pytest.mark.parametrize("kind", [*MAKE, "overlay"])
def test_a_node_has_none_elsewhere(kind: str) -> None:
    with mounted(kind, SIZE) as path:
        assert alarms_on(path) == []
