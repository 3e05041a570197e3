"""How commands end when something else than their work ends them: Ctrl-C, a full device, a closed pipe, an encoding."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quire.cluster.cli.output import Exit
from tests.ports import HOST
from tests.processes.cluster import QUIRE, Cluster, ending_clusters, environment, run_quire

DEADLINE_S = 60
INTERRUPTED_AT_IMPORT = """
import signal, sys
at, imports = int(sys.argv.pop(1)), 0
from quire.cluster.cli.main import main
def count(event, arguments):
    global imports
    if event == "import":
        imports += 1
        if imports == at:
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(count)
main()
"""
"""Interrupts itself at an import, counted from 1; a run with fewer ends by itself."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("ends")) as made:
        yield made.formed(flags=["--machine", "kv"])


def run_into(file: int, *arguments: str, encoding: str | None = None) -> tuple[int, str]:
    """The exit code and stderr of a command whose stdout is this descriptor."""
    extra = {} if encoding is None else {"PYTHONIOENCODING": encoding}
    run = subprocess.run(
        [*QUIRE, *arguments],
        stdout=file,
        stderr=subprocess.PIPE,
        env=environment(extra),
        timeout=DEADLINE_S,
        check=False,
    )
    return run.returncode, run.stderr.decode()


PRINTING = ["put a b", "get a", "scan", "state", "query", "read", "read --export", "tail --from 0 --count 1", "status"]


@pytest.mark.full
@pytest.mark.parametrize("command", [*PRINTING, "members", "--help", "--version", "log --help"])
def test_output_that_a_full_device_or_a_closed_pipe_does_not_take_has_a_code_of_its_own(
    cluster: Cluster, command: str
) -> None:
    server = [] if command.endswith(("help", "version")) else ["--server", cluster.servers]
    cluster.leader.apply(["put", "a", "b"])
    with Path("/dev/full").open("wb") as full:
        code, said = run_into(full.fileno(), *command.split(), *server)
    unread, pipe = os.pipe()
    os.close(unread)
    piped, said_of_pipe = run_into(pipe, *command.split(), *server)
    os.close(pipe)

    assert (code, piped) == (Exit.OUTPUT_LOST, Exit.OUTPUT_LOST), (said, said_of_pipe)
    assert said.splitlines()[-1].startswith("quire: the output could not be written: no space left on device;")
    assert said_of_pipe == ""


@pytest.mark.full
def test_a_write_whose_output_is_lost_was_executed(cluster: Cluster) -> None:
    before = int(run_quire("apply", "incr", "lost", "--server", cluster.servers).stdout)
    with Path("/dev/full").open("wb") as full:
        assert run_into(full.fileno(), "apply", "incr", "lost", "--server", cluster.servers)[0] == Exit.OUTPUT_LOST

    assert run_quire("get", "lost", "--server", cluster.servers).stdout == f"{before + 1}\n"


@pytest.mark.full
def test_an_error_that_stderr_does_not_take_keeps_its_code() -> None:
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run([*QUIRE, "aply"], stderr=full, env=environment(), timeout=DEADLINE_S, check=False)

    assert run.returncode == Exit.USAGE


@pytest.mark.full
def test_what_an_encoding_lacks_is_escaped(cluster: Cluster) -> None:
    server = ["--server", cluster.servers]
    latin = {"PYTHONIOENCODING": "latin-1"}

    assert run_quire("put", "€", "→😀é", *server).code == Exit.DONE
    ended = subprocess.run([*QUIRE, "get", "€", *server], capture_output=True, env=environment(latin), check=True)
    assert ended.stdout == rb"\u2192\ud83d\ude00" + b"\xe9\n"
    as_json = subprocess.run(
        [*QUIRE, "get", "€", "--json", *server], capture_output=True, env=environment(latin), check=True
    )
    assert as_json.stdout == rb'"\u2192\ud83d\ude00' + b'\xe9"\n'
    for command in ("status", "members", "read", "state", "aply"):
        ended = subprocess.run(
            [*QUIRE, command, *server], capture_output=True, env=environment(latin), timeout=DEADLINE_S, check=False
        )
        assert b"Traceback" not in ended.stderr


@pytest.mark.full
@pytest.mark.parametrize("command", ["--help", "state", "apply add 1", "log segments .", "backup --help"])
def test_an_interrupt_at_any_import_has_no_traceback(command: str) -> None:
    for at in range(1, 400, 23):
        arguments = [sys.executable, "-c", INTERRUPTED_AT_IMPORT, str(at), *command.split()]
        extra = {"QUIRE_SERVER": f"{HOST}:1"}
        run = subprocess.run(
            arguments, capture_output=True, text=True, env=environment(extra), timeout=DEADLINE_S, check=False
        )
        assert not re.search("Traceback|Error|ignored", run.stderr), (at, run.stderr)
        if run.returncode not in (-signal.SIGINT, Exit.INTERRUPTED):
            assert at > 1, run
            break


@pytest.mark.full
@pytest.mark.parametrize(("command", "doubt"), [("apply add 1", True), ("put a b", True), ("get a", False)])
def test_an_interrupt_of_a_call_is_a_sentence_that_names_the_doubt(command: str, doubt: bool) -> None:
    with socket.create_server((HOST, 0)) as listener:
        server = f"{HOST}:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [*QUIRE, *command.split(), "--server", server], stderr=subprocess.PIPE, text=True, env=environment()
        )
        listener.settimeout(DEADLINE_S)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            assert connection.recv(1)  # The request: it is under way.
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == Exit.INTERRUPTED
    assert said.startswith("quire: interrupted")
    assert ("unknown" in said) == doubt
    assert said.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("command", ["status --timeout 60", "snapshot", "expire --dry-run"])
def test_an_interrupt_while_a_node_does_not_answer_is_a_sentence(cluster: Cluster, command: str) -> None:
    frozen = cluster.followers[0]
    frozen.pause()
    try:
        process = subprocess.Popen(
            [*QUIRE, *command.split(), "--server", cluster.leader.address],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        cluster.wait_until("it waits for the node", lambda: _is_connected(process.pid, frozen.address))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    finally:
        frozen.resume()

    assert process.returncode == Exit.INTERRUPTED
    assert said.startswith("quire: interrupted")


def _is_connected(pid: int, address: str) -> bool:
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(port)}
    with suppress(FileNotFoundError):  # A descriptor that was just closed.
        return any(os.readlink(each) in sockets for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.full
def test_an_interrupt_that_a_command_was_started_to_ignore_is_ignored(cluster: Cluster) -> None:
    from_index = cluster.leader.apply(["put", "first", 1])["index"]
    tailing = f"{shlex.join(QUIRE)} tail --from {from_index} --count 40 --server {cluster.servers}"
    with subprocess.Popen(
        ["bash", "-c", f"trap '' INT; exec {tailing}"], stdout=subprocess.PIPE, text=True, env=environment()
    ) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        cluster.leader.apply(*(["put", f"key {number}", number] for number in range(40)))

        assert tail.wait(DEADLINE_S) == Exit.DONE
        assert len(tail.stdout.readlines()) == 39


@pytest.mark.full
@pytest.mark.parametrize(("closed", "code"), [(">&-", Exit.DONE), ("2>&-", Exit.DONE), ("<&-", Exit.DONE)])
def test_a_command_that_was_started_without_a_stream_does_its_work(cluster: Cluster, closed: str, code: int) -> None:
    line = f"{shlex.join(QUIRE)} put closed {shlex.quote(closed)} --server {cluster.servers} {closed}"

    run = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), timeout=DEADLINE_S, check=False
    )

    assert (run.returncode, run.stderr) == (code, "")
    assert run_quire("get", "closed", "--server", cluster.servers).stdout == f"{closed}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", ["put a --josn", "scan --jsn", "scan --cont=5", "apply incr n --tmeout 3", "get --x 1"]
)
def test_an_option_that_a_command_does_not_have_is_not_taken_as_data(cluster: Cluster, arguments: str) -> None:
    ended = run_quire(*arguments.split(), "--server", cluster.servers)

    assert (ended.code, ended.stdout) == (Exit.USAGE, "")
    assert "No such option" in ended.stderr
    assert run_quire("put", "a", "--server", cluster.servers, "--", "--josn").code == Exit.DONE
    assert run_quire("put", "a", "-5", "--server", cluster.servers).code == Exit.DONE
    assert run_quire("get", "a", "--server", cluster.servers).stdout == "-5\n"
