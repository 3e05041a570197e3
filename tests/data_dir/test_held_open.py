"""What a file system keeps under a name of its own while another program holds it open is no file of quire's."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quire.cluster.backup.store import FolderStore
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from quire.cluster.data_dir.restoration import check_unused
from quire.log import FileDirectory
from quire.pipeline.archive.appender import open_archive
from quire.sm import SnapshotStore, snapshot_name
from tests.data_dir.voters import OPTIONS, formatted
from tests.sm.test_snapshot_store import OWNER, Machine, indices

NAMES = (".nfs00000000000a1b2c00000001", ".fuse_hidden0000000300000001")

pytestmark = pytest.mark.parametrize("name", NAMES)


def held_open(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * 100)


def test_a_first_start_takes_none_for_another_program_s_file_or_a_snapshot(tmp_path: Path, name: str) -> None:
    for folder in ("", "log", "snapshots"):
        held_open(tmp_path / folder, name)

    with closing(DataDir.open(tmp_path, "n1", OPTIONS)) as data_dir:
        assert data_dir.identity is None
    assert not (tmp_path / "quarantine").exists()


def test_a_start_says_once_which_ones_it_ignores(tmp_path: Path, name: str) -> None:
    with closing(DataDir.open(tmp_path, "n1", OPTIONS)) as data_dir:
        data_dir.format("n1", formatted().content("genesis"))
    held_open(tmp_path / "log", name)

    with capture_logs() as journal:
        DataDir.open(tmp_path, "n1", OPTIONS).close()

    assert [line["files"] for line in journal if "held open" in line["event"]] == [[f"log/{name}"]]


def test_one_does_not_stand_for_the_snapshot_of_a_log_that_is_lost(tmp_path: Path, name: str) -> None:
    with closing(DataDir.open(tmp_path, "n1", OPTIONS)) as data_dir:
        data_dir.format("n1", formatted().content("genesis"))
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    held_open(tmp_path / "snapshots", name)

    with pytest.raises(DataDirRefused, match="its log is missing"):
        DataDir.open(tmp_path, "n1", OPTIONS)


def test_an_expired_snapshot_whose_chunk_is_held_open_stops_neither_the_next_one_nor_a_start(
    tmp_path: Path, name: str
) -> None:
    machine, store = Machine(), SnapshotStore.open(FileDirectory(tmp_path), OWNER)
    taken = [machine.snapshot(store)]
    held_open(tmp_path / "snapshots" / snapshot_name(taken[0]), name)
    for _ in range(2):
        machine.add()
        taken.append(machine.snapshot(store))

    again = SnapshotStore.open(FileDirectory(tmp_path), OWNER)

    assert indices(again) == taken[1:]
    (gone,) = (tmp_path / "snapshots").glob("*.gone")
    assert [file.name for file in gone.iterdir()] == [name]
    (gone / name).unlink()  # Its program has closed it.
    SnapshotStore.open(FileDirectory(tmp_path), OWNER)
    assert not gone.exists()


def test_two_snapshots_at_one_index_are_removed_while_files_of_both_are_held_open(tmp_path: Path, name: str) -> None:
    machine, store = Machine(), SnapshotStore.open(FileDirectory(tmp_path), OWNER)
    for _ in range(2):
        index = machine.snapshot(store)
        held_open(tmp_path / "snapshots" / snapshot_name(index), name)
        store.remove_all([index])

    assert indices(store) == []
    assert indices(SnapshotStore.open(FileDirectory(tmp_path), OWNER)) == []


def test_a_folder_with_files_of_another_kind_is_not_taken_for_removed(tmp_path: Path, name: str) -> None:
    held_open(tmp_path / "folder", name)
    (tmp_path / "folder" / "other").touch()

    with pytest.raises(OSError, match="not empty"):
        FileDirectory(tmp_path).remove_child("folder")


def test_a_restore_a_backup_and_an_archive_ignore_them(tmp_path: Path, name: str) -> None:
    held_open(tmp_path, name)

    check_unused(FileDirectory(tmp_path))
    assert FolderStore(tmp_path).list("") == {}
    for _ in range(2):
        with open_archive(os.fspath(tmp_path)):
            held_open(tmp_path / "_quire" / "new", name)
    assert (tmp_path / "_quire" / "new" / name).exists()
