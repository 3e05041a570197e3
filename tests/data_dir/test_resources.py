"""A start to which the system refuses something ends with a sentence; the next one finds all that was acknowledged."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.serve.node_service import _NodeService  # pyright: ignore[reportPrivateUsage]
from quire.cluster.serve.process import CannotStart, _started  # pyright: ignore[reportPrivateUsage]
from quire.log import FileDirectory

from .history import LIVES, NODE, Life, Tree, history, started
from .system_calls import CALLS_THAT_FAIL, SystemCalls
from .verdict import SENTENCES, Kind, verdict
from .voters import OPTIONS

STOPPED, KILLED = LIVES[0], LIVES[2]


def once(number: int) -> Callable[[int], bool]:
    """The call of this number."""
    return lambda made: made == number


def from_then_on(number: int) -> Callable[[int], bool]:
    """The call of this number, and all later ones."""
    return lambda made: made >= number


EACH = [
    pytest.param(life, error, failing, id=f"{life}-{errno.errorcode[error]}-{failing.__name__}", marks=marks)
    for life in (STOPPED, KILLED)
    for error in sorted(CALLS_THAT_FAIL)
    for failing in (once, from_then_on)
    for marks in [[] if (life, error, failing) == (KILLED, errno.EMFILE, once) else [pytest.mark.full]]
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> SystemCalls:
    """The system calls of directories and files."""
    calls = SystemCalls()
    monkeypatch.setattr("quire.log.files.os", calls)
    return calls


def put(tree: Tree, path: Path) -> None:
    """Make a directory with these files."""
    shutil.rmtree(path, ignore_errors=True)
    for name, data in tree.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def start(path: Path, genesis: bytes) -> None:
    """Start n2 and stop it."""
    data_dir = DataDir.open(path, NODE, OPTIONS)
    try:
        if data_dir.identity is None:
            data_dir.format(NODE, genesis)
        started(data_dir)
    finally:
        data_dir.close()


def try_to_start(calls: SystemCalls, path: Path, genesis: bytes, error: int, failing: Callable[[int], bool]) -> None:
    """Start n2 while calls fail. Whatever else than a sentence ends that process, ends the test."""
    calls.fail(error, failing)
    said = "it started"
    try:
        start(path, genesis)
    except SENTENCES as refused:
        said = str(refused)
    finally:
        calls.end_process()
    assert said
    assert "\n" not in said


@pytest.mark.parametrize(("life", "error", "failing"), EACH)
def test_a_start_that_fails_at_any_call_says_why_and_the_next_finds_all(
    life: Life, error: int, failing: Callable[[int], Callable[[int], bool]], calls: SystemCalls, tmp_path: Path
) -> None:
    lived, path = history(life), tmp_path / NODE
    number, hit = 1, True
    while hit:
        put(lived.now, path)
        try_to_start(calls, path, lived.now["genesis"], error, failing(number))
        hit = calls.made >= number
        result = verdict(FileDirectory(path), lived)
        assert result.kind is Kind.WHOLE, f"call {number}: {result}"
        aside = [each.name for each in path.glob("quarantine/*")]
        assert not aside or (error == errno.EIO and aside[0].startswith("snapshot-")), f"call {number}: {aside}"
        number += 1
    assert number > 5


@pytest.mark.full
@pytest.mark.parametrize("failing", [once, from_then_on])
@pytest.mark.parametrize("error", sorted(CALLS_THAT_FAIL), ids=errno.errorcode.get)
def test_a_first_start_that_fails_at_any_call_says_why_and_the_next_one_is_whole(
    error: int, failing: Callable[[int], Callable[[int], bool]], calls: SystemCalls, tmp_path: Path
) -> None:
    genesis = history(STOPPED).now["genesis"]
    number, hit = 1, True
    while hit:
        path = tmp_path / str(number)
        try_to_start(calls, path, genesis, error, failing(number))
        hit = calls.made >= number
        start(path, genesis)
        data_dir = DataDir.open(path, NODE, OPTIONS)
        assert data_dir.identity is not None
        assert data_dir.log is not None
        assert data_dir.genesis_frame() == genesis
        assert data_dir.log.read_frames(0, 1)[0] == genesis
        data_dir.close()
        shutil.rmtree(path)
        number += 1
    assert number > 5


@pytest.mark.parametrize("error", sorted(CALLS_THAT_FAIL), ids=errno.errorcode.get)
async def test_a_process_that_the_system_refuses_its_directory_cannot_start_and_says_one_sentence(
    error: int, calls: SystemCalls, tmp_path: Path
) -> None:
    path = tmp_path / NODE
    put(history(KILLED).now, path)
    members = {name: f"127.0.0.1:{port}" for port, name in enumerate(("n1", NODE, "n3"), start=1)}
    config = ServeConfig(node=NODE, listen=members[NODE], members=members, data_dir=path)

    calls.fail(error, from_then_on(1))
    with pytest.raises(CannotStart) as refused:
        await _started(lambda: _NodeService(config, lambda: 0), path, 4096)
    calls.end_process()

    assert "cannot" in str(refused.value)
    assert "\n" not in str(refused.value)
