"""A mount point without its volume is not taken for an empty directory."""

import os
from pathlib import Path

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from quire.cluster.standalone.config import StandaloneConfig
from quire.cluster.standalone.service import LogService
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

    with pytest.raises(DataDirRefused, match=f"its volume is not mounted at {volume}; mount it and start again"):
        DataDir.open(volume, "n1", OPTIONS)

    assert list(volume.iterdir()) == []
    volume.rmdir()
    below.rename(volume)
    DataDir.open(volume, "n1", OPTIONS).close()


def test_a_directory_below_a_mount_point_is_refused_until_that_is_one_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    formatted_at(volume / "quire" / "n1")
    formatted_at(volume / "quire" / "n2")
    mounted(monkeypatch)
    volume.rename(tmp_path / "unmounted")
    volume.mkdir()

    for name in ("n1", "n2"):
        with pytest.raises(DataDirRefused, match=f"its volume is not mounted at {volume}; mount it"):
            DataDir.open(volume / "quire" / name, "n1", OPTIONS)

    assert list(volume.iterdir()) == []
    DataDir.open(volume / "quire" / "n3", "n1", OPTIONS).close()


def test_a_volume_of_a_node_that_was_formatted_before_is_noted_at_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch)
    formatted_at(volume)
    mounted(monkeypatch, volume)
    for _ in range(2):
        DataDir.open(volume, "n1", OPTIONS).close()
    assert (tmp_path / ".d.quire-volume").read_text().splitlines()[1:] == [str(volume)]


async def test_a_standalone_log_is_refused_without_its_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    config = StandaloneConfig(listen="127.0.0.1:1", data_dir=volume / "log")
    for _ in range(2):
        log = LogService(config)
        await log.start()
        await log.stop()
    mounted(monkeypatch)
    volume.rename(tmp_path / "unmounted")
    volume.mkdir()

    with pytest.raises(DataDirRefused, match=f"its volume is not mounted at {volume}; mount it"):
        await LogService(config).start()

    assert list(volume.iterdir()) == []


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
