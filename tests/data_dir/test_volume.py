"""A mount point without its volume is not taken for an empty directory."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import typer
from structlog.testing import capture_logs

from quire.cluster.cli.operating.offline import locked
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


def unmounted(monkeypatch: pytest.MonkeyPatch, volume: Path) -> None:
    """Let the volume be elsewhere, and its mount point an empty directory."""
    mounted(monkeypatch)
    volume.rename(volume.parent / "unmounted")
    volume.mkdir()


def notes(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_an_empty_directory_that_was_a_mount_point_is_refused_until_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    formatted_at(volume)
    unmounted(monkeypatch, volume)

    with pytest.raises(DataDirRefused, match=f"its volume is not mounted at {volume}; mount it, or remove "):
        DataDir.open(volume, "n1", OPTIONS)

    assert list(volume.iterdir()) == []
    volume.rmdir()
    (tmp_path / "unmounted").rename(volume)
    DataDir.open(volume, "n1", OPTIONS).close()


def test_a_directory_below_a_mount_point_is_refused_until_that_is_one_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    formatted_at(volume / "quire" / "n1")
    formatted_at(volume / "quire" / "n2")
    unmounted(monkeypatch, volume)

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
    assert len(notes(tmp_path)) == 1


async def test_a_standalone_log_is_refused_without_its_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    config = StandaloneConfig(listen="127.0.0.1:1", data_dir=volume / "log")
    for _ in range(2):
        log = LogService(config)
        await log.start()
        await log.stop()
    unmounted(monkeypatch, volume)

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


def test_a_note_that_cannot_be_written_is_a_line_of_the_journal_and_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    path = volume / ("x" * 200) / ("y" * 200)  # No file has such a name, root's included.
    mounted(monkeypatch, volume)

    with capture_logs() as lines:
        formatted_at(path)
        DataDir.open(path, "n1", OPTIONS).close()

    assert [str(volume) == line.get("volume") for line in lines if "not noted" in line["event"]] == [True, True]
    assert notes(tmp_path) == []


def test_a_machine_without_a_temporary_folder_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    mounted(monkeypatch, tmp_path / "d")
    monkeypatch.setattr(tempfile, "gettempdir", none)

    formatted_at(tmp_path / "d")


def test_the_folder_of_temporary_files_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, link = tmp_path / "d", tmp_path / "link"
    link.symlink_to(volume)
    mounted(monkeypatch, volume)
    monkeypatch.setattr(tempfile, "tempdir", str(link))

    formatted_at(volume / "n1")

    assert notes(tmp_path) == []


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\nb", b"%2Fa", "é€".encode()])
def test_a_path_of_any_bytes_is_noted(name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "d"
    path = volume / os.fsdecode(name)
    mounted(monkeypatch, volume)
    formatted_at(path)
    unmounted(monkeypatch, volume)

    with pytest.raises(DataDirRefused, match="its volume is not mounted"):
        DataDir.open(path, "n1", OPTIONS)


@pytest.mark.parametrize(
    ("noted", "started"),
    [
        ("to-volume", "to-volume"),
        ("to-volume/q", "to-volume/q"),
        ("d/to-q", "d/to-q"),
        ("to-volume/to-q", "to-volume/to-q"),
        ("d/q/../q", "d/q"),
    ],
)
def test_a_path_over_links_or_dots_is_refused_without_its_volume(
    noted: str, started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    (volume / "q").mkdir(parents=True)
    (volume / "to-q").symlink_to("q")
    (tmp_path / "to-volume").symlink_to(volume)
    mounted(monkeypatch, volume)
    formatted_at(tmp_path / noted)
    unmounted(monkeypatch, volume)

    with pytest.raises(DataDirRefused, match=f"its volume is not mounted at {volume}"):
        DataDir.open(tmp_path / started, "n1", OPTIONS)


@pytest.mark.parametrize("kind", ["bytes", "fifo", "link", "dangling", "folder"])
def test_what_stands_in_a_note_s_place_is_neither_read_nor_written_and_counts_as_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, victim = tmp_path / "d", tmp_path / "victim"
    mounted(monkeypatch, volume)
    formatted_at(volume)
    [note] = notes(tmp_path)
    note.unlink()
    match kind:
        case "bytes":
            note.write_bytes(b"\xff\xfe\n")
        case "fifo":
            os.mkfifo(note)
        case "link" | "dangling":
            note.symlink_to(victim)
        case _:
            note.mkdir()
    if kind == "link":
        victim.write_text("secret")

    DataDir.open(volume, "n1", OPTIONS).close()

    assert [path.read_text() for path in tmp_path.glob("victim")] == (["secret"] if kind == "link" else [])
    unmounted(monkeypatch, volume)
    with pytest.raises(DataDirRefused, match="its volume is not mounted"):
        DataDir.open(volume, "n1", OPTIONS)


def test_the_note_of_a_directory_that_is_gone_from_its_volume_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "d"
    other = tmp_path / "d2"
    mounted(monkeypatch, volume, other)
    for path in (volume / "n1", volume / "n2", other / "n1"):
        formatted_at(path)
    of_n1, of_n2, of_other = notes(tmp_path)
    (tmp_path / f"{of_n2.name}%00").touch()  # No path has a zero byte.
    shutil.rmtree(volume / "n1")
    unmounted(monkeypatch, other)
    mounted(monkeypatch, volume)

    formatted_at(volume / "n3")

    assert of_n1 not in notes(tmp_path)
    assert {of_n2, of_other} < set(notes(tmp_path))
    assert len(notes(tmp_path)) == 3


def test_a_restore_is_refused_without_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = tmp_path / "d"
    mounted(monkeypatch, volume)
    formatted_at(volume)
    unmounted(monkeypatch, volume)

    with pytest.raises(typer.Exit), locked(volume, create=True):
        pass

    assert f"its volume is not mounted at {volume}" in capsys.readouterr().err
    assert list(volume.iterdir()) == []
