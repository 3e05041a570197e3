"""What a command imports: help and usage errors come at once, and a call needs the client alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from quire.cluster.cli.commands import COMMANDS
from quire.log import FileDirectory, Log, LogOptions
from tests.ports import HOST, free_port

PROGRAM = """
import sys
sys.argv = ["quire", *sys.argv[1:]]
from quire.cluster.cli.main import main
try:
    main()
finally:
    with open("modules", "w") as file:
        print(*sys.modules, sep="\\n", file=file)
"""

SERVING = (
    "pydantic structlog prometheus_client pysyncobj uvloop cryptography quire.cluster.node quire.cluster.http "
    "quire.cluster.serve quire.cluster.config quire.cluster.control quire.cluster.compaction quire.cluster.simulator "
    "quire.cluster.demo quire.replication.core quire.replication.net quire.replication.driver quire.sm.applier"
)
CALLING = "aiohttp asyncio quire.cluster.client"
FILES = "quire.log.log quire.log.files quire.log.payload crc32c msgpack orjson"


def imported(tmp_path: Path, *arguments: str) -> set[str]:
    """The modules that `quire` with these arguments has imported when it ends."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, capture_output=True, check=False, timeout=60
    )
    return set((tmp_path / "modules").read_text().split())


def check_without(modules: set[str], *forbidden: str) -> None:
    names = {name for names in forbidden for name in names.split()}
    assert "quire" in modules
    assert names & modules == set()


def test_the_version_is_printed_without_the_command_line(tmp_path: Path) -> None:
    check_without(imported(tmp_path, "--version"), "rich typer inspect", SERVING, CALLING, FILES)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["aply"], ["apply"], ["state", "--wrong"], ["read", "one"], ["members", "demot"]]
)
def test_help_and_usage_errors_need_neither_a_client_nor_a_log(tmp_path: Path, arguments: list[str]) -> None:
    check_without(imported(tmp_path, *arguments), "rich", SERVING, CALLING, FILES)


@pytest.mark.full
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("serve", "spark")])
def test_the_help_of_a_command_needs_neither_a_client_nor_a_log(tmp_path: Path, command: str) -> None:
    check_without(imported(tmp_path, command, "--help"), "rich", SERVING, CALLING, FILES)


@pytest.mark.full
@pytest.mark.parametrize("command", ["segments", "dump", "verify", "repair"])
def test_a_command_on_the_files_of_a_log_needs_no_client_and_no_server(tmp_path: Path, command: str) -> None:
    log = Log.open(
        FileDirectory(tmp_path / "node"), LogOptions(), cluster_id=bytes(16), clock=lambda: 1, standalone=True
    )
    log.append([{"key": "value"}])
    log.close()

    modules = imported(tmp_path, "log", command, "node")

    check_without(modules, "rich", SERVING, CALLING)
    assert "quire.log.files" in modules


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        *("state", "query", "read 3", "read", "apply add 3", "append 3", "get key", "put key value", "scan"),
        *("transfer", "status", "snapshot", "expire", "session list", "session close 1"),
        *("consume mail", "consume mail --exec true", "cursor list", "cursor set mail 3"),
    ],
)
def test_a_call_needs_the_client_and_nothing_of_a_server(tmp_path: Path, arguments: str) -> None:
    nobody = f"{HOST}:{free_port()}"

    modules = imported(tmp_path, *arguments.split(), "--server", nobody, "--timeout", "0.1")

    check_without(modules, "rich", SERVING)
    assert "aiohttp" in modules
