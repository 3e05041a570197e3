"""What `quire.log` creates on a file system: its modes, which no umask changes; and what it opens as a file."""

import errno
import os
import socket
import stat
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from quire.log import DiskFull, FileDirectory, FileFailed, Log, LogReadOnly, NotRegularFile, open_regular
from quire.log.files import FILE_MODE, FOLDER_MODE, make_folder, open_file
from tests.hostile import in_time
from tests.log.histories import CLUSTER_ID, SMALL, Clock


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277])
def _umask(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[None]:
    assert tmp_path.is_dir()  # Made before the umask changes.
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_umask")
def test_new_folders_and_files_have_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path / "a" / "b")
    directory.lock()
    directory.create("x").close()
    directory.child("c").create("y").close()
    directory.unlock()
    with open(tmp_path / "a" / "z", "ab", opener=open_file) as file:
        file.write(b"z")

    top = tmp_path / "a"
    assert {mode_of(path) for path in (top, *top.rglob("*")) if path.is_dir()} == {FOLDER_MODE} == {0o750}
    assert {mode_of(path) for path in top.rglob("*") if path.is_file()} == {FILE_MODE} == {0o640}
    assert len(list(top.rglob("*"))) == 6


@pytest.mark.usefixtures("_umask")
def test_what_is_there_keeps_its_mode_and_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "x").write_bytes(b"x")
    (folder / "x").chmod(0o666)

    FileDirectory(folder).open("x").close()
    with open(folder / "x", "ab", opener=open_file) as file:
        file.write(b"y")

    assert (mode_of(folder), mode_of(folder / "x")) == (0o777, 0o666)
    assert (folder / "x").read_bytes() == b"xy"
    with pytest.raises(FileExistsError):
        open_file(folder / "x", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert (folder / "x").read_bytes() == b"xy"


def test_a_new_folder_keeps_the_group_of_the_one_above_if_that_hands_it_down(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    assert tmp_path.stat().st_mode & stat.S_ISGID

    make_folder(tmp_path / "a" / "b")

    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o2750


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")

    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case _:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
    with in_time(kind), pytest.raises(NotRegularFile):
        open_regular(str(path))


def test_a_link_is_followed_unless_none_is_to_be(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    with pytest.raises(FileNotFoundError):
        open_regular(str(link))
    file.touch()
    os.close(open_regular(str(link)))
    with pytest.raises(NotRegularFile):
        open_regular(str(link), os.O_RDONLY | os.O_NOFOLLOW)


@pytest.mark.parametrize(
    ("error", "remedy"), [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EIO, "check the device")]
)
def test_a_sync_that_fails_ends_the_log_with_the_file_the_cause_and_what_to_do(
    error: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS 3 and FUSE with write-back find a full disk here, when the writes have succeeded."""

    def failing(_: int) -> None:
        raise OSError(error, os.strerror(error))

    log = Log.open(FileDirectory(tmp_path), SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    log.append(["a"])
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(LogReadOnly, match=f"fdatasync of .*store: {os.strerror(error).lower()}.*{remedy}.*start again"):
        log.flush()
    with pytest.raises(LogReadOnly):
        log.append(["b"])
    log.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_an_error_of_close_after_all_was_synced_is_none_of_the_log(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def failing(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        close(descriptor)
        if is_file and Path(tmp_path, "mark").exists():
            raise OSError(error, os.strerror(error))

    log = Log.open(FileDirectory(tmp_path), SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    for _ in range(40):
        log.append(["x" * 100])
    monkeypatch.setattr(os, "close", failing)
    for _ in range(40):
        log.append(["x" * 100])
    log.close()
    monkeypatch.undo()
    again = Log.open(FileDirectory(tmp_path), SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    assert again.bounds.highest_index == 80
    again.close()


def test_an_allocation_that_fails_leaves_the_file_s_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def partly(descriptor: int, _: int, length: int) -> None:
        os.ftruncate(descriptor, length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = FileDirectory(tmp_path).create("file")
    file.allocate(1000)
    monkeypatch.setattr(os, "posix_fallocate", partly)
    with pytest.raises(DiskFull):
        file.allocate(1 << 20)
    assert file.size == 1000
    file.close()


def test_a_failed_operation_names_itself_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    directory = FileDirectory(tmp_path)
    file = directory.create("f")
    operations: list[tuple[str, str, Callable[[], object]]] = [
        ("pwrite", "write", lambda: file.write_at(0, b"x")),
        ("ftruncate", "truncate", lambda: file.truncate(1)),
        ("posix_fallocate", "fallocate", lambda: file.allocate(1)),
        ("fdatasync", "fdatasync", file.sync),
        ("replace", "rename", lambda: directory.rename("f", "g")),
        ("unlink", "remove", lambda: directory.remove("f")),
    ]
    for call, name, operation in operations:
        with monkeypatch.context() as failing:
            failing.setattr(os, call, fails)
            with pytest.raises(FileFailed, match=f"^{name} of {tmp_path}/f: read-only file system") as failed:
                operation()
        assert failed.value.errno == errno.EROFS
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fails)
        with pytest.raises(FileFailed, match=f"^fsync of {tmp_path}: read-only file system$"):
            directory.sync()
    file.close()


def test_a_folder_that_is_hidden_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a file system had been mounted over it: the folder keeps its name, and the path leads to another."""
    path = tmp_path / "d"
    directory = FileDirectory(path)
    directory.keep()
    path.rename(tmp_path / "below")
    path.mkdir()
    monkeypatch.setattr(os, "readlink", lambda _: str(path))

    assert list(directory.misplaced()) == [
        f"{path} is hidden: a file system was mounted over it, or over a folder above it"
    ]
    directory.release()
