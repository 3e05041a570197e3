"""`quire consume` and `quire cursor` against a real cluster: what is handled, what is committed, and when it ends."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from quire.cluster.cli.output import Exit
from tests.processes.cluster import DEADLINE_S, QUIRE, Cluster, Ended, ending_clusters, environment, run_quire

pytestmark = [pytest.mark.full]

COUNT = 200
# Appends the index of its record to a file.
APPENDS = """
import json, sys
with open(sys.argv[1], "a") as file:
    print(json.loads(sys.stdin.readline())["index"], file=file)
"""
# The same; but the record at one index waits, unless a file is there, until it is ended, which it writes down.
WAITS = """
import json, pathlib, signal, sys
out, waiting, go = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
def note(what):
    with open(out, "a") as file:
        print(what, file=file)
def ended(number, frame):
    note("ended")
    sys.exit(1)
signal.signal(signal.SIGTERM, ended)
index = json.loads(sys.stdin.readline())["index"]
if index == waiting and not go.exists():
    note("waits")
    signal.pause()
note(index)
"""
# Never ends; nor does its child, which ignores SIGTERM. It writes down both process ids.
STAYS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1], "a") as file:
        print(os.getpid(), child, file=file)
    print("still working", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
while True:
    signal.pause()
"""

# Orphans come to it, as they come to process 1 of a container; then it is the program that its arguments name.
SUBREAPER = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("consume")) as made:
        formed = made.formed()
        quire_apply(formed, COUNT)
        yield formed


def quire_apply(cluster: Cluster, count: int) -> list[int]:
    """The indices of so many new records."""
    first = cluster.leader.apply(*[["add", 1]] * count)["index"]
    return list(range(first, first + count))


def quire(cluster: Cluster, *arguments: str) -> Ended:
    return run_quire(*arguments, "--server", cluster.servers)


def consume(cluster: Cluster, name: str, *arguments: str) -> Ended:
    return quire(cluster, "consume", name, *arguments)


def highest_index(cluster: Cluster) -> int:
    return int(cluster.leader.get("/index_bounds")["highest_index"])


def records(cluster: Cluster, from_index: int, to_index: int) -> list[int]:
    """The indices of the records [from_index, to_index), without system records."""
    rows = quire(cluster, "read", "--from", str(from_index), "--to", str(to_index), "--json").stdout.splitlines()
    return [json.loads(row)["index"] for row in rows]


def cursor(cluster: Cluster, name: str) -> dict[str, Any]:
    row = json.loads(quire(cluster, "cursor", "show", name, "--json").stdout)
    assert isinstance(row, dict)
    return row


def python(program: str, *arguments: str | int | Path) -> str:
    """A command that runs a program."""
    return shlex.join([sys.executable, "-c", program, *map(str, arguments)])


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def consuming(cluster: Cluster, name: str, *arguments: str) -> Generator[subprocess.Popen[str], None, None]:
    """A consumer that runs until the test ends it."""
    pipe = subprocess.PIPE
    command = [*QUIRE, "consume", name, *arguments, "--server", cluster.servers]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def test_handlers_in_parallel_get_each_record_and_the_cursor_is_level(cluster: Cluster, tmp_path: Path) -> None:
    out, end = tmp_path / "out", highest_index(cluster)

    ended = consume(cluster, "parallel", "--exec", python(APPENDS, out), "--max-in-flight", "4", "--until", str(end))

    assert (ended.code, ended.stderr) == (Exit.DONE, "")
    assert Counter(map(int, lines_of(out))) == Counter(records(cluster, 0, end))
    assert len(lines_of(out)) >= COUNT
    assert cursor(cluster, "parallel")["index"] == end


def test_a_record_that_is_not_handled_stops_the_consumer_at_its_index_or_is_skipped_into_a_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, bad, last = quire_apply(cluster, 3)
    program = f"import json, sys; bad = json.load(sys.stdin)['index'] == {bad}; sys.exit('no mail' if bad else 0)"
    arguments = ["--exec", python(program), "--attempts", "2", "--until", str(last + 1), "--start", str(first)]

    stopped = consume(cluster, "failing", *arguments)
    at = cursor(cluster, "failing")["index"]
    skipped = consume(cluster, "failing", *arguments, "--skip-failed", str(tmp_path / "failed"))

    why = "its handler ended with exit code 1, and last wrote 'no mail' to stderr"
    stop = (
        f"the record at index {bad} was not handled, tried 2 times: {why}; correct the handler and run this again, or "
        "skip such records with --skip-failed FILE"
    )
    assert stopped.code == Exit.FAILED
    assert stopped.stderr.splitlines() == [
        "no mail",
        f"quire: the record at index {bad}: {why}; attempt 1 of 2",
        "no mail",
        f"quire: {stop}",
    ]
    assert at == bad
    assert skipped.code == Exit.DONE
    assert f"the record at index {bad} is skipped: it is in {tmp_path / 'failed'}" in skipped.stderr
    [line] = lines_of(tmp_path / "failed")
    assert (json.loads(line)["index"], json.loads(line)["value"]) == (bad, ["add", 1])
    assert cursor(cluster, "failing")["index"] == last + 1


def test_a_handler_that_takes_too_long_is_ended_with_its_children(cluster: Cluster, tmp_path: Path) -> None:
    [index] = quire_apply(cluster, 1)
    arguments = ["--attempts", "1", "--handler-timeout", "0.5", "--start", str(index)]

    ended = consume(cluster, "stuck", "--exec", python(STAYS, tmp_path / "pids"), *arguments)

    assert ended.code == Exit.FAILED
    assert "its handler took longer than 0.5 s, and last wrote 'still working' to stderr" in ended.stderr
    [pids] = lines_of(tmp_path / "pids")
    cluster.wait_until("both are gone", lambda: not any(is_alive(int(pid)) for pid in pids.split()))
    assert cursor(cluster, "stuck")["index"] == index


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_handlers_and_commits_what_is_finished(
    cluster: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    indices, out = quire_apply(cluster, 6), tmp_path / "out"
    name, waiting = f"ended-{number.name}", indices[2]
    handler = python(WAITS, out, waiting, tmp_path / "go")
    arguments = ["--max-in-flight", "2", "--start", str(indices[0])]

    with consuming(cluster, name, "--exec", handler, *arguments) as process:
        # All others are finished, though above it.
        cluster.wait_until("one waits alone", lambda: len(lines_of(out)) == len(indices))
        process.send_signal(number)
        _, said = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, said) == (Exit.DONE, "")
    others = {str(index) for index in indices if index != waiting}
    assert set(lines_of(out)) == others | {"waits", "ended"}
    assert cursor(cluster, name)["index"] == waiting
    (tmp_path / "go").touch()
    end = highest_index(cluster)
    assert consume(cluster, name, "--exec", handler, "--until", str(end)).code == Exit.DONE
    assert Counter(lines_of(out))[str(waiting)] == 1
    assert cursor(cluster, name)["index"] == end


def test_a_second_consumer_of_the_same_name_ends_the_first(cluster: Cluster) -> None:
    [index] = quire_apply(cluster, 1)
    with consuming(cluster, "taken", "--start", str(index)) as first:
        assert json.loads(read_line(first))["index"] == index
        cluster.wait_until("it is committed", lambda: cursor(cluster, "taken")["index"] > index)
        token = cursor(cluster, "taken")["token"]
        with consuming(cluster, "taken") as second:
            cluster.wait_until("it is taken", lambda: cursor(cluster, "taken")["token"] != token)
            [following] = quire_apply(cluster, 1)
            assert json.loads(read_line(second))["index"] == following

            _, said = first.communicate(timeout=DEADLINE_S)

            assert first.returncode == Exit.FAILED
            assert re.fullmatch(
                "quire: another consumer took the cursor 'taken', an operator moved it, or the cluster was "
                r"recovered; it is at \d+\. Consume again only if no other worker does\n",
                said,
            ), said
            second.send_signal(signal.SIGTERM)
            assert second.wait(DEADLINE_S) == Exit.DONE
    assert cursor(cluster, "taken")["index"] > following


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_output_that_a_closed_pipe_did_not_take_is_not_committed(cluster: Cluster) -> None:
    first = cluster.leader.apply(*[["add", 1]] * 2_000)["index"]  # More than a pipe holds.
    reading, writing = os.pipe()
    command = [*QUIRE, "consume", "closed", "--start", str(first), "--server", cluster.servers]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        os.close(writing)
        assert os.read(reading, 9) == b'{"index":'
        os.close(reading)
        _, said = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, said) == (Exit.OUTPUT_LOST, "")
    assert cursor(cluster, "closed")["index"] == first


def test_workers_share_the_records_and_their_cursors_become_those_of_another_number(cluster: Cluster) -> None:
    end = 50
    expected = records(cluster, 0, end)
    found: list[int] = []
    for number in range(3):
        ended = consume(cluster, "work", "--shard", f"{number}/3", "--until", str(end))
        rows = [json.loads(line)["index"] for line in ended.stdout.splitlines()]
        assert (ended.code, {index % 3 for index in rows}) == (Exit.DONE, {number})
        found += rows
    assert sorted(found) == expected
    listed = [
        json.loads(line) for line in quire(cluster, "cursor", "list", "--prefix", "work/", "--json").stdout.splitlines()
    ]
    assert [(row["name"], row["index"]) for row in listed] == [(f"work/{number}-3", end) for number in range(3)]

    further = end + 30
    assert consume(cluster, "work", "--shard", "0/3", "--until", str(further)).code == Exit.DONE
    refused = quire(cluster, "cursor", "reshard", "work", "3", "2")
    assert (refused.code, refused.stdout) == (Exit.FAILED, "")
    [command] = re.findall(r"`quire (consume work --shard 1/3 --until \d+)`", refused.stderr)
    assert quire(cluster, *command.split()).code == Exit.DONE
    assert consume(cluster, "work", "--shard", "2/3", "--until", str(further)).code == Exit.DONE
    done = quire(cluster, "cursor", "reshard", "work", "3", "2")

    assert done == (Exit.DONE, f"work has 2 shares, at {further}\n", "")
    again = quire(cluster, "cursor", "list", "--prefix", "work/").stdout.splitlines()
    assert [line.split("\t")[:2] for line in again] == [[f"work/{n}-2", f"index {further}"] for n in range(2)]


def test_an_operator_shows_sets_and_deletes_cursors(cluster: Cluster) -> None:
    made = quire(cluster, "cursor", "set", "operated", "30", "--hold-bytes", "1048576")
    shown = quire(cluster, "cursor", "show", "operated")
    forward = quire(cluster, "cursor", "set", "operated", "40", "--json")
    back = quire(cluster, "cursor", "set", "operated", "20")
    rewound = quire(cluster, "cursor", "set", "operated", "20", "--rewind")
    beyond = quire(cluster, "cursor", "set", "operated", "1000000")
    status, status_json = quire(cluster, "status"), quire(cluster, "status", "--json")
    given = quire(cluster, "cursor", "set", "operated", "--owner", "billing")
    listed = quire(cluster, "cursor", "list", "--prefix", "operated")
    nowhere = quire(cluster, "cursor", "set", "operated")

    assert made == (Exit.DONE, "operated is at 30\n", "")
    cells = shown.stdout.rstrip("\n").split("\t")
    assert cells[:2] + cells[3:] == ["operated", "index 30", "no consumer", "no owner", "holds 1,048,576 bytes"]
    assert re.fullmatch(r"[\d,]+ records, [\d.]+ s behind", cells[2])
    assert json.loads(forward.stdout) == {"name": "operated", "index": 40}
    assert back.code == Exit.FAILED
    assert "CURSOR_BACK" in back.stderr
    assert rewound == (Exit.DONE, "operated is at 20\n", "")
    assert beyond.code == Exit.FAILED
    assert "CURSOR_BEYOND" in beyond.stderr
    assert re.fullmatch(r"cursors: \d+, \d+(?: or more)? behind: .*", status.stdout.splitlines()[-1])
    assert json.loads(status_json.stdout)["n1"]["status"]["cursors"]["count"] >= 1
    assert given == (Exit.DONE, "operated is at 20\n", "")
    assert listed.stdout.rstrip("\n").split("\t")[4:] == ["owner billing", "holds 1,048,576 bytes"]
    assert (nowhere.code, "INDEX is missing" in nowhere.stderr) == (Exit.USAGE, True)
    gone = quire(cluster, "cursor", "delete", "operated")
    assert gone == (Exit.DONE, "operated is deleted; it was at 20\n", "")
    for call in (["show", "operated"], ["delete", "operated"], ["set", "operated", "--owner", "billing"]):
        unknown = quire(cluster, "cursor", *call)
        assert (unknown.code, unknown.stdout) == (Exit.FAILED, "")
        assert "there is no cursor" in unknown.stderr


def test_a_process_to_which_orphans_come_keeps_no_zombie(cluster: Cluster, tmp_path: Path) -> None:
    indices, failed = quire_apply(cluster, 4), tmp_path / "failed"
    stays = python("import os, signal; os.fork(); signal.pause()")
    arguments = ["--attempts", "1", "--handler-timeout", "0.5", "--skip-failed", str(failed), "--start"]
    command = [
        sys.executable,
        "-c",
        SUBREAPER,
        *QUIRE,
        "consume",
        "orphans",
        "--exec",
        stays,
        *arguments,
        str(indices[0]),
        "--server",
        cluster.servers,
    ]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            cluster.wait_until("all are skipped", lambda: len(lines_of(failed)) == len(indices))
            cluster.wait_until("nothing is left of them", lambda: not psutil.Process(process.pid).children())

            process.terminate()

            assert process.wait(DEADLINE_S) == Exit.DONE
        finally:
            process.kill()
