"""Real clusters: one `quire serve` process per node, which tests start, query, pause, kill and restart.

Every port lies below the ephemeral range, where the kernel gives no port to anybody. A node's process gets SIGKILL
from the kernel when the tests' process ends, however that ends. Waiting is `Cluster.wait_until` alone: it looks at
its condition again and again, has a deadline, and ends at once when a node that should run does not any more.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests import tuned
from tests.ports import HOST, free_ports
from tests.processes.locked import PLAIN, CallerFiles, LockedFiles, locked_files
from tests.verdict.verdict import History, Model, Replay, check_logs

DEADLINE_S = 60.0
CALL_TIMEOUT_S = 10.0
POLL_S = 0.02
LAST_LINES = 40
LEADER = "n1"
THREE = ("n1", "n2", "n3")
# Every node of these tests checks the protocol's invariants, and halts if one is broken.
CHECKED = tuned.flags(check_invariants=True)
# Where a test is not about elections, a busy machine's pauses shall cause none. A leader whose process ends is missed
# at once all the same, since its connections end, too.
CALM = ("--election-timeout-ms", "5000", "--slow-command-ms", "0")  # A busy machine is no problem of the nodes.
RAW_FRAMES = "application/vnd.quire.frames"
RANGE_BYTES = 4 << 20

QUIRE = (sys.executable, "-m", "quire.cluster.cli.main")
TUNED = (sys.executable, "-m", tuned.__name__)
# PR_SET_PDEATHSIG is 1: SIGKILL from the kernel when whoever started this is gone. It outlives the exec.
LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"

T = TypeVar("T")
LONGEST_TURN_MS = 100
"""Of processor time. Whatever holds a node's loop for longer delays its heartbeats on a slow machine."""
LONG_TURN = re.compile(r"long turn(?! at the start).*\bcpu_ms=(?P<ms>\d+)")


class Unreachable(Exception):
    """A node did not answer: it is not there, not yet, paused, or broke off."""


class NeverCame(AssertionError):
    """What a test waited for did not come to pass; the text says what, and what the nodes say."""


class Reply(NamedTuple):
    """A node's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object."""
        document = json.loads(self.body)
        assert isinstance(document, dict), self.body
        return document


class Ended(NamedTuple):
    """A process that ended by itself."""

    code: int
    stdout: str
    stderr: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what configures quire, and `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUIRE_")}
    return kept | dict(extra or {})


def run_quire(
    *arguments: str,
    program: Sequence[str] = QUIRE,
    extra: Mapping[str, str] | None = None,
    timeout_s: float = DEADLINE_S,
) -> Ended:
    """Run a `quire` command to its end; fail if it has none."""
    command = [*program, *arguments]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment(extra)
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise NeverCame(f"quire {' '.join(arguments)}: no end within {timeout_s:g} s; it said:\n{said}") from None
    return Ended(run.returncode, run.stdout, run.stderr)


class Node:
    """One node: its address, its data_dir, and the process that runs it, if one does.

    `flags` are given at every start; a test may change them, and the `program` that takes them, between two.
    """

    def __init__(self, node_id: str, address: str, folder: Path, flags: Sequence[str]) -> None:
        self.node_id = node_id
        self.address = address
        self.data_dir = folder / node_id
        self.output = folder / f"{node_id}.log"
        self.flags = list(flags)
        self.program: Sequence[str] = TUNED
        self.process: subprocess.Popen[bytes] | None = None
        self.may_end = False
        """Whether its process may end by itself while something else is waited for."""
        self.shown = PLAIN.shown()
        """What calls of it show, and demand."""

    # Its process

    @property
    def arguments(self) -> list[str]:
        """The arguments of `quire` that run this node."""
        own = ["--node", self.node_id, "--listen", self.address, "--data-dir", str(self.data_dir)]
        return ["serve", *own, *self.flags]

    def start(self) -> None:
        """Start its process; returns before it listens."""
        assert self.process is None, f"{self.node_id} runs already"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCH, *self.program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
            )

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """Its process."""
        assert self.process is not None, f"{self.node_id} does not run"
        return self.process

    def kill(self) -> None:
        """SIGKILL; on return the process is gone, and with it its ports and locks."""
        self.running.kill()
        self._gone()

    def stop(self, deadline_s: float = DEADLINE_S) -> int:
        """SIGTERM; return the exit code."""
        self.running.terminate()
        return self._gone(deadline_s)

    def pause(self) -> None:
        """SIGSTOP; on return no thread of it runs any more."""
        self.running.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self.running.send_signal(signal.SIGCONT)

    def ended(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait until it ends by itself; the exit code."""
        return self._gone(deadline_s)

    def _gone(self, deadline_s: float = DEADLINE_S) -> int:
        code = self.running.wait(deadline_s)
        self.process = None
        return code

    def long_turns(self) -> list[str]:
        """The lines of its journal about turns of the loop above LONGEST_TURN_MS of processor time."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        found = ((line, LONG_TURN.search(line)) for line in lines)
        return [line for line, match in found if match and int(match["ms"]) > LONGEST_TURN_MS]

    def run_to_end(self, *flags: str, extra: Mapping[str, str] | None = None, timeout_s: float = DEADLINE_S) -> Ended:
        """Start it where it is expected to refuse, with further flags (the last of two counts); what it left."""
        return run_quire(*self.arguments, *flags, program=TUNED, extra=extra, timeout_s=timeout_s)

    def last_words(self) -> str:
        """The last lines of what its processes wrote."""
        if not self.output.exists():
            return "(it never ran)"
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-LAST_LINES:])

    # What it answers

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own. It shows the cluster's token, if there is one, unless `headers` do.

        Raises:
            Unreachable: no whole answer came within CALL_TIMEOUT_S.
        """
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=CALL_TIMEOUT_S)
        try:
            if self.shown.context is not None:
                plain = socket.create_connection((host, int(port)), CALL_TIMEOUT_S)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # As http.client does.
                connection.sock = self.shown.context.wrap_socket(plain, server_hostname=self.shown.server_name)
            connection.request(method, path, body, {**self.shown.headers, **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.headers.items()), answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.node_id}: {method} {path}: {error!r}") from error
        finally:
            connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """A document that must be there. Raises Unreachable."""
        reply = self.call("GET", path)
        assert reply.status == 200, f"{self.node_id}: GET {path}: {reply.status} {reply.body!r}"
        return reply.document

    def status(self) -> dict[str, Any]:
        """`/status`. Raises Unreachable."""
        return self.get("/status")

    def alarms(self) -> list[str]:
        """Its alarms, but for where it listens: some tests have proxies before their nodes. Raises Unreachable."""
        return [alarm for alarm in self.status()["alarms"] if f"listens on {self.address}," not in alarm]

    def is_ready(self) -> bool:
        """Whether `/readyz` says so. Raises Unreachable."""
        return self.call("GET", "/readyz").status == 200

    def apply(self, *commands: list[Any]) -> dict[str, Any]:
        """Apply a batch that must be acknowledged: {"index", "epoch", "results"}. Raises Unreachable."""
        body = json.dumps({"commands": commands}).encode()
        reply = self.call("POST", "/commands", body, {"Content-Type": "application/json"})
        assert reply.status == 200, f"{self.node_id}: POST /commands: {reply.status} {reply.body!r}"
        return reply.document

    def query(self, request: Any) -> Any:
        """What the machine answers to a linearizable query. Raises Unreachable."""
        body = json.dumps({"request": request}).encode()
        reply = self.call("POST", "/query", body, {"Content-Type": "application/json"})
        assert reply.status == 200, f"{self.node_id}: POST /query: {reply.status} {reply.body!r}"
        return reply.document["answer"]

    def local_state(self) -> dict[str, Any]:
        """What this node itself has applied: {"state", "applied_index", "digest"}. Raises Unreachable."""
        return self.get("/state?consistency=local")

    def raw_frames(self, from_index: int = 0, to_index: int | None = None) -> bytes:
        """The committed frames from a frame boundary to another (by default to the end), as in the files."""
        parts: list[bytes] = []
        index, end = from_index, self.get("/index_bounds")["highest_index"] if to_index is None else to_index
        while index < end:
            path = f"/records?from={index}&to={end}&max_bytes={RANGE_BYTES}"
            reply = self.call("GET", path, headers={"Accept": RAW_FRAMES})
            assert reply.status == 200, f"{self.node_id}: {reply.status} {reply.body!r}"
            assert reply.body, f"{self.node_id} gives nothing from {index}, below {end}"
            parts.append(reply.body)
            index = int(reply.headers["Quire-Next-Index"])
        assert index == max(from_index, end), f"{end} is no frame boundary: the frame before it ends at {index}"
        return b"".join(parts)


class Cluster:
    """Nodes that know one another. None runs before `start`; all are gone after `close`."""

    def __init__(
        self,
        folder: Path,
        node_ids: Sequence[str] = THREE,
        *,
        initial: Sequence[str] = (),
        flags: Sequence[str] = (),
        locked: bool = False,
    ) -> None:
        """With `locked`, nodes speak TLS and ask for tokens. The cluster's own calls show one that may do all."""
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(len(node_ids))
        addresses = {node_id: f"{HOST}:{port}" for node_id, port in zip(node_ids, ports, strict=True)}
        members = ",".join(f"{node_id}={address}" for node_id, address in addresses.items())
        self.flags = [*CALM, *CHECKED, *flags]
        shared = (
            ["--members", members, *self.flags] if len(node_ids) > 1 else self.flags
        )  # The last of two flags counts.
        if initial:
            shared += ["--initial-members", ",".join(initial)]
        self.nodes = {node_id: Node(node_id, address, folder, shared) for node_id, address in addresses.items()}
        self.files: LockedFiles | None = None
        self.caller: CallerFiles = PLAIN
        """What clients need."""
        if locked:
            self.files = locked_files(folder / "locked", node_ids)
            self.caller = self.files.caller()
            for node in self:
                node.flags += self.files.flags(node.node_id)
                node.shown = self.caller.shown()

    def __getitem__(self, node_id: str) -> Node:
        return self.nodes[node_id]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def make_joining(self, node_id: str, at: Node) -> Node:
        """A node that joins by way of another, once it is started and added. It ends by itself when it is removed."""
        (port,) = free_ports(1)
        folder = next(iter(self)).data_dir.parent
        node = Node(node_id, f"{HOST}:{port}", folder, ["--join", at.address, *self.flags])
        node.may_end = True
        self.nodes[node_id] = node
        return node

    @property
    def leader(self) -> Node:
        """The node that leads after `start`, whichever was elected."""
        return self.nodes[LEADER]

    @property
    def followers(self) -> list[Node]:
        """All others."""
        return [node for node in self if node.node_id != LEADER]

    @property
    def servers(self) -> str:
        """Every node, as a client takes them."""
        return ",".join(node.address for node in self)

    # Life

    def start(self, *node_ids: str) -> None:
        """Start these nodes (all, if none is named), wait until each says that it is ready, and let `leader` lead.

        Who is elected is chance; tests that begin from one leader need no other to begin from.
        """
        started = [self.nodes[node_id] for node_id in node_ids or self.nodes]
        for node in started:
            node.start()
        self.wait_until_ready(*started)
        if self.leader.process is not None:
            self.lead(LEADER)

    def wait_until_ready(self, *nodes: Node) -> None:
        """Wait until these nodes (all that run, if none is named) say that they are."""
        for node in nodes or [node for node in self if node.process is not None]:
            self.wait_until(f"{node.node_id} is ready", node.is_ready)

    def lead(self, node_id: str) -> None:
        """Move leadership to a node, and wait until it serves and all that run follow it."""
        node, body = self.nodes[node_id], json.dumps({"target": node_id}).encode()

        def moved() -> bool:
            return node.call("POST", "/admin/transfer", body, {"Content-Type": "application/json"}).status == 200

        self.wait_until(f"leadership moves to {node_id}", moved)
        self.wait_until(f"{node_id} serves", lambda: node.status()["serving"])
        self.wait_until_ready()

    def start_again(self, node: Node) -> None:
        """Start a node and wait until it is ready; who leads is left alone."""
        node.start()
        self.wait_until_ready(node)

    def elected(self, but: Node | None = None) -> Node:
        """The node that leads and serves, `but` not this one (which may be paused); waits until there is one."""

        def serving() -> Node | None:
            for node in self:
                if node.process is not None and node is not but:
                    with suppress(Unreachable):
                        if node.status()["serving"]:
                            return node
            return None

        return self.wait_until("somebody leads", serving)

    def stop(self, *node_ids: str) -> None:
        """Stop these nodes (all that run, if none is named) one after the other; each must end with 0."""
        for node in self:
            if node.process is not None and (not node_ids or node.node_id in node_ids):
                code = node.stop()
                assert code == 0, f"{node.node_id} ended with {code}:\n{node.last_words()}"

    def kill_all(self) -> None:
        """SIGKILL to every node, as much at once as one process can."""
        running = [node for node in self if node.process is not None]
        for node in running:
            node.running.kill()
        for node in running:
            node.kill()

    def close(self) -> None:
        """Kill whatever still runs, paused or not. Says nothing of how it went."""
        for node in self:
            if node.process is not None:
                with suppress(ProcessLookupError):
                    node.process.kill()
                node.process.wait(DEADLINE_S)
                node.process = None

    # Waiting

    def wait_until(self, what: str, condition: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
        """The first true value of the condition. A node that does not answer makes it false for now.

        Raises:
            NeverCame: not within `deadline_s`, or a node that runs ended meanwhile.
        """
        end = time.monotonic() + deadline_s
        with self._watched() as watch:
            while True:
                seen: object
                try:
                    seen = value = condition()
                except Unreachable as error:
                    seen = str(error)
                else:
                    if value:
                        return value
                if time.monotonic() > end:
                    raise NeverCame(f"{what}: not within {deadline_s:g} s, last seen {seen!r}\n{self.describe()}")
                watch(what)

    @contextmanager
    def _watched(self) -> Generator[Callable[[str], None]]:
        """A function that waits for POLL_S, or raises NeverCame as soon as a node ends that ran."""
        ends = {os.pidfd_open(node.process.pid): node for node in self if node.process is not None and not node.may_end}

        def watch(what: str) -> None:
            # A process that was killed on purpose meanwhile is no longer the node's.
            ended, _, _ = select.select(list(ends), [], [], POLL_S)
            for node in (ends.pop(descriptor) for descriptor in _closed(ended)):
                if node.process is not None and (code := node.process.poll()) is not None:
                    raise NeverCame(f"{what}: {node.node_id} ended with {code} first\n{node.last_words()}")

        try:
            yield watch
        finally:
            for descriptor in ends:
                os.close(descriptor)

    def wait_for_equal(self, *node_ids: str, deadline_s: float = DEADLINE_S) -> dict[str, dict[str, Any]]:
        """What `wait_for_equal_digests` does; and what they answer must be equal, too."""
        statuses = self.wait_for_equal_digests(*node_ids, deadline_s=deadline_s)
        states = [self.nodes[node_id].local_state() for node_id in node_ids or self.nodes]
        assert all(state == states[0] for state in states), f"answers differ: {states}"
        return statuses

    def wait_for_equal_digests(self, *node_ids: str, deadline_s: float = DEADLINE_S) -> dict[str, dict[str, Any]]:
        """The statuses of these nodes (all, if none is named) once each holds and has applied all that the leader has.

        Their digests must be equal then.
        """
        nodes = [self.nodes[node_id] for node_id in node_ids or self.nodes]
        indices = ("highest_index", "durable_index", "commit_index", "applied_index")

        def settled() -> dict[str, dict[str, Any]] | None:
            statuses = {node.node_id: node.status() for node in [self.leader, *nodes]}
            end = statuses[LEADER].get("highest_index")
            reached = all(status.get(name) == end for status in statuses.values() for name in indices)
            return statuses if reached else None

        statuses = self.wait_until(
            f"{', '.join(node.node_id for node in nodes)} hold and have applied what the leader has",
            settled,
            deadline_s,
        )
        digests = {node_id: status["digest"] for node_id, status in statuses.items()}
        assert len(set(digests.values())) == 1, f"equal logs, but digests differ: {digests}"
        return statuses

    def check(self, history: History, model: Model, *node_ids: str) -> Replay:
        """The verdict on these nodes (all, if none is named), whose logs must be whole. Raises Wrong."""
        self.wait_for_equal(*node_ids)
        nodes = [self.nodes[node_id] for node_id in node_ids or self.nodes]
        logs = {node.node_id: node.raw_frames() for node in nodes}
        return check_logs(logs, history, model, {node.node_id: node.local_state()["state"] for node in nodes})

    def check_received(self, node: Node, durable_before: int) -> None:
        """It received, since it connected, what the leader has after its match_index: not a byte more or less."""
        stream = node.status()["stream"]
        match_index = stream["from_index"]
        end = self.leader.status()["durable_index"]
        assert durable_before <= match_index < end, "it kept what it had acknowledged, and lacked something"
        assert stream["received_bytes"] == len(self.leader.raw_frames(match_index, end))

    def describe(self) -> str:
        """What every node says now, in short."""
        return "\n".join(f"  {node.node_id}: {_in_short(node)}" for node in self)

    def refuse_long_turns(self) -> None:
        """Assert that no turn of a node's loop took too long, once the node was ready."""
        found = [f"{node.node_id}: {line}" for node in self for line in node.long_turns()]
        assert not found, "turns of the event loop took too long:\n" + "\n".join(found)

    def last_words(self) -> str:
        """The end of every node's log."""
        return "\n".join(f"---- {node.node_id}\n{node.last_words()}" for node in self)


def _closed(descriptors: Iterable[int]) -> list[int]:
    found = list(descriptors)
    for descriptor in found:
        os.close(descriptor)
    return found


def _in_short(node: Node) -> str:
    if node.process is None:
        return "does not run"
    try:
        status = node.status()
    except Unreachable as error:
        return str(error)
    names = ("role", "epoch", "leader", "highest_index", "durable_index", "commit_index", "applied_index", "reasons")
    return ", ".join(f"{name} {status.get(name)}" for name in (*names, "link_failures"))


class Clusters:
    """What the fixture `clusters` gives: makes clusters below one folder, ends them all, and tells their last words."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Cluster] = []

    def make(
        self,
        node_ids: Sequence[str] = THREE,
        *,
        initial: Sequence[str] = (),
        flags: Sequence[str] = (),
        locked: bool = False,
    ) -> Cluster:
        """A new cluster, of which nothing runs yet. Stop the one before it first: they do not run side by side."""
        running = [node.node_id for cluster in self._made for node in cluster if node.process is not None]
        assert not running, f"another cluster still runs: {running}"
        folder = self._folder / f"cluster{len(self._made)}"
        cluster = Cluster(folder, node_ids, initial=initial, flags=flags, locked=locked)
        self._made.append(cluster)
        return cluster

    def formed(self, *, flags: Sequence[str] = (), locked: bool = False) -> Cluster:
        """A cluster of three that run and are ready."""
        cluster = self.make(flags=flags, locked=locked)
        cluster.start()
        return cluster

    def refuse_long_turns(self) -> None:
        """Assert that no turn of a node's loop took too long, once the node was ready."""
        for cluster in self._made:
            cluster.refuse_long_turns()

    def close(self) -> None:
        """Kill every process; write the nodes' last words, which pytest shows of a test that failed."""
        for cluster in self._made:
            cluster.close()
            sys.stdout.write(cluster.last_words() + "\n")


@contextmanager
def ending_clusters(folder: Path) -> Generator[Clusters]:
    """`Clusters`, ended whatever happens inside."""
    clusters = Clusters(folder)
    try:
        yield clusters
    finally:
        clusters.close()
    clusters.refuse_long_turns()
