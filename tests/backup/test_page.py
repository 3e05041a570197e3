"""Every command of docs/backup.md, in its order, in a shell, on a cluster that is lost in the middle."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import metadata
from pathlib import Path
from secrets import token_hex

import pytest

from tests.backup.gateway import BUCKET, Gateway
from tests.ports import HOST, free_ports
from tests.processes.cluster import Cluster, Clusters, Node, Unreachable, environment

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
TIMEOUT_S = 120.0
RUNS_ON = ("quire serve", "quire backup /backups/lab --every")
"""Commands that run until they are stopped."""


def commands() -> list[str]:
    """The lines of the page's code blocks; those of "The files" are none."""
    page = PAGE.read_text().partition("## The files")[0]
    return [line.strip() for line in re.findall(r"^ {4}(\S.*)$", page, re.MULTILINE)]


class Shell:
    """Runs the page's commands one by one, with the variables that they export."""

    def __init__(self, folder: Path, cluster: Cluster, gateway: Gateway) -> None:
        self._folder = folder
        self._cluster = cluster
        self._gateway = gateway
        self._fork, self._metrics = free_ports(2)
        self._began = datetime.now(UTC).isoformat()
        self._place = f"s3://{BUCKET}/{token_hex(4)}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = environment({"PATH": path})
        self.started: list[subprocess.Popen[bytes]] = []

    def here(self, command: str) -> str:
        """The command with the places and ports of this test."""
        for number in (1, 2, 3):
            command = command.replace(f"127.0.0.1:700{number}", self._cluster[f"n{number}"].address)
        command = command.replace("127.0.0.1:7101", f"{HOST}:{self._fork}").replace("9100", str(self._metrics))
        command = command.replace("2026-11-27T05:20:00Z", self._began)
        return command.replace("s3://backups/lab", self._place).replace("/backups/lab", str(self._folder / "b"))

    def export(self, command: str) -> None:
        for word in shlex.split(command)[1:]:
            name, _, value = word.partition("=")
            self._environment[name] = self._gateway.environment[name] if name.startswith("AWS_") else value
        if "AWS_ACCESS_KEY_ID" in self._environment:
            self._environment["AWS_ENDPOINT_URL"] = self._gateway.environment["AWS_ENDPOINT_URL"]

    def run(self, command: str) -> str:
        """Run a command to its end; it must succeed."""
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
        return ended.stdout

    def start(self, command: str) -> None:
        """Start a command that runs on."""
        with (self._folder / "output.log").open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        self.started.append(process)

    def metrics(self, command: str) -> None:
        """Run the curl of the page until the backup that was started answers."""

        def answers() -> str | None:
            ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            return ended.stdout if "quire_backup_lag_records" in ended.stdout else None

        assert "quire_backup_lag_seconds" in self._cluster.wait_until("metrics are served", answers)
        backup = self.started.pop()
        backup.terminate()
        assert backup.wait(TIMEOUT_S) == 0, (self._folder / "output.log").read_text()


@contextmanager
def shell(folder: Path, cluster: Cluster, gateway: Gateway) -> Generator[Shell]:
    made = Shell(folder, cluster, gateway)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()


def voters(node: Node) -> list[str]:
    try:
        return [row["node_id"] for row in node.status()["members"] if row["role"] == "voter"]
    except (Unreachable, KeyError):
        return []


@pytest.mark.slow
def test_every_command_of_the_page_runs_as_it_stands(clusters: Clusters, gateway: Gateway, tmp_path: Path) -> None:
    cluster = clusters.formed()
    for number in range(30):
        cluster.leader.apply(*[["add", number]] * 50)
    total = cluster.leader.query(None)
    folder = tmp_path / "shell"
    folder.mkdir()
    ran = 0
    with shell(folder, cluster, gateway) as bash:
        for command in commands():
            here = bash.here(command)
            if command.startswith("pip install"):
                assert "backup" in (metadata("quire").get_all("Provides-Extra") or [])
            elif command.startswith("export "):
                bash.export(here)
            elif command.startswith("curl"):
                bash.metrics(here)
            elif command.startswith(RUNS_ON):
                if "restored/n1" in command:
                    cluster.kill_all()
                bash.start(here)
            else:
                bash.run(here)
            ran += 1
            if command.startswith("quire serve --node n3"):
                cluster.wait_until("three nodes vote", lambda: len(voters(cluster["n1"])) == 3)
        assert ran == len(commands()) >= 20
        fork = Node("n1", bash.here("127.0.0.1:7101"), folder, [])
        cluster.wait_until("the fork is ready", lambda: is_ready(fork))
        assert fork.query(None) == total
        assert cluster["n1"].query(None) == total


def is_ready(node: Node) -> bool:
    try:
        return node.is_ready()
    except Unreachable:
        return False
