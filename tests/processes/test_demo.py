"""`quire demo`: three nodes with one answer, and a clear error if there is none."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.cluster.demo.fault import first_answer
from quire.cluster.demo.writers import Acknowledged
from tests.processes.cluster import QUIRE, environment, run_quire

TIMEOUT_S = 120.0


def node_pids(directory: Path) -> list[int]:
    """The `quire serve` processes whose data is below the directory."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in arguments and any(argument.startswith(os.fsencode(directory)) for argument in arguments):
            found.append(int(process.name))
    return sorted(found)


@contextmanager
def running_demo(directory: Path, *flags: str) -> Generator["subprocess.Popen[str]", None, None]:
    """A demo that stays up after it has suggested what to try next."""
    with subprocess.Popen(
        [*QUIRE, "demo", "--data-dir", str(directory), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"PYTHONUNBUFFERED": "1"}),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """The output up to a line with these words."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"{words!r} never came:\n{''.join(lines)}\n{process.stderr and process.stderr.read()}")


def test_check_exits_after_three_equal_answers_and_leaves_no_process(tmp_path: Path) -> None:
    ended = run_quire("demo", "--check", "--commands", "5000", "--data-dir", str(tmp_path), timeout_s=TIMEOUT_S)

    assert ended.code == 0, ended
    for words in ("n1", "n2", "n3", "leader", "follower", "applied_index", "digest", "shares no code with quire"):
        assert words in ended.stdout
    # Four indices on three nodes: genesis, an epoch_start (more, if a busy machine took more), open_session, commands.
    assert len(re.findall(r" 5,00[3-9]\b", ended.stdout)) >= 12, ended.stdout
    assert node_pids(tmp_path) == []


@pytest.mark.full
def test_a_demo_on_an_earlier_directory_continues_from_its_state(tmp_path: Path) -> None:
    answers: list[str] = []
    for _ in range(2):
        ended = run_quire(
            *("demo", "--check", "--json", "--commands", "2000", "--data-dir", str(tmp_path)), timeout_s=TIMEOUT_S
        )
        assert ended.code == 0, ended
        document = json.loads(ended.stdout)
        assert document["equal"]
        assert len({row["status"]["digest"] for row in document["rows"].values()}) == 1
        answers.append(document["expected"])

    assert answers[0] != answers[1]


@pytest.mark.full
def test_without_check_the_demo_suggests_commands_and_runs_until_ctrl_c(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--commands", "1000") as process:
        shown = read_until(process, "quire read")
        assert len(node_pids(tmp_path)) == 3
        [server] = re.findall(r"export QUIRE_SERVER=(\S+)", shown)

        assert run_quire("apply", "add", "3", extra={"QUIRE_SERVER": server}).code == 0

        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert node_pids(tmp_path) == []
    for node_id in ("n1", "n2", "n3"):
        assert "Traceback" not in (tmp_path / f"{node_id}.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("node_id", ["n3"])
def test_a_node_that_exits_is_named_with_the_last_lines_of_its_output(tmp_path: Path, node_id: str) -> None:
    with running_demo(tmp_path, "--commands", "1000") as process:
        read_until(process, "quire read")
        [pid] = [
            pid
            for pid in node_pids(tmp_path)
            if os.fsencode(tmp_path / node_id) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
        os.kill(pid, signal.SIGKILL)

        _, errors = process.communicate(timeout=TIMEOUT_S)

        assert process.returncode == 1
        assert f"node {node_id} ended with code -9" in errors
        assert f"{node_id}.log" in errors
        assert "listens on" in errors
        assert node_pids(tmp_path) == []


@pytest.mark.full
def test_a_node_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "n2").write_text("a file, where a directory must be")

    ended = run_quire("demo", "--check", "--data-dir", str(tmp_path), timeout_s=TIMEOUT_S)

    assert ended.code == 1
    assert "node n2 ended with code 1" in ended.stderr
    assert f"{tmp_path / 'n2'} cannot be used" in ended.stderr
    assert node_pids(tmp_path) == []


@pytest.mark.soak
def test_a_killed_leader_is_followed_by_another_and_nothing_acknowledged_is_lost() -> None:
    ended = run_quire("demo", "kill", "leader", "--json", timeout_s=TIMEOUT_S)

    assert ended.code == 0, ended
    document = json.loads(ended.stdout)
    killed, elected = document["killed"], document["elected"]
    assert elected["node_id"] != killed["node_id"]
    assert elected["epoch"] > killed["epoch"]
    assert 0 < document["seconds"] < TIMEOUT_S
    assert (document["lost"], document["state_off_by"], document["differences"]) == (0, 0, [])
    assert document["acknowledged"] >= 4_000
    assert "acknowledged commands lost: 0 (of" in ended.stderr
    assert {row["status"]["role"] for row in document["nodes"].values()} == {"leader", "follower"}


@pytest.mark.full
@pytest.mark.parametrize("fault", ["diverge"])
def test_a_node_that_was_behind_catches_up_and_the_demo_reports_what_it_lacked(fault: str) -> None:
    ended = run_quire("demo", fault, "--json", timeout_s=TIMEOUT_S)

    assert ended.code == 0, ended
    document = json.loads(ended.stdout)
    assert document["lesson"] == fault
    assert document["differences"] == []
    assert document["acknowledged"] >= 3_000
    assert document["most"]["seconds"] > 1
    assert (document["most"]["records"] > 0) or fault == "diverge", "only the leader that was cut off knows what it has"
    assert document["received_bytes"] > 0
    assert (document["truncated"] >= 20) == (fault == "diverge"), "20 commands reached the leader that was cut off"
    assert 0 < document["match_index"] < min(row["status"]["highest_index"] for row in document["nodes"].values())
    assert len({row["status"]["digest"] for row in document["nodes"].values()}) == 1
    assert "acknowledged commands lost: 0 (of" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.full
def test_logs_expire_by_their_own_limits_and_a_stale_node_receives_a_snapshot() -> None:
    ended = run_quire("demo", "expire", "--json", timeout_s=TIMEOUT_S)

    assert ended.code == 0, ended
    document = json.loads(ended.stdout)
    assert document["differences"] == []
    assert min(document["expired_segments"].values()) > 0
    assert len(set(document["retention_kib"].values())) == 3
    assert 0 < document["left_at"] < document["logs_began_at"] <= document["snapshot_index"]
    assert re.fullmatch(r"index 0 has expired; the lowest index on this node is \d+", document["reader"])
    assert len({row["status"]["digest"] for row in document["nodes"].values()}) == 1
    for words in (
        "KiB and has deleted ",
        "nothing is kept for it",
        "received the snapshot at",
        "acknowledged commands lost: 0 (of",
    ):
        assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.full
def test_a_first_answer_that_repeats_an_earlier_one_has_no_index_to_show() -> None:
    first = Acknowledged(0.0, 1_234, 2, [["add", 1]])

    assert first_answer(first) == "its first acknowledged record is at 1,234"
    assert "sent again" in first_answer(first._replace(index=None))


@pytest.mark.full
def test_kill_requires_the_word_leader() -> None:
    assert run_quire("demo", "kill").code == 2
    assert run_quire("demo", "kill", "n1").code == 2
