#!/usr/bin/env python3
"""`make compose-demo`: the compose file's cluster under load, with a container killed and a follower cut off.

Builds the image (on a local substitute for its base, if none can be pulled), starts three nodes with toxiproxy on every
link, and checks that they refuse plain HTTP, callers without a token and writes with a token for reading. Then applies
the example instructions in three parts: undisturbed, while the leader's container is killed, and while toxiproxy cuts
off a follower. Exits with 0 if all nodes then have equal digests and the answer that examples/classroom_check.py
computes. Needs docker, docker-compose and Python's standard library. Removes everything at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

DEPLOY = Path(__file__).resolve().parent
TOP = DEPLOY.parent
PROJECT = "quire-demo"
IMAGE = "quire:dev"
BASE_IMAGE = "python:3.11-slim-bookworm"
TOXIPROXY_IMAGE = "ghcr.io/shopify/toxiproxy:2.12.0"
NODES = ("n1", "n2", "n3")
ADMIN, READER = "admin", "prometheus"  # Whose tokens deploy/setup.sh makes.
QUIRE = ("run", "--rm", "--no-deps", "-T", "setup", "quire")  # A compose command: it has the client's files.

PARTS = (40_000, 30_000, 30_000)
CHUNK_LINES = 200  # Sent to a load every PAUSE_S, until it may go at full speed.
PAUSE_S = 0.1
INTO_THE_LOAD = 3_000  # Instructions of a part that are applied before the fault.

COMMAND_TIMEOUT_S = 900.0
WAIT_TIMEOUT_S = 90.0
CALL_TIMEOUT_S = 5.0
POLL_S = 0.02

T = TypeVar("T")


class Failed(Exception):
    """The demo cannot continue; the text says why."""


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


def run(*command: str, environment: dict[str, str] | None = None, quiet: bool = True) -> str:
    """Run a command and return its output. Raises Failed with its errors."""
    try:
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            env={**os.environ, **(environment or {})},
            cwd=TOP,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{' '.join(command)}: {error}") from None
    if ended.returncode:
        raise Failed(f"{' '.join(command)} exited with {ended.returncode}\n{(ended.stderr or '').strip()}")
    return ended.stdout


@contextmanager
def timed(what: str) -> Generator[None]:
    """Print how long the block took."""
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


def wait_for(what: str, condition: Callable[[], T | None]) -> T:
    """The first true value of the condition, which is false while a node does not answer. Raises Failed."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except (OSError, ValueError):
            pass
        time.sleep(POLL_S)
    raise Failed(f"{what}: not within {WAIT_TIMEOUT_S:g} s")


def compose_command() -> list[str]:
    """The installed compose: docker's plugin, or the older separate program. Raises Failed."""
    try:
        run("docker", "compose", "version")
    except Failed:
        if shutil.which("docker-compose") is None:
            raise Failed(
                "neither `docker compose` nor `docker-compose` is installed (Debian: apt-get install docker-compose)"
            ) from None
        return ["docker-compose"]
    return ["docker", "compose"]


def prepare_images() -> None:
    """Pull or substitute the base image and toxiproxy's, and build the node's image."""
    for kind, image in (("base", BASE_IMAGE), ("toxiproxy", TOXIPROXY_IMAGE)):
        try:
            run("docker", "image", "inspect", image)
        except Failed:
            try:
                run("docker", "pull", image)
            except Failed:
                say(f"{image} cannot be pulled")
                with timed(f"made a substitute for {image}"):
                    run(str(DEPLOY / "standins.sh"), kind, image)
    with timed("built the node's image"):
        run("docker", "build", "--network=host", "--tag", IMAGE, "--file", "deploy/Dockerfile", ".")
    size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", IMAGE))
    base = int(run("docker", "image", "inspect", "--format", "{{.Size}}", BASE_IMAGE))
    say(f"image size: {size / 1e6:.0f} MB, {(size - base) / 1e6:.0f} MB more than its base")


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """The compose file's three nodes and toxiproxy, as a separate compose project."""

    def __init__(self, folder: Path) -> None:
        self._compose = compose_command()
        self._containers: dict[str, str] = {}
        self._ports = {name: free_port() for name in (*NODES, "toxiproxy")}
        self._client = folder / "client"  # Made here, so that it belongs to the user.
        self._client.mkdir()
        self._environment = {
            **{f"{name.upper()}_PORT": str(port) for name, port in self._ports.items()},
            "CLIENT_FILES": str(self._client),
            "QUIRE_IMAGE": IMAGE,
            "TOXIPROXY_IMAGE": TOXIPROXY_IMAGE,
        }

    def _command(self, *arguments: str) -> list[str]:
        files = ["--file", str(DEPLOY / "compose.yaml"), "--env-file", str(DEPLOY / "chaos.env")]
        return [*self._compose, "--project-name", PROJECT, *files, "--profile", "chaos", *arguments]

    def compose(self, *arguments: str) -> str:
        """The output of a compose command."""
        return run(*self._command(*arguments), environment=self._environment)

    def container(self, node_id: str) -> str:
        """The container of a node, which stays the same when it is killed and restarted."""
        return self._containers[node_id]

    def start(self) -> None:
        """Start everything, and wait until each node is ready."""
        self.compose("up", "--detach", "--no-build")
        for node_id in NODES:
            self._containers[node_id] = self.compose("ps", "--quiet", node_id).strip()
            self.wait_until_ready(node_id)

    def end(self) -> None:
        """Remove everything, including volumes."""
        self.compose("down", "--volumes", "--remove-orphans")

    def ask(
        self, node_id: str, path: str, *, caller: str | None = ADMIN, scheme: str = "https", body: bytes | None = None
    ) -> Any:
        """A node's answer to a caller, to a POST if there is a body. Raises OSError, of which HTTPError is one."""
        headers = {"Content-Type": "application/json"}
        if caller is not None:
            headers["Authorization"] = f"Bearer {(self._client / f'{caller}.token').read_text().strip()}"
        request = urllib.request.Request(f"{scheme}://{self._address(node_id)}{path}", body, headers)
        context = ssl.create_default_context(cafile=self._client / "ca.crt") if scheme == "https" else None
        with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S, context=context) as answer:
            return json.load(answer)

    def status(self, node_id: str) -> dict[str, Any]:
        """The status of a node. Raises OSError."""
        status: dict[str, Any] = self.ask(node_id, "/status")
        return status

    def ready(self, node_id: str) -> bool:
        """Whether a node reports that it is ready."""
        try:
            self.ask(node_id, "/readyz", caller=None)
        except OSError:
            return False
        return True

    def wait_until_ready(self, node_id: str) -> None:
        """Wait until a node is ready. Raises Failed."""
        wait_for(f"{node_id} is ready", lambda: self.ready(node_id))

    def leader(self) -> dict[str, Any]:
        """The status of the node that leads and serves. Raises Failed."""

        def serving() -> dict[str, Any] | None:
            for node_id in NODES:
                try:
                    if (status := self.status(node_id))["serving"]:
                        return status
                except OSError:
                    continue
            return None

        return wait_for("a node leads", serving)

    def set_links(self, node_id: str, *, enabled: bool) -> None:
        """Cut or heal the links from and to a node."""
        for other in NODES:
            if other != node_id:
                for link in (f"{node_id}-{other}", f"{other}-{node_id}"):
                    body = json.dumps({"enabled": enabled}).encode()
                    url = f"http://{self._address('toxiproxy')}/proxies/{link}"
                    urllib.request.urlopen(url, body, timeout=CALL_TIMEOUT_S).close()

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    @contextmanager
    def loading(self, lines: list[str]) -> Generator[None]:
        """Run `quire load` in a container: slowly during the block, then the rest at full speed.

        After the block everything is acknowledged.
        """
        command = self._command(*QUIRE, "load", "-", "--json", "--timeout", str(WAIT_TIMEOUT_S))
        hurry = threading.Event()
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment},
            cwd=TOP,
        ) as process:
            feeder = threading.Thread(target=_feed, args=(process, lines, hurry), daemon=True)
            feeder.start()
            try:
                yield
                hurry.set()
                feeder.join(WAIT_TIMEOUT_S)
                if process.wait(WAIT_TIMEOUT_S):
                    raise Failed(f"quire load exited with {process.returncode}")
            finally:
                process.kill()


def _feed(process: subprocess.Popen[str], lines: list[str], hurry: threading.Event) -> None:
    if process.stdin is None:
        raise Failed("the load has no input")
    try:
        for place in range(0, len(lines), CHUNK_LINES):
            process.stdin.write("".join(lines[place : place + CHUNK_LINES]))
            process.stdin.flush()
            hurry.wait(PAUSE_S)
        process.stdin.close()
    except BrokenPipeError:
        return  # The load exited; its exit code says why.


def show_refusals(cluster: Deployment) -> None:
    """Ask as those who must not be answered. Raises Failed."""
    command = json.dumps({"commands": [["add", 1]]}).encode()
    for what, status, ask in (
        ("plain HTTP", 400, partial(cluster.ask, "n1", "/status", caller=None, scheme="http")),
        ("no token", 401, partial(cluster.ask, "n1", "/status", caller=None)),
        ("a write as a reader", 403, partial(cluster.ask, "n1", "/commands", caller=READER, body=command)),
    ):
        try:
            raise Failed(f"{what} is answered: {ask()}")
        except urllib.error.HTTPError as error:
            say(f"{what}: {error.code}, {json.load(error)['detail']}")
            if error.code != status:
                raise Failed(f"{what} must be refused with {status}") from None


def demonstrate(cluster: Deployment, instructions: list[str]) -> None:
    """Run the three parts. Raises Failed."""
    first, second = PARTS[0], PARTS[0] + PARTS[1]
    leader = cluster.leader()
    say(f"\n{leader['node_id']} leads epoch {leader['epoch']}")
    with timed(f"{first:,} instructions"), cluster.loading(instructions[:first]):
        pass
    kill_leader(cluster, instructions[first:second])
    cut_follower(cluster, instructions[second:])


def kill_leader(cluster: Deployment, instructions: list[str]) -> None:
    """Kill the leader's container under load, and restart it."""
    killed = cluster.leader()
    victim = killed["node_id"]
    goal = killed["applied_index"] + INTO_THE_LOAD
    with cluster.loading(instructions):
        wait_for("the load is running", lambda: cluster.status(victim)["applied_index"] >= goal)
        container, began = cluster.container(victim), time.monotonic()
        run("docker", "kill", container)
        elected = cluster.leader()
        applied = elected["applied_index"]
        wait_for("it applies", lambda: cluster.status(elected["node_id"])["applied_index"] > applied)
        seconds = time.monotonic() - began
        say(
            f"\ndocker kill {victim}, while instructions are applied: {elected['node_id']} leads epoch "
            f"{elected['epoch']}, and applies the next command after {seconds:.2f} s"
        )
    say(f"{len(instructions):,} more instructions are applied; {victim} is restarted")
    run("docker", "start", container)
    cluster.wait_until_ready(victim)


def cut_follower(cluster: Deployment, instructions: list[str]) -> None:
    """Cut off a follower from both others under load, and heal its links."""
    leader = cluster.leader()["node_id"]
    cut = next(node_id for node_id in NODES if node_id != leader)
    goal = cluster.status(leader)["applied_index"] + INTO_THE_LOAD
    with cluster.loading(instructions):
        wait_for("the load is running", lambda: cluster.status(leader)["applied_index"] >= goal)
        cluster.set_links(cut, enabled=False)
        wait_for(f"{cut} reports that it is not ready", lambda: not cluster.ready(cut))
    lag = cluster.status(leader)["nodes"][cut]["lag"]
    say(f"\ntoxiproxy cut {cut} off: not ready, {lag['records']:,} records and {lag['bytes']:,} bytes behind")
    began = time.monotonic()
    cluster.set_links(cut, enabled=True)
    cluster.wait_until_ready(cut)
    end = cluster.status(leader)["applied_index"]
    wait_for(f"{cut} catches up", lambda: cluster.status(cut)["applied_index"] >= end)
    say(f"links healed: it has applied everything after {time.monotonic() - began:.2f} s")


def compare(cluster: Deployment, file: Path) -> None:
    """Show the nodes' answers. Raises Failed if they differ from each other or from the independent script's."""
    end = cluster.leader()["applied_index"]
    wait_for("all have applied everything", lambda: {cluster.status(node)["applied_index"] for node in NODES} == {end})
    table = cluster.compose(*QUIRE, "status")
    say("\n" + table.rstrip())
    rows = [cluster.ask(node_id, "/state?consistency=local") for node_id in NODES]
    expected = run(sys.executable, "examples/classroom_check.py", "--initial=42", str(file)).strip()
    if any(row != rows[0] for row in rows) or rows[0]["state"] != expected:
        raise Failed(f"the nodes must all answer {expected}: {rows}")
    say(f"\nAll three nodes answer {expected}, with equal digests.\nSo does examples/classroom_check.py.")


def main() -> int:
    """Run the demo; return the exit code."""
    began = time.monotonic()
    try:
        run("docker", "version")
        with tempfile.TemporaryDirectory(prefix="quire-demo-") as folder, ExitStack() as at_the_end:
            prepare_images()
            file = Path(folder) / "instructions.ndjson"
            run(sys.executable, "examples/classroom.py", "--count", str(sum(PARTS)), "--output", str(file))
            cluster = Deployment(Path(folder))
            cluster.end()  # Remove what an earlier run may have left.
            at_the_end.callback(cluster.end)
            with timed("started three nodes and toxiproxy"):
                cluster.start()
            try:
                show_refusals(cluster)
                demonstrate(cluster, file.read_text().splitlines(keepends=True))
                compare(cluster, file)
            except Failed:
                say(cluster.compose("logs", "--tail", "30"))
                raise
    except Failed as error:
        print(f"compose-demo: {error}", file=sys.stderr)
        return 1
    say(f"Everything is removed; the demo took {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
