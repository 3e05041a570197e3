"""Snapshots in a lower layer of an overlay, which renames no folder of it (EXDEV): they are copied instead."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from quire.log import FileDirectory
from quire.sm import SnapshotStore, snapshot_name
from tests.sm.test_snapshot_store import OWNER, Machine, indices


def opened(path: Path) -> SnapshotStore:
    return SnapshotStore.open(FileDirectory(path), OWNER)


def with_two_snapshots(path: Path) -> tuple[Machine, list[int]]:
    """A machine and its two snapshots, as an image's layer may hold them."""
    machine, store, taken = Machine(), opened(path), []
    for _ in range(2):
        machine.add()
        taken.append(machine.snapshot(store))
    return machine, taken


def goes_on_above(path: Path, machine: Machine, taken: list[int]) -> None:
    """Another snapshot takes the place of the older one, and the younger one, damaged, is quarantined."""
    store = opened(path)
    machine.add()
    taken.append(machine.snapshot(store))
    assert indices(store) == indices(opened(path)) == taken[1:]
    (path / "snapshots" / snapshot_name(taken[1]) / "manifest").write_bytes(b"rot")

    store = opened(path)

    assert indices(store) == taken[2:]
    assert sorted(file.name for file in (path / "snapshots").iterdir()) == [snapshot_name(taken[2])]
    (set_aside,) = (path / "quarantine").iterdir()
    assert (set_aside / "manifest").read_bytes() == b"rot"
    assert set_aside.name == f"snapshot-1-{snapshot_name(taken[1])}"


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, list[int]]:
    """Two snapshots that are in a lower layer from now on."""
    machine, taken = with_two_snapshots(tmp_path)
    lower = {os.stat(folder).st_ino for folder in (tmp_path / "snapshots").iterdir()}
    rename = os.replace

    def replace(source: str, target: str) -> None:
        if os.stat(source).st_ino in lower:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "rename", replace)
    return machine, taken


def test_snapshots_of_a_lower_layer_are_replaced_and_quarantined(
    tmp_path: Path, layered: tuple[Machine, list[int]]
) -> None:
    goes_on_above(tmp_path, *layered)


def test_a_copy_that_found_no_room_is_made_anew(
    tmp_path: Path, layered: tuple[Machine, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, taken = layered
    store = opened(tmp_path)
    machine.add()
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", _full)
        with pytest.raises(OSError, match="No space left"):
            taken.append(machine.snapshot(store))
    assert not list((tmp_path / "snapshots").glob("*.gone")), "a folder has its name once it is whole"
    taken.append(machine.applier.applied_index)
    assert indices(opened(tmp_path)) == taken

    store = opened(tmp_path)
    store.retain()

    assert indices(store) == indices(opened(tmp_path)) == taken[1:]
    assert len(list((tmp_path / "snapshots").iterdir())) == 2


def _full(source: object, target: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
