"""Commands whose stdout and stderr nobody reads: what works goes on, no record is dropped, and SIGTERM ends all."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quire.cluster.backup.contents import read_all
from quire.cluster.backup.manifest import BackupRefused
from quire.cluster.backup.object_store import open_store
from quire.cluster.cli.output import Exit
from tests.processes.cluster import DEADLINE_S, QUIRE, Cluster, ending_clusters, environment, run_quire
from tests.processes.test_demo import node_pids
from tests.processes.unread import full_pipe, stopped_terminal

pytestmark = [pytest.mark.full]

COUNT = 40
WRITE_CALLS = {"1", "64"}
"""The number of the system call, on x86-64 and on arm64."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("unread")) as made:
        yield made.formed()


@pytest.fixture(params=[full_pipe, stopped_terminal], ids=lambda made: made.__name__)
def unread(request: pytest.FixtureRequest) -> Iterator[int]:
    """What takes no more output."""
    with request.param() as descriptor:
        yield descriptor


@contextmanager
def running(*arguments: str, out: int, err: int | None = None) -> Generator[subprocess.Popen[bytes]]:
    """A command with this stdout, which is its stderr as well unless `err` is given."""
    error = out if err is None else err
    with subprocess.Popen([*QUIRE, *arguments], stdout=out, stderr=error, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def is_blocked(process: subprocess.Popen[bytes]) -> bool:
    """Whether a thread of it is in a write to stdout or stderr."""
    for path in Path(f"/proc/{process.pid}/task").glob("*/syscall"):
        with suppress(OSError):  # The thread has ended.
            match path.read_text().split():
                case [number, "0x1" | "0x2", *_] if number in WRITE_CALLS:
                    return True
                case _:
                    pass
    return False


def terminated(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(DEADLINE_S)


def new_records(cluster: Cluster, count: int) -> tuple[int, int]:
    """Append so many records; their first index, and the one after their last."""
    first = int(cluster.leader.apply(*[["add", 1]] * count)["index"])
    return first, first + count


def position(cluster: Cluster, name: str) -> int:
    shown = run_quire("cursor", "show", name, "--json", "--server", cluster.servers)
    return int(json.loads(shown.stdout)["index"]) if shown.code == Exit.DONE else 0


def indices(printed: bytes) -> list[int]:
    """Of the whole lines."""
    return [json.loads(line)["index"] for line in printed.splitlines(keepends=True) if line.endswith(b"\n")]


def covers(place: Path, index: int) -> Callable[[], bool]:
    def is_there() -> bool:
        try:
            return read_all(open_store(str(place), {}), print)[-1].end.index >= index
        except BackupRefused:
            return False

    return is_there


def test_a_backup_goes_on_though_nobody_reads_its_output_and_ends_by_sigterm(
    cluster: Cluster, tmp_path: Path, unread: int
) -> None:
    place = tmp_path / "backup"
    with running("backup", str(place), "--every", "1", "--server", cluster.servers, out=unread) as process:
        for _ in range(2):
            _, end = new_records(cluster, 1)
            cluster.wait_until("the backup has it", covers(place, end))

        assert terminated(process) == Exit.DONE


def test_a_consumer_s_handlers_get_all_records_though_nobody_reads_what_they_say(
    cluster: Cluster, tmp_path: Path, unread: int
) -> None:
    first, end = new_records(cluster, COUNT)
    name, out = f"handles-{first}", tmp_path / "out"
    handler = shlex.join(["sh", "-c", f'read -r line; echo "$line" >>{shlex.quote(str(out))}; echo said >&2'])
    arguments = ["consume", name, "--exec", handler, "--start", str(first), "--server", cluster.servers]
    with running(*arguments, out=unread) as process:
        cluster.wait_until("all are handled", lambda: out.exists() and len(indices(out.read_bytes())) == COUNT)
        assert set(indices(out.read_bytes())) == set(range(first, end))
        cluster.wait_until("it is committed", lambda: position(cluster, name) >= end)

        assert terminated(process) == Exit.DONE


def test_a_consumer_that_prints_ends_by_sigterm_though_nobody_reads_and_commits_nothing(
    cluster: Cluster, unread: int
) -> None:
    first, _ = new_records(cluster, COUNT)
    name = f"prints-{first}"
    with running("consume", name, "--start", str(first), "--server", cluster.servers, out=unread) as process:
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))

        assert terminated(process) == Exit.DONE

    assert position(cluster, name) == first


def test_what_a_consumer_committed_was_read_whole_and_the_rest_comes_again(cluster: Cluster) -> None:
    first, end = new_records(cluster, 4_000)  # Several times what a pipe holds.
    arguments = ["consume", "partly", "--start", str(first), "--server", cluster.servers]
    reading, writing = os.pipe()
    with running(*arguments, out=writing, err=subprocess.DEVNULL) as process, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        printed = pipe.read(100_000)
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))
        code = terminated(process)
        printed += pipe.read()

    assert code == Exit.DONE
    committed = position(cluster, "partly")
    assert indices(printed)[: committed - first] == list(range(first, committed))
    again = run_quire(*arguments, "--until", str(end))
    assert indices(again.stdout.encode()) == list(range(committed, end))


def test_a_tail_drops_no_record_that_is_read_late_and_ends_by_sigterm(cluster: Cluster) -> None:
    first, end = new_records(cluster, 4_000)
    arguments = ["tail", "--from", str(first), "--server", cluster.servers]
    reading, writing = os.pipe()
    with running(*arguments, "--count", "4000", out=writing) as process, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))
        assert indices(pipe.read()) == list(range(first, end))
        assert process.wait(DEADLINE_S) == Exit.DONE
    with full_pipe() as full, running(*arguments, out=full) as process:
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))
        assert terminated(process) == -signal.SIGTERM


@pytest.mark.parametrize("command", ["tail --from 0", "consume interrupted"])
def test_one_ctrl_c_ends_what_prints_records_though_nobody_reads(cluster: Cluster, unread: int, command: str) -> None:
    with running(*command.split(), "--server", cluster.servers, out=unread) as process:
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == Exit.DONE


def test_one_ctrl_c_ends_a_watch_of_the_status_though_nobody_reads(cluster: Cluster) -> None:
    watch = ["status", "--watch", "--interval", "0.1", "--server", cluster.servers]
    with full_pipe() as full, running(*watch, out=full) as process:
        cluster.wait_until("it waits for a reader", lambda: is_blocked(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == Exit.DONE


@pytest.mark.parametrize("command", ["consume nowhere --start 0", "tail --from 0"])
def test_records_for_a_closed_stdout_are_lost_output_and_not_committed(cluster: Cluster, command: str) -> None:
    new_records(cluster, 1)
    line = f"{shlex.join(QUIRE)} {command} --server {cluster.servers} >&-"
    ended = subprocess.run(["bash", "-c", line], env=environment(), timeout=DEADLINE_S, check=False)

    assert ended.returncode == Exit.OUTPUT_LOST
    assert position(cluster, "nowhere") == 0


def test_a_demo_ends_with_its_nodes_by_sigterm_though_nobody_reads(
    cluster: Cluster, tmp_path: Path, unread: int
) -> None:
    try:
        with running("demo", "--commands", "1000", "--data-dir", str(tmp_path), out=unread) as process:
            cluster.wait_until("its nodes run", lambda: len(node_pids(tmp_path)) == 3)

            assert terminated(process) == Exit.INTERRUPTED

        assert node_pids(tmp_path) == []
    finally:
        for pid in node_pids(tmp_path):
            os.kill(pid, signal.SIGKILL)
