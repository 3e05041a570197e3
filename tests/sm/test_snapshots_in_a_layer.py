"""Snapshots in a lower layer of an overlay, which renames no folder of it (EXDEV)."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.log import DiskFull, FileDirectory
from quire.sm import SnapshotPart, SnapshotStore, snapshot_name
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


def in_layer(lower: set[int], rename: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """A rename that refuses these folders."""

    def replace(source: str, target: str) -> None:
        if os.stat(source).st_ino in lower:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        rename(source, target)

    return replace


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, list[int]]:
    """Two snapshots that are in a lower layer from now on."""
    machine, taken = with_two_snapshots(tmp_path)
    lower = {os.stat(folder).st_ino for folder in (tmp_path / "snapshots").iterdir()}
    monkeypatch.setattr(os, "replace", in_layer(lower, os.rename))
    return machine, taken


def test_snapshots_of_a_lower_layer_are_replaced_and_quarantined(
    tmp_path: Path, layered: tuple[Machine, list[int]]
) -> None:
    goes_on_above(tmp_path, *layered)


def _full(source: object, target: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_removal_copies_nothing(
    tmp_path: Path, layered: tuple[Machine, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, taken = layered
    store = opened(tmp_path)
    machine.add()
    monkeypatch.setattr(shutil, "copyfileobj", _full)
    taken.append(machine.snapshot(store))
    assert indices(store) == indices(opened(tmp_path)) == taken[1:]
    assert len(list((tmp_path / "snapshots").iterdir())) == 2


def test_a_removal_that_is_killed_at_any_file_leaves_no_partial_snapshot(
    tmp_path: Path, layered: tuple[Machine, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = layered
    unlink, kept = os.unlink, len(list((tmp_path / "snapshots" / snapshot_name(taken[0])).iterdir()))
    for count in range(kept):
        path = tmp_path / str(count)
        shutil.copytree(tmp_path / "snapshots", path / "snapshots")
        lower = os.stat(path / "snapshots" / snapshot_name(taken[0])).st_ino
        removed = 0

        def killed(file: str, count: int = count) -> None:
            nonlocal removed
            if removed == count:
                raise KeyboardInterrupt
            unlink(file)
            removed += 1

        store = opened(path)
        with monkeypatch.context() as dying:
            dying.setattr(os, "replace", in_layer({lower}, os.rename))
            dying.setattr(os, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                store.remove_all([taken[0]])

        store = opened(path)
        assert (indices(store), store.damaged) == (taken[1:], [])
        assert [file.name for file in (path / "snapshots").iterdir()] == [snapshot_name(taken[1])]


def test_a_copy_that_found_no_room_is_made_anew(
    tmp_path: Path, layered: tuple[Machine, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = layered
    (tmp_path / "snapshots" / snapshot_name(taken[1]) / "manifest").write_bytes(b"rot")
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", _full)
        with pytest.raises(OSError, match="no space left"):
            opened(tmp_path)
    set_aside = tmp_path / "quarantine" / f"snapshot-1-{snapshot_name(taken[1])}"
    assert not set_aside.exists(), "a folder has its name once it is whole"

    assert indices(opened(tmp_path)) == taken[:1]

    assert (set_aside / "manifest").read_bytes() == b"rot"
    assert list((tmp_path / "quarantine").iterdir()) == [set_aside]


def test_what_another_program_holds_open_is_not_copied(tmp_path: Path, layered: tuple[Machine, list[int]]) -> None:
    _, taken = layered
    folder = tmp_path / "snapshots" / snapshot_name(taken[1])
    (folder / "manifest").write_bytes(b"rot")
    (folder / ".nfs1").touch()

    opened(tmp_path)

    assert not list((tmp_path / "quarantine").glob("*/.nfs1"))
    assert [file.name for file in folder.iterdir()] == [".nfs1"]


def test_a_part_that_finds_no_room_for_its_copy_is_whole_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, leader = Machine(), opened(tmp_path / "leader")
    index = machine.snapshot(leader)
    [manifest] = leader.manifests
    store = opened(tmp_path / "node")
    part = SnapshotPart.begin(store, manifest.encode())
    for number in part.missing():
        part.put(number, leader.chunk(manifest, number))
    lower = {os.stat(folder).st_ino for folder in (tmp_path / "node" / "snapshots").iterdir()}
    monkeypatch.setattr(os, "replace", in_layer(lower, os.rename))
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", _full)
        with pytest.raises(DiskFull):
            part.complete()
    assert indices(store) == []

    part.complete()

    assert indices(store) == indices(opened(tmp_path / "node")) == [index]
    assert [file.name for file in (tmp_path / "node" / "snapshots").iterdir()] == [snapshot_name(index)]
