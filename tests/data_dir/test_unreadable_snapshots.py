"""Snapshots that the device does not give: the start that needs them names each file, and loses none of them."""

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from tests.data_dir.damage import disk_of
from tests.data_dir.history import LIVES, NODE, history, started
from tests.data_dir.voters import OPTIONS


def test_a_start_that_needs_one_names_its_file_and_a_start_that_can_read_it_is_whole() -> None:
    disk = disk_of(dict(history(LIVES[0]).now))
    chunks = [path for path in history(LIVES[0]).now if path.startswith("snapshots/") and path.endswith("0.chunk")]
    for path in chunks:
        disk.make_unreadable(path, 0)

    with pytest.raises(DataDirRefused) as refused:
        started(DataDir.open_directory(disk.directory(), NODE, OPTIONS))
    for path in chunks:
        _, name, file = path.split("/")
        assert f"snapshot {name} is damaged: {file}: input/output error at byte 0" in str(refused.value)

    for path in chunks:
        disk.make_unreadable(path, 0, 0)
    data_dir = DataDir.open_directory(disk.directory(), NODE, OPTIONS)
    _, applier = started(data_dir)
    assert applier.applied_index
    data_dir.close()
