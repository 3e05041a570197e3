"""A mount point without its volume is not taken for an empty directory."""

import os
from pathlib import Path

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from tests.data_dir.voters import OPTIONS, formatted


def formatted_at(path: Path) -> None:
    data_dir = DataDir.open(path, "n1", OPTIONS)
    data_dir.format("n1", formatted().content("genesis"))
    data_dir.close()


def mounted(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let only these directories be mount points."""
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) in paths)


def test_an_empty_directory_that_was_a_mount_point_is_refused_until_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, below = tmp_path / "d", tmp_path / "unmounted"
    mounted(monkeypatch, volume)
    formatted_at(volume)
    mounted(monkeypatch)
    volume.rename(below)
    volume.mkdir()

    with pytest.raises(DataDirRefused, match="its volume is not mounted; mount it and start again"):
        DataDir.open(volume, "n1", OPTIONS)

    assert list(volume.iterdir()) == []
    volume.rmdir()
    below.rename(volume)
    DataDir.open(volume, "n1", OPTIONS).close()


def test_an_empty_volume_in_place_of_a_lost_one_is_a_new_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    formatted_at(volume)
    volume.rename(tmp_path / "lost")
    volume.mkdir()

    data_dir = DataDir.open(volume, "n1", OPTIONS)

    assert data_dir.identity is None
    data_dir.close()


def test_a_directory_that_is_no_mount_point_leaves_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch)

    formatted_at(tmp_path / "d")

    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_parent_that_cannot_be_written_is_no_reason_not_to_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    (tmp_path / ".d.quire-volume").mkdir()  # Nobody can write a file there, root included.
    mounted(monkeypatch, volume)

    formatted_at(volume)

    DataDir.open(volume, "n1", OPTIONS).close()
