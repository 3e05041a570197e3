"""`quire serve --standalone` as a process: start, stop, kill, and memory."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.serve.journal import BURST_LINES, BURST_PER_SECOND
from tests.ports import HOST, free_port
from tests.processes.cluster import QUIRE, Clusters, environment, run_quire
from tests.processes.data_files import read_mark

START_S = 30.0
MIB = 1 << 20


class Server:
    """One standalone server and its process."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        own = ["serve", "--standalone", "--listen", f"{HOST}:{self.port}", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*QUIRE, *own, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        assert self.process.stdout is not None
        # It says so when it listens.
        assert f"{HOST}:{self.port}" in self.process.stdout.readline(), self.process.stderr

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> tuple[int, Any]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_S)
        try:
            connection.request(method, path, body=body, headers={"Content-Type": content_type})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_S)


@contextmanager
def serving(data_dir: Path, *flags: str) -> Generator[Server]:
    server = Server(data_dir, *flags)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate(timeout=START_S)


@pytest.mark.full
@pytest.mark.parametrize("flush", ["always", "never"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_server_cleanly_with_everything_flushed(
    tmp_path: Path, number: signal.Signals, flush: str
) -> None:
    with serving(tmp_path, "--flush", flush) as server:
        for value in range(20):
            assert server.call("POST", "/records", json.dumps(value)) == (200, {"write_index": value, "count": 1})
        assert not read_mark(tmp_path).clean
        assert server.end(number) == 0
    mark = read_mark(tmp_path)
    assert (mark.clean, mark.durable_index, mark.commit_index) == (True, 20, 20)
    with serving(tmp_path) as server:
        assert server.call("GET", "/index_bounds") == (200, {"lowest_index": 0, "highest_index": 20})
        assert server.call("GET", "/records/19") == (200, 19)


def test_a_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        for value in range(50):
            assert server.call("POST", "/records", json.dumps({"n": value}))[0] == 200
        server.end(signal.SIGKILL)
    with serving(tmp_path) as server:
        assert server.call("GET", "/index_bounds")[1] == {"lowest_index": 0, "highest_index": 50}
        assert server.call("GET", "/records/49") == (200, {"n": 49})


def test_a_stranger_s_garbage_fills_no_journal_and_what_was_left_out_is_counted_at_the_end(tmp_path: Path) -> None:
    strangers, began = 200, time.monotonic()
    with serving(tmp_path, "--log-format", "json") as server:
        for _ in range(strangers):
            with socket.create_connection((HOST, server.port), START_S) as caller:
                caller.sendall(b"\0\r\n\r\n")
                assert b" 400 " in caller.recv(4096)
        assert server.end(signal.SIGTERM) == 0
        assert server.process.stderr is not None
        lines = [json.loads(line) for line in server.process.stderr]

    written = [line for line in lines if line["event"] == "not HTTP"]
    left_out = sum(line.get("left_out", 0) + line.get("kinds", {}).get("not HTTP", 0) for line in lines)
    assert len(written) <= BURST_LINES + (time.monotonic() - began) * BURST_PER_SECOND
    assert len(written) + left_out == strangers


def peak_mib(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.full
def test_memory_is_flat_for_a_large_record_that_is_uploaded_and_read_back(tmp_path: Path) -> None:
    size = 256 * MIB

    def source() -> Iterator[bytes]:
        for number in range(size // MIB):
            yield bytes([number % 256]) * MIB

    with serving(tmp_path, "--max-record-bytes", str(size)) as server:
        before = peak_mib(server.process.pid)
        assert server.call("POST", "/records", source(), "application/octet-stream")[0] == 200
        connection = http.client.HTTPConnection(HOST, server.port, timeout=START_S)
        connection.request("GET", "/records/0")
        answer = connection.getresponse()
        assert answer.getheader("Content-Length") == str(size)
        assert all(answer.read(MIB) == chunk for chunk in source())
        connection.close()
        assert peak_mib(server.process.pid) - before < 64
        assert not list((tmp_path / "log").glob("*.spool"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--node", "n1"], ["--node"]),
        (["--flush", "sometimes"], ["--flush", "always"]),
        (["--initial-index", "-1"], ["--initial-index"]),
    ],
)
def test_a_wrong_flag_is_a_sentence_and_exit_code_2(tmp_path: Path, flags: list[str], words: list[str]) -> None:
    listen = f"{HOST}:{free_port()}"
    ended = run_quire("serve", "--standalone", "--listen", listen, "--data-dir", str(tmp_path / "log"), *flags)
    assert ended.code == 2
    assert all(word in ended.stderr for word in words), ended.stderr
    assert not (tmp_path / "log").exists()


@pytest.mark.full
def test_the_help_names_every_flag_and_the_node_s_help_names_the_mode() -> None:
    said = run_quire("serve", "--standalone", "--help").stdout
    assert "--retention-bytes" in said
    assert "--members" not in said
    assert "--standalone" in run_quire("serve", "--help").stdout


@pytest.mark.full
def test_a_directory_of_one_mode_is_refused_in_the_other(clusters: Clusters, tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        server.end(signal.SIGTERM)
    cluster = clusters.formed()
    cluster.stop("n2")
    ended = cluster["n2"].run_to_end("--data-dir", str(tmp_path / "log"))
    assert ended.code == 1
    assert "standalone" in ended.stderr
    listen = f"{HOST}:{free_port()}"
    node = str(cluster["n2"].data_dir)
    ended = run_quire("serve", "--standalone", "--listen", listen, "--data-dir", node)
    assert ended.code == 1
    assert "cluster" in ended.stderr


@pytest.mark.full
def test_a_cluster_s_node_does_not_truncate(clusters: Clusters) -> None:
    cluster = clusters.formed()
    reply = cluster.leader.call("POST", "/rpc/truncate", b'{"truncate_index": 0}')
    assert reply.status == 409
    assert reply.document["type"].endswith("not-in-this-mode")


@pytest.mark.full
def test_records_of_a_removed_directory_can_be_saved_while_the_process_stays(tmp_path: Path) -> None:
    """By the commands of deploy/runbook.md."""
    runbook = (Path(__file__).parents[2] / "deploy/runbook.md").read_text()
    [commands] = [part for part in runbook.split("\n\n") if "PID=...; SAVED=..." in part]
    with serving(tmp_path / "d") as server:
        assert server.call("POST", "/records", b"kept", "application/octet-stream")[0] == 200
        shutil.rmtree(tmp_path / "d")
        status, problem = server.call("POST", "/records", b"lost", "application/octet-stream")
        assert (status, problem["type"]) == (504, "urn:quire:problem:outcome-unknown")
        status, health = server.call("GET", "/healthz")
        assert (status, f"not stop process {server.process.pid}" in health["reason"]) == (503, True)
        assert server.process.poll() is None
        saved = tmp_path / "saved"
        script = (
            commands.removeprefix("```sh\n")
            .removesuffix("\n```")
            .replace("PID=...", f"PID={server.process.pid}")
            .replace("SAVED=...", f"SAVED={saved}")
        )
        subprocess.run(["bash", "-euc", script], check=True)
        assert server.end(signal.SIGTERM) == 1
    with serving(saved) as server:
        assert server.call("GET", "/index_bounds")[1]["highest_index"] >= 1
        status, _ = server.call("POST", "/records", b"more", "application/octet-stream")
        assert status == 200
