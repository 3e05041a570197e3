"""The commands of `quire` against a real cluster: their output and exit codes."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from quire import __version__ as version
from quire.cluster.cli.calls.reading import cells_of
from quire.cluster.cli.connection import servers_of
from quire.cluster.client.records.pages import Record
from tests.ports import HOST, free_port
from tests.processes.cluster import QUIRE, Cluster, Clusters, Ended, ending_clusters, environment, run_quire

DONE, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("cli")) as made:
        yield made.formed()


def quire(cluster: Cluster, *arguments: str, at: str = "n2") -> Ended:
    return run_quire(*arguments, extra={"QUIRE_SERVER": cluster[at].address})


def reset(cluster: Cluster) -> None:
    """Set the machine's value to 42."""
    cluster.leader.apply(["sub", cluster.leader.get("/state")["state"]], ["add", 42])


def check_one_sentence(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended
    [line] = ended.stderr.splitlines()
    assert line.startswith("quire: ")
    for word in words:
        assert word in line


def test_apply_prints_the_result(cluster: Cluster) -> None:
    reset(cluster)

    assert quire(cluster, "apply", "add", "3") == (DONE, "45\n", "")
    assert quire(cluster, "apply", "sub", "-5") == (DONE, "50\n", "")
    assert quire(cluster, "apply", "div", '"2.0"', "--json") == (DONE, '{"result": "25"}\n', "")


@pytest.mark.full
def test_a_server_may_be_named_by_flag(cluster: Cluster) -> None:
    reset(cluster)

    assert run_quire("apply", "add", "3", "--server", cluster.servers).stdout == "45\n"


def test_a_refused_command_is_one_sentence_and_exit_1(cluster: Cluster) -> None:
    reset(cluster)

    check_one_sentence(quire(cluster, "apply", "div", "0"), FAILED, "DIVISION_BY_ZERO")
    check_one_sentence(quire(cluster, "apply", "pow", "2"), FAILED, "OPERATION_UNKNOWN")
    check_one_sentence(quire(cluster, "apply", "mul", "9e6144"), FAILED, "OVERFLOW")
    assert quire(cluster, "state").stdout.splitlines()[0] == "42"


@pytest.mark.full
def test_no_server_is_a_usage_error_and_an_unreachable_one_is_unavailable() -> None:
    check_one_sentence(run_quire("apply", "add", "3"), USAGE, "--server", "QUIRE_SERVER")
    nobody = f"{HOST}:{free_port()}"
    ended = run_quire("apply", "add", "3", "--server", nobody, "--timeout", "0.2")
    check_one_sentence(ended, UNAVAILABLE, nobody, "refuses connections", "quire status")


@pytest.mark.full
@pytest.mark.parametrize("named", ["n1", "localhost", "127.0.0.1:7001,n2", "n1:", "n1:65536", "http://n1:7001"])
def test_a_server_without_a_port_is_a_usage_error_at_once(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        servers_of(named)

    said = capsys.readouterr()
    check_one_sentence(Ended(ended.value.exit_code, said.out, said.err), USAGE, "--server", "is not HOST:PORT")


def test_spaces_and_empty_items_in_the_list_of_servers_are_ignored() -> None:
    assert servers_of(" 127.0.0.1:7001, [::1]:65535,,n3.example:1 ") == "127.0.0.1:7001,[::1]:65535,n3.example:1"


@pytest.mark.full
def test_state_prints_the_state_the_applied_index_and_the_digest(cluster: Cluster) -> None:
    reset(cluster)
    status = cluster.wait_for_equal()["n1"]

    lines = quire(cluster, "state").stdout.splitlines()
    local = json.loads(quire(cluster, "state", "--consistency", "local", "--json").stdout)

    assert lines == ["42", f"applied_index {status['applied_index']}", f"digest {status['digest']}"]
    assert local == {"state": "42", "applied_index": status["applied_index"], "digest": status["digest"]}


@pytest.mark.full
def test_read_prints_a_record_or_a_range(cluster: Cluster) -> None:
    index = cluster.leader.apply(["add", 1], ["add", "2"])["index"]

    one = quire(cluster, "read", str(index))
    several = quire(cluster, "read", "--from", str(index), "--to", str(index + 2))
    as_json = quire(cluster, "read", "--from", str(index), "--to", str(index + 1), "--json")

    assert one == (DONE, '["add",1]\n', "")
    assert several == (DONE, f'{index}\t["add",1]\n{index + 1}\t["add","2"]\n', "")
    assert json.loads(as_json.stdout)["value"] == ["add", 1]


def test_a_record_of_a_range_that_its_session_answered_is_marked() -> None:
    record = Record(7, 1, 1, "records", 5, 2, executed=True, headers={}, value=["add", 1])

    assert cells_of(record) == cells_of(replace(record, executed=None)) == ["7", '["add",1]']
    assert cells_of(replace(record, executed=False)) == ["7", '["add",1]', "not executed"]


@pytest.mark.full
def test_a_missing_record_is_one_sentence_and_exit_1(cluster: Cluster) -> None:
    check_one_sentence(quire(cluster, "read", "99999999"), FAILED, "99999999")


@pytest.mark.full
def test_status_shows_every_node_whichever_is_asked(cluster: Cluster) -> None:
    cluster.wait_for_equal()

    table = quire(cluster, "status", at="n3").stdout
    rows = json.loads(quire(cluster, "status", "--json", at="n3").stdout)

    assert all(node.address in table for node in cluster)
    assert {node_id: row["status"]["role"] for node_id, row in rows.items()} == {
        "n1": "leader",
        "n2": "follower",
        "n3": "follower",
    }
    assert {row["answer"] for row in rows.values()} == {None}  # A state may be large.
    assert "answer" not in table
    rows = json.loads(quire(cluster, "status", "--state", "--json", at="n3").stdout)
    assert {row["answer"] for row in rows.values()} == {cluster["n1"].local_state()["state"]}


@pytest.mark.full
def test_load_sends_a_file_in_order_and_records_what_is_acknowledged(cluster: Cluster, tmp_path: Path) -> None:
    reset(cluster)
    file, acknowledged = tmp_path / "commands.ndjson", tmp_path / "acknowledged.ndjson"
    commands = [["add", number] for number in range(1, 1001)]
    file.write_text("".join(json.dumps(command) + "\n" for command in commands))

    ended = quire(cluster, "load", str(file), "--batch", "64", "--json", "--acknowledged", str(acknowledged))

    assert ended.code == DONE, ended
    summary = json.loads(ended.stdout)
    assert (summary["commands"], summary["refused"], summary["answer"]) == (1000, 0, str(42 + 500_500))
    ranges = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    assert [(row["from_line"], row["to_line"]) for row in ranges] == [
        (first, min(first + 64, 1001)) for first in range(1, 1001, 64)
    ]
    first = ranges[0]["index"]
    assert all(row["index"] == first + row["from_line"] - 1 for row in ranges)
    assert summary["applied_index"] == first + 1000
    read = quire(cluster, "read", "--from", str(first), "--to", str(first + 1000))
    assert [json.loads(line.split("\t")[1]) for line in read.stdout.splitlines()] == commands


@pytest.mark.full
@pytest.mark.parametrize(
    ("bad", "words"),
    [('["div", 0]', "DIVISION_BY_ZERO"), ('["add", 3', "not JSON"), ("", "empty"), ("[1,2] [3]", "not JSON")],
)
def test_load_stops_at_an_invalid_line_and_names_the_acknowledged_ones(
    cluster: Cluster, tmp_path: Path, bad: str, words: str
) -> None:
    reset(cluster)
    file = tmp_path / "commands.ndjson"
    file.write_text('["add", 1]\n' * 27 + bad + "\n" + '["add", 1]\n' * 20)

    ended = quire(cluster, "load", str(file), "--batch", "10", "--json")

    assert ended.code == FAILED
    [sentence] = ended.stderr.splitlines()
    assert "line 28" in sentence
    assert words in sentence
    assert "lines 1 to 20 are acknowledged" in sentence
    assert (json.loads(ended.stdout)["commands"], json.loads(ended.stdout)["answer"]) == (20, "62")
    assert cluster.leader.get("/state")["state"] == "62"


@pytest.mark.full
def test_load_counts_commands_that_apply_refuses_and_continues(cluster: Cluster, tmp_path: Path) -> None:
    reset(cluster)
    file = tmp_path / "commands.ndjson"
    file.write_text('["add", 1]\n["mul", "9e6144"]\n["add", 1]\n')

    ended = quire(cluster, "load", str(file), "--batch", "1", "--json")

    assert ended.code == FAILED
    assert "1 of 3 commands were refused" in ended.stderr
    assert "the other 2 were applied; the first refused is line 2, OVERFLOW" in ended.stderr
    assert json.loads(ended.stdout)["answer"] == "44"


@pytest.mark.full
def test_an_interrupted_load_names_the_acknowledged_lines(cluster: Cluster, tmp_path: Path) -> None:
    file, acknowledged = tmp_path / "commands.ndjson", tmp_path / "acknowledged.ndjson"
    file.write_text('["add", 1]\n' * 300_000)
    command = [*QUIRE, "load", str(file), "--batch", "10", "--json", "--acknowledged", str(acknowledged)]
    with subprocess.Popen(
        [*command, "--server", cluster.servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        cluster.wait_until("a batch is acknowledged", lambda: acknowledged.exists() and acknowledged.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)

    [*_, last] = map(json.loads, acknowledged.read_text().splitlines())
    done = last["to_line"] - 1
    assert process.returncode == INTERRUPTED
    assert errors.startswith(f"quire: interrupted; lines 1 to {done} are acknowledged, lines {done + 1} to ")
    assert json.loads(output)["commands"] == done


@pytest.mark.full
def test_load_of_an_empty_file_loads_nothing(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "empty.ndjson"
    file.touch()

    ended = quire(cluster, "load", str(file), "--json")

    assert (ended.code, json.loads(ended.stdout)["commands"]) == (DONE, 0)


@pytest.mark.full
def test_load_of_a_missing_file_is_a_usage_error(cluster: Cluster) -> None:
    check_one_sentence(quire(cluster, "load", "nowhere.ndjson"), USAGE, "nowhere.ndjson", "no such file")


@pytest.mark.full
def test_an_unknown_command_is_a_usage_error() -> None:
    assert run_quire("aply", "add", "3").code == USAGE


@pytest.mark.full
def test_help_lists_every_command() -> None:
    shown = run_quire("--help").stdout

    for command in ("serve", "demo", "apply", "append", "load", "read", "tail", "state", "status"):
        assert f"  {command} " in shown


@pytest.mark.full
def test_the_version_is_printed_without_a_cluster() -> None:
    assert run_quire("--version") == (DONE, f"quire {version}\n", "")


@pytest.mark.full
def test_a_session_is_opened_shown_and_closed_by_name_and_by_id(cluster: Cluster) -> None:
    opened = json.loads(quire(cluster, "session", "open", "billing", "--json").stdout)
    number = str(opened["session"])

    assert (opened["name"], opened["sequence"]) == ("billing", 0)
    assert quire(cluster, "session", "show", number) == (DONE, f"session {number} name billing sequence 0\n", "")
    again = json.loads(quire(cluster, "session", "open", "billing", "--json").stdout)["session"]
    check_one_sentence(quire(cluster, "session", "show", number), FAILED, "not open", "fenced")
    closed = json.loads(quire(cluster, "session", "close", "--name", "billing", "--json").stdout)
    assert closed["session"] == again
    check_one_sentence(quire(cluster, "session", "close", "--name", "billing"), FAILED, "billing", "session list")
    other = json.loads(quire(cluster, "session", "open", "other", "--json").stdout)["session"]
    assert quire(cluster, "session", "close", str(other)) == (DONE, f"session {other} (other) is closed\n", "")
    check_one_sentence(quire(cluster, "session", "close", str(other)), FAILED, "session")
    check_one_sentence(quire(cluster, "session", "close"), USAGE, "--name")


@pytest.mark.full
def test_sessions_are_listed_and_closed_by_prefix_and_a_load_closes_its_own(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "one.ndjson"
    file.write_text('["add", 1]\n')
    assert quire(cluster, "load", "--session", "kept one", str(file)).code == DONE
    assert quire(cluster, "load", "--session", "kept two", "--close-session", str(file)).code == DONE
    check_one_sentence(quire(cluster, "load", "--close-session", str(file)), USAGE, "--session")
    rows = [
        json.loads(line) for line in quire(cluster, "session", "list", "--prefix", "kept", "--json").stdout.splitlines()
    ]
    assert [(row["name"], row["sequence"]) for row in rows] == [("kept one", 1)]
    assert quire(cluster, "session", "list", "--prefix", "kept", "--idle", "3600").stdout == ""
    assert quire(cluster, "session", "close", "--prefix", "kept", "--idle", "3600").stdout == "0 sessions are closed\n"
    assert quire(cluster, "session", "close", "--prefix", "kept").stdout == "1 session is closed\n"
    assert quire(cluster, "session", "list", "--prefix", "kept").stdout == ""


# Snapshots and expiry


@pytest.mark.full
def test_snapshot_and_expire_ask_every_node_or_the_named_one(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--retention-bytes=1"])
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()

    taken = run_quire("snapshot", "--json", "--server", cluster.servers)
    assert taken.code == 0, taken
    rows = json.loads(taken.stdout)
    assert sorted(rows) == ["n1", "n2", "n3"]
    assert len({row["document"]["sha256"] for row in rows.values()}) == 1

    held = run_quire("expire", "--dry-run", "--json", "--node", "n2", "--server", cluster.servers)
    assert held.code == 0, held
    [(node_id, row)] = json.loads(held.stdout).items()
    assert node_id == "n2"
    assert "1 of 2 snapshots are there" in row["document"]["held_by"]

    again = run_quire("snapshot", "--server", cluster.servers)
    index, digest = rows["n1"]["document"]["index"], rows["n1"]["document"]["sha256"][:8]
    has = f"has a snapshot at {index:,} already, of all that it has applied"
    size = f"{rows['n1']['document']['bytes']} bytes"
    assert again == (0, "".join(f"{node.node_id} {has} ({size}, sha256 {digest})\n" for node in cluster), "")
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()
    other = run_quire("snapshot", "--node", "n3", "--server", cluster.servers)
    assert re.fullmatch(
        rf"n3 took a snapshot at {index + 1:,} \(\d+ bytes, sha256 [0-9a-f]{{8}}, \d+\.\d s\)\n", other.stdout
    )

    nothing = run_quire("expire", "--server", cluster.servers)
    why = f"all is in the segment that is written ({cluster.leader.status()['log_bytes']:,} bytes of 1 byte)"
    assert nothing == (0, "".join(f"{node.node_id} removed nothing: {why}\n" for node in cluster), "")

    shown = run_quire("status", "--server", cluster.servers)
    assert rows["n1"]["document"]["sha256"][:8] in shown.stdout

    unknown = run_quire("expire", "--node", "n9", "--server", cluster.servers)
    assert (unknown.code, unknown.stdout) == (1, "")
    assert "n9 is not one of the members (n1, n2, n3)" in unknown.stderr
