"""A directory without an identity: it was never formatted, or its node has lost it and must not touch the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from quire.log.simulated import Disk, Keep, PowerLoss
from quire.replication.witnesses import WITNESS_FILES

from .voters import OPTIONS, content, files_of, formatted, lose, new_applier, opened, voter


@pytest.mark.parametrize("also", [(), ("promise",), ("mark",), ("genesis",), ("promise", "mark")])
def test_a_voter_that_lost_its_identity_refuses_to_start_and_changes_nothing(also: tuple[str, ...]) -> None:
    disk = voter()
    lose(disk, "identity", *also)
    before = content(disk)

    with pytest.raises(DataDirRefused, match="its identity file is missing, and it holds"):
        opened(disk)

    assert content(disk) == before


def test_a_voter_that_lost_identity_and_log_refuses_to_start() -> None:
    disk = voter()
    lose(disk, "identity", "log")

    with pytest.raises(DataDirRefused, match="a promise of epoch 7"):
        opened(disk)


def test_snapshots_without_an_identity_are_not_touched() -> None:
    disk = voter(snapshots=True)
    lose(disk, "identity", "promise", "mark", "log", *WITNESS_FILES)
    before = content(disk)

    with pytest.raises(DataDirRefused, match="it holds snapshots"):
        opened(disk)

    assert content(disk) == before


def test_foreign_files_in_a_folder_named_log_are_not_touched() -> None:
    disk = Disk()
    disk.directory().child("log")
    disk.replace("log/syslog", b"somebody's")
    before = content(disk)

    with pytest.raises(DataDirRefused, match="log/syslog, which is not a file of a log"):
        opened(disk)

    assert content(disk) == before


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda disk: lose(disk, "mark"), "its mark file is missing"),
        (lambda disk: lose(disk, "log"), "its log is missing"),
        (lambda disk: lose(disk, "promise"), "its promise file is missing"),
    ],
    ids=["mark", "log", "promise"],
)
def test_a_formatted_directory_that_lost_a_file_refuses_to_start(damage: Callable[[Disk], None], reason: str) -> None:
    disk = voter()
    damage(disk)

    with pytest.raises(DataDirRefused, match=reason):
        opened(disk)


def test_log_and_mark_lost_beside_a_snapshot_are_not_taken_for_an_install() -> None:
    """The same voter would start again at the snapshot, though it acknowledged more."""
    disk = voter(snapshots=True)
    lose(disk, "mark", "log")

    with pytest.raises(DataDirRefused, match="its mark file is missing"):
        opened(disk)


def test_a_killed_first_start_is_moved_aside_and_begins_again_with_the_same_disk() -> None:
    disk = formatted()
    lose(disk, "identity", *WITNESS_FILES)
    before = content(disk)

    data_dir = opened(disk)

    assert data_dir.identity is None
    after = content(disk)
    for path in ("mark", "genesis", "log/00000000000000000000.store"):
        assert path not in after
        assert after["quarantine/unfinished-1/" + path.removeprefix("log/")] == before[path]
    assert after["promise"] == before["promise"]


@pytest.mark.parametrize("keep", list(Keep))
def test_a_move_aside_that_is_stopped_at_any_operation_loses_no_file_and_is_repeated(keep: Keep) -> None:
    before = formatted()
    lose(before, "identity", *WITNESS_FILES)
    held = {path.split("/")[-1] for path in files_of(before)} - {"lock"}
    stop, stopped = 1, True
    while stopped:
        disk = before.fork()
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        try:
            opened(disk)
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        data_dir = opened(disk)
        assert data_dir.identity is None
        assert held <= {path.split("/")[-1] for path in files_of(disk)}, stop
        data_dir.close()
        stop += 1
    assert stop > 5


def test_the_parents_of_a_new_data_directory_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("quire.log.files.sync_folder", synced.append)

    DataDir.open(tmp_path / "a" / "b", "n1", OPTIONS).close()

    assert {tmp_path, tmp_path / "a"} <= set(synced)


def test_a_voter_opens_as_before() -> None:
    disk = voter(snapshots=True)

    data_dir = opened(disk)

    assert data_dir.promises.promise.epoch == 7
    assert new_applier(data_dir).applied_index <= 301
    assert data_dir.log is not None
    assert data_dir.log.durable_index == 301
