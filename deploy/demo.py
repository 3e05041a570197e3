#!/usr/bin/env python3
"""`make compose-demo`: the compose file's cluster, under load, with a container killed and a follower cut off.

Builds the image (on a local stand-in for its base, where none can be pulled), starts three nodes with toxiproxy on
every link, and applies the classroom's instructions in three parts: undisturbed; while the leader's container is
killed; while toxiproxy cuts a follower off. Ends with 0 if all nodes then give the answer that the classroom's own
script gives, with equal digests. Needs docker, docker-compose and Python's standard library; takes everything down.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

DEPLOY = Path(__file__).resolve().parent
TOP = DEPLOY.parent
PROJECT = "quire-demo"
IMAGE = "quire:dev"
BASE_IMAGE = "python:3.11-slim-bookworm"
TOXIPROXY_IMAGE = "ghcr.io/shopify/toxiproxy:2.12.0"
NODES = ("n1", "n2", "n3")
SERVERS = ",".join(f"{node_id}:7001" for node_id in NODES)

PARTS = (40_000, 30_000, 30_000)
CHUNK_LINES = 200  # So much goes into a load each PAUSE_S, until it may hurry.
PAUSE_S = 0.02
INTO_THE_LOAD = 3_000  # How many instructions of a part are applied when something happens to it.

COMMAND_TIMEOUT_S = 900.0
WAIT_TIMEOUT_S = 90.0
CALL_TIMEOUT_S = 5.0
POLL_S = 0.02

T = TypeVar("T")


class Failed(Exception):
    """The demonstration cannot go on; the text says why."""


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, flush=True)


def run(*command: str, environment: dict[str, str] | None = None, quiet: bool = True) -> str:
    """Run a command to its end; its output. Raises Failed with what it said."""
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
        raise Failed(f"{' '.join(command)} ended with {ended.returncode}\n{(ended.stderr or '').strip()}")
    return ended.stdout


@contextmanager
def timed(what: str) -> Generator[None]:
    """Say how long it took."""
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


def wait_for(what: str, condition: Callable[[], T | None]) -> T:
    """The first true value of the condition; a node that does not answer makes it false. Raises Failed."""
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
    """The compose that is there: docker's plugin, or the older program of its own. Raises Failed."""
    try:
        run("docker", "compose", "version")
    except Failed:
        if shutil.which("docker-compose") is None:
            raise Failed(
                "neither `docker compose` nor `docker-compose` is there (Debian: apt-get install docker-compose)"
            ) from None
        return ["docker-compose"]
    return ["docker", "compose"]


def have_images() -> None:
    """Build the node's image; pull, or stand in for, what it is built on and toxiproxy's."""
    for kind, image in (("base", BASE_IMAGE), ("toxiproxy", TOXIPROXY_IMAGE)):
        try:
            run("docker", "image", "inspect", image)
        except Failed:
            try:
                run("docker", "pull", image)
            except Failed:
                say(f"{image} cannot be pulled")
                with timed(f"made a stand-in for {image}"):
                    run(str(DEPLOY / "standins.sh"), kind, image)
    with timed("built the node's image"):
        run("docker", "build", "--network=host", "--tag", IMAGE, "--file", "deploy/Dockerfile", ".")
    size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", IMAGE))
    base = int(run("docker", "image", "inspect", "--format", "{{.Size}}", BASE_IMAGE))
    say(f"it has {size / 1e6:.0f} MB, {(size - base) / 1e6:.0f} MB of them above its base")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """The compose file's three nodes and toxiproxy, as a project of the demo's own."""

    def __init__(self, folder: Path) -> None:
        self._compose = compose_command()
        self._containers: dict[str, str] = {}
        self._ports = {name: free_port() for name in (*NODES, "toxiproxy")}
        secret = folder / "peer-secret"
        secret.write_text(secrets.token_hex(32) + "\n")
        secret.chmod(0o444)  # The container's user reads it, who is nobody on this machine.
        self._environment = {
            **{f"{name.upper()}_PORT": str(port) for name, port in self._ports.items()},
            "PEER_SECRET_FILE": str(secret),
            "QUIRE_IMAGE": IMAGE,
            "TOXIPROXY_IMAGE": TOXIPROXY_IMAGE,
        }

    def compose(self, *arguments: str) -> str:
        """What a command of compose prints."""
        files = ["--file", str(DEPLOY / "compose.yaml"), "--env-file", str(DEPLOY / "chaos.env")]
        command = [*self._compose, "--project-name", PROJECT, *files, "--profile", "chaos", *arguments]
        return run(*command, environment=self._environment)

    def container(self, node_id: str) -> str:
        """The container of a node, which it keeps when it is killed and started again."""
        return self._containers[node_id]

    def start(self) -> None:
        """Start all, and wait until each node is ready."""
        self.compose("up", "--detach", "--no-build")
        for node_id in NODES:
            self._containers[node_id] = self.compose("ps", "--quiet", node_id).strip()
            self.wait_until_ready(node_id)

    def end(self) -> None:
        """Take everything down, volumes and all."""
        self.compose("down", "--volumes", "--remove-orphans")

    def get(self, node_id: str, path: str) -> Any:
        """A node's answer to a GET. Raises OSError, an HTTPError among them."""
        with urllib.request.urlopen(self._url(node_id, path), timeout=CALL_TIMEOUT_S) as answer:
            return json.load(answer)

    def status(self, node_id: str) -> dict[str, Any]:
        """What a node says of itself. Raises OSError."""
        status: dict[str, Any] = self.get(node_id, "/status")
        return status

    def ready(self, node_id: str) -> bool:
        """Whether a node says that it is ready."""
        try:
            self.get(node_id, "/readyz")
        except OSError:
            return False
        return True

    def wait_until_ready(self, node_id: str) -> None:
        """Return when it is. Raises Failed."""
        wait_for(f"{node_id} is ready", lambda: self.ready(node_id))

    def leader(self) -> dict[str, Any]:
        """The status of the node that leads and serves, of those that answer. Raises Failed."""

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
        """Cut the links from and to a node, or heal them."""
        for other in NODES:
            if other != node_id:
                for link in (f"{node_id}-{other}", f"{other}-{node_id}"):
                    body = json.dumps({"enabled": enabled}).encode()
                    request = urllib.request.Request(self._url("toxiproxy", f"/proxies/{link}"), body, method="POST")
                    urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S).close()

    def _url(self, name: str, path: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}{path}"

    @contextmanager
    def loading(self, at: str, lines: list[str]) -> Generator[None]:
        """`quire load` in the container of `at`, fed bit by bit while the context lasts, and then with all the rest.

        On leaving the context everything is acknowledged.
        """
        command = ["docker", "exec", "--interactive", self.container(at), "quire", "load", "-", "--json"]
        command += ["--server", SERVERS, "--timeout", str(WAIT_TIMEOUT_S)]
        hurry = threading.Event()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            feeder = threading.Thread(target=_feed, args=(process, lines, hurry), daemon=True)
            feeder.start()
            try:
                yield
                hurry.set()
                feeder.join(WAIT_TIMEOUT_S)
                if process.wait(WAIT_TIMEOUT_S):
                    raise Failed(f"quire load ended with {process.returncode}")
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
        return  # It ended; its exit code says why.


def demonstrate(cluster: Deployment, instructions: list[str]) -> None:
    """The three parts. Raises Failed."""
    first, second = PARTS[0], PARTS[0] + PARTS[1]
    leader = cluster.leader()
    say(f"\n{leader['node_id']} leads epoch {leader['epoch']}")
    with timed(f"{first:,} instructions"), cluster.loading(leader["node_id"], instructions[:first]):
        pass
    kill_leader(cluster, instructions[first:second])
    cut_follower(cluster, instructions[second:])


def kill_leader(cluster: Deployment, instructions: list[str]) -> None:
    """Kill the leader's container under load, and start it again."""
    killed = cluster.leader()
    victim = killed["node_id"]
    others = [node_id for node_id in NODES if node_id != victim]
    goal = killed["applied_index"] + INTO_THE_LOAD
    with cluster.loading(others[0], instructions):
        wait_for("the load is under way", lambda: cluster.status(victim)["applied_index"] >= goal)
        container, began = cluster.container(victim), time.monotonic()
        run("docker", "kill", container)
        elected = cluster.leader()
        applied = elected["applied_index"]
        wait_for("it applies", lambda: cluster.status(elected["node_id"])["applied_index"] > applied)
        seconds = time.monotonic() - began
        say(
            f"\ndocker kill of {victim}, while instructions are applied: {elected['node_id']} leads epoch "
            f"{elected['epoch']} and applies {seconds:.2f} s after the command was given"
        )
    say(f"{len(instructions):,} more instructions are applied; {victim} is started again")
    run("docker", "start", container)
    cluster.wait_until_ready(victim)


def cut_follower(cluster: Deployment, instructions: list[str]) -> None:
    """Cut a follower off from both others under load, and heal its links."""
    leader = cluster.leader()["node_id"]
    cut = next(node_id for node_id in NODES if node_id != leader)
    goal = cluster.status(leader)["applied_index"] + INTO_THE_LOAD
    with cluster.loading(leader, instructions):
        wait_for("the load is under way", lambda: cluster.status(leader)["applied_index"] >= goal)
        cluster.set_links(cut, enabled=False)
        wait_for(f"{cut} says that it is not ready", lambda: not cluster.ready(cut))
    lag = cluster.status(leader)["nodes"][cut]["lag"]
    say(f"\ntoxiproxy cut {cut} off: not ready, {lag['records']:,} records and {lag['bytes']:,} bytes behind")
    began = time.monotonic()
    cluster.set_links(cut, enabled=True)
    cluster.wait_until_ready(cut)
    end = cluster.status(leader)["applied_index"]
    wait_for(f"{cut} catches up", lambda: cluster.status(cut)["applied_index"] >= end)
    say(f"healed: it has and has applied everything {time.monotonic() - began:.2f} s later")


def compare(cluster: Deployment, file: Path) -> None:
    """Show what the nodes answer. Raises Failed where that differs, or is not what the classroom's script gives."""
    end = cluster.leader()["applied_index"]
    wait_for("all have applied everything", lambda: {cluster.status(node)["applied_index"] for node in NODES} == {end})
    table = run("docker", "exec", cluster.container("n1"), "quire", "status", "--server", SERVERS)
    say("\n" + table.rstrip())
    rows = [cluster.get(node_id, "/state?consistency=local") for node_id in NODES]
    expected = run(sys.executable, "examples/classroom_check.py", "--initial=42", str(file)).strip()
    if any(row != rows[0] for row in rows) or rows[0]["state"] != expected:
        raise Failed(f"the nodes must all answer {expected}: {rows}")
    say(f"\nAll three nodes answer {expected}, with equal digests.\nexamples/classroom_check.py gives the same.")


def main() -> int:
    """Run it; 0 if all went as it must."""
    began = time.monotonic()
    try:
        run("docker", "version")
        with tempfile.TemporaryDirectory(prefix="quire-demo-") as folder, ExitStack() as at_the_end:
            have_images()
            file = Path(folder) / "instructions.ndjson"
            run(sys.executable, "examples/classroom.py", "--count", str(sum(PARTS)), "--output", str(file))
            cluster = Deployment(Path(folder))
            cluster.end()  # What an earlier run may have left.
            at_the_end.callback(cluster.end)
            with timed("started three nodes and toxiproxy"):
                cluster.start()
            try:
                demonstrate(cluster, file.read_text().splitlines(keepends=True))
                compare(cluster, file)
            except Failed:
                say(cluster.compose("logs", "--tail", "30"))
                raise
    except Failed as error:
        print(f"compose-demo: {error}", file=sys.stderr)
        return 1
    say(f"Everything is taken down again; it took {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
