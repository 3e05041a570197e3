"""What lasts shows a bar on stderr if that is a terminal, and nothing of it otherwise."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from quire.log import FileDirectory, Log, LogOptions
from tests.processes.cluster import QUIRE, Clusters, environment

DEADLINE_S = 60
ESCAPE = b"\x1b["


def run_on_terminal(*arguments: str) -> tuple[int, bytes, bytes]:
    """The exit code, stdout, and what a terminal gets as stderr."""
    terminal, end = pty.openpty()
    extra = {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([*QUIRE, *arguments], stdout=subprocess.PIPE, stderr=end, env=environment(extra))
    os.close(end)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # The process has closed the terminal's other end.
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    said, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said, shown


def run_in_pipe(*arguments: str) -> tuple[int, bytes, bytes]:
    run = subprocess.run([*QUIRE, *arguments], capture_output=True, env=environment(), timeout=DEADLINE_S, check=False)
    return run.returncode, run.stdout, run.stderr


@pytest.mark.full
def test_a_load_shows_its_progress_on_a_terminal_alone(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.formed()
    file = tmp_path / "commands.ndjson"
    file.write_text("".join(json.dumps(["add", number]) + "\n" for number in range(1, 5000)))

    shown = run_on_terminal("load", str(file), "--server", cluster.servers)
    hidden = run_in_pipe("load", str(file), "--server", cluster.servers)

    assert (shown[0], hidden[0], hidden[2]) == (0, 0, b"")
    assert b"commands.ndjson" in shown[2]
    assert ESCAPE in shown[2]
    assert ESCAPE not in shown[1] + hidden[1]


@pytest.mark.full
@pytest.mark.parametrize("command", ["verify", "repair"])
def test_a_check_of_a_log_shows_its_progress_on_a_terminal_alone(tmp_path: Path, command: str) -> None:
    log = Log.open(FileDirectory(tmp_path), LogOptions(), cluster_id=bytes(16), clock=lambda: 1, standalone=True)
    log.append([{"key": "value"}])
    log.close()

    shown = run_on_terminal("log", command, str(tmp_path))
    as_json = run_on_terminal("log", command, str(tmp_path), "--json")
    hidden = run_in_pipe("log", command, str(tmp_path))

    assert b"verify" in shown[2]
    assert ESCAPE in shown[2]
    assert hidden == (0, shown[1], b"")
    assert as_json[2] == b""
