"""`quire append`, `tail`, `status --watch` and `load -` against a real cluster."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.cluster.cli.output import Exit
from tests.ports import HOST, free_port
from tests.processes.cluster import QUIRE, Cluster, ending_clusters, environment, run_quire

DOCS = Path(__file__).parents[2] / "docs"
DEADLINE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("cli")) as made:
        yield made.formed()


@pytest.fixture(scope="module")
def log_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("cli-log")) as made:
        yield made.formed(flags=["--machine", "log"])


@contextmanager
def running(cluster: Cluster, *arguments: str) -> Generator[subprocess.Popen[str], None, None]:
    """A command that runs until the test ends it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*QUIRE, *arguments, "--server", cluster.servers],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def highest_index(cluster: Cluster) -> int:
    return int(cluster.leader.get("/index_bounds")["highest_index"])


@pytest.mark.full
def test_append_appends_a_json_value_and_prints_its_index(log_cluster: Cluster) -> None:
    index = highest_index(log_cluster)

    plain = run_quire("append", '{"a": [1, null, "x"]}', "--server", log_cluster.servers)
    as_json = run_quire("append", "-5", "--json", "--server", log_cluster.servers)
    read = run_quire("read", "--from", str(index), "--server", log_cluster.servers)

    assert (plain.code, plain.stdout) == (Exit.DONE, f"{index}\n")
    assert json.loads(as_json.stdout) == {"index": index + 1}
    assert read.stdout == f'{index}\t{{"a":[1,null,"x"]}}\n{index + 1}\t-5\n'


@pytest.mark.full
def test_append_raw_appends_the_bytes_of_a_file_or_of_stdin(log_cluster: Cluster, tmp_path: Path) -> None:
    body, index = bytes(range(256)) * 5000, highest_index(log_cluster)
    (tmp_path / "raw").write_bytes(body)

    ended = run_quire("append", "--raw", str(tmp_path / "raw"), "--server", log_cluster.servers)
    piped = subprocess.run(
        [*QUIRE, "append", "--raw", "-", "--server", log_cluster.servers],
        input=b"\x00\xff",
        capture_output=True,
        env=environment(),
        timeout=DEADLINE_S,
        check=True,
    )

    assert ended.stdout == f"{index}\n"
    assert log_cluster.leader.call("GET", f"/records/{index}").body == body
    assert log_cluster.leader.call("GET", f"/records/{int(piped.stdout)}").body == b"\x00\xff"


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["append"], "either"),
        (["append", "1", "--raw", "x"], "either"),
        (["append", "text"], "quotes"),
        (["append", "1" * 30], "64 bits"),
        (["append", "--raw", "nowhere"], "no such file"),
    ],
)
def test_append_of_an_invalid_value_is_a_usage_error(arguments: list[str], words: str) -> None:
    ended = run_quire(*arguments, "--server", "127.0.0.1:1")

    assert ended.code == Exit.USAGE
    assert words in ended.stderr


@pytest.mark.full
def test_a_record_that_the_machine_refuses_is_not_appended(cluster: Cluster) -> None:
    ended = run_quire("append", '["div", 0]', "--server", cluster.servers)
    read = run_quire("read", "--server", cluster.servers)

    assert ended.code == Exit.FAILED
    assert "DIVISION_BY_ZERO" in ended.stderr
    assert "div" not in read.stdout


@pytest.mark.full
def test_tail_prints_the_given_number_of_records_as_lines_of_json(cluster: Cluster) -> None:
    index = cluster.leader.apply(["add", 1], ["add", 2], ["add", 3])["index"]

    ended = run_quire("tail", "--from", str(index), "--count", "2", "--server", cluster.servers)

    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.code == Exit.DONE
    assert [(line["index"], line["value"]) for line in lines] == [(index, ["add", 1]), (index + 1, ["add", 2])]


def test_tail_prints_new_records_and_ends_cleanly_at_ctrl_c(cluster: Cluster) -> None:
    index = cluster.leader.apply(["add", 1])["index"]
    with running(cluster, "tail", "--from", str(index), "--json") as process:
        assert json.loads(line_of(process))["index"] == index
        cluster.leader.apply(["add", 2])
        assert json.loads(line_of(process))["value"] == ["add", 2]

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, errors) == (Exit.DONE, "")


@pytest.mark.full
def test_tail_ends_quietly_when_its_reader_closes_the_pipe(cluster: Cluster) -> None:
    index = cluster.leader.apply(*[["add", 1]] * 3)["index"]
    with running(cluster, "tail", "--from", str(index)) as process:
        line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        cluster.leader.apply(["add", 1])

        assert process.wait(DEADLINE_S) == Exit.OUTPUT_LOST
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.full
def test_tail_without_a_server_is_unavailable() -> None:
    ended = run_quire("tail", "--server", f"{HOST}:{free_port()}", "--timeout", "0.2")

    assert ended.code == Exit.UNAVAILABLE


@pytest.mark.full
@pytest.mark.parametrize("flags", [["--json"], []])
def test_status_watch_repeats_until_ctrl_c(cluster: Cluster, flags: list[str]) -> None:
    with running(cluster, "status", "--watch", "--interval", "0.1", *flags) as process:
        if flags:
            assert [set(json.loads(line_of(process))) for _ in range(3)] == [{"n1", "n2", "n3"}] * 3
        else:
            shown = 0
            while shown < 3:
                shown += "role" in line_of(process)

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, errors) == (Exit.DONE, "")


@pytest.mark.full
def test_load_reads_commands_from_stdin(cluster: Cluster) -> None:
    ended = subprocess.run(
        [*QUIRE, "load", "-", "--batch", "3", "--json", "--server", cluster.servers],
        input='["add", 1]\n' * 10,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=DEADLINE_S,
        check=True,
    )

    assert json.loads(ended.stdout)["commands"] == 10


@pytest.mark.full
def test_load_from_a_pipe_sends_a_full_batch_at_once_and_ends_at_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    acknowledged = tmp_path / "acknowledged"
    with running(cluster, "load", "-", "--batch", "2", "--json", "--acknowledged", str(acknowledged)) as process:
        assert process.stdin is not None
        process.stdin.write('["add", 1]\n' * 4)
        process.stdin.flush()
        cluster.wait_until(
            "two batches are acknowledged", lambda: acknowledged.exists() and acknowledged.read_text().count("\n") == 2
        )
        process.send_signal(signal.SIGINT)
        code = process.wait(DEADLINE_S)

    assert code == Exit.INTERRUPTED


def test_every_exit_code_is_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "command-line.md").read_text(), re.MULTILINE)

    assert [int(row) for row in rows] == [int(code) for code in Exit]


@pytest.mark.full
def test_completion_is_printed_for_the_calling_shell() -> None:
    asked = f"{shlex.join([*QUIRE, '--show-completion'])}; exit $?"  # One command alone bash would become itself.
    ended = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=DEADLINE_S, env=environment()
    )

    assert "_QUIRE_COMPLETE=complete_bash" in ended.stdout
