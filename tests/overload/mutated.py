"""Mutated messages to real nodes: half from a proven peer, half from clients, beside a well-behaved client.

The third member's process has ended. The peer has its disk, its address and the cluster's secret, and dials the two
others; so do nodes of no record that know the secret. `Removal` and `CrcMismatch` are left out: a member is believed
when it says these, and they halt a node (rules 8 and 15). Each half is a process of its own: `python -m
tests.overload.mutated peer|client PLAN`, which prints what came of its messages as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

import quire
from quire.cluster.client import ClientError
from quire.cluster.serve.journal import LineRate, rate_of
from quire.log import FEATURES
from quire.replication.address import host_and_port
from quire.replication.core.messages import CrcMismatch, Open, Promise, Removal
from quire.replication.net.hello import LINK_FAILURES, PeerInfo
from quire.replication.net.sockets import peer_session
from quire.replication.net.wire import BadMessage, decode_peer, decode_stream, encode
from tests.cluster.malformed.asked import NODE, changes_of_request
from tests.cluster.malformed.case import Ask
from tests.cluster.malformed.changed import changes_of_bytes, changes_of_values
from tests.cluster.malformed.harmless import GROWTH_BYTES
from tests.cluster.malformed.peers import View, changes_of, peer_examples, stream_examples
from tests.cluster.malformed.stranger import Line, Stranger
from tests.cluster.malformed.wire import (
    BINARY,
    BODIES,
    FRAMES,
    GOOD,
    HANDSHAKE,
    LINES,
    MESSAGES,
    TAKEN,
    changed_headers,
    frame,
)
from tests.processes.cluster import DEADLINE_S, Cluster, Clusters, environment
from tests.processes.crowd import Crowd
from tests.processes.meter import rank, resident_bytes
from tests.verdict.bounds import failures
from tests.verdict.verdict import Wrong

SECRET = "a secret that only peers know"
FLAGS = ("--log-format", "json", "--election-timeout-ms", "1000")
REMOVAL = ("DELETE", "/members/n2")
BELIEVED = frozenset({Removal, CrcMismatch})
OUTSIDERS = 3
LINES_EACH = 3
"""Connections of each of them to each node. A node has places for 64 hellos."""
AT_ONCE = 24
"""Requests under way at the same time."""
FRESH = 10_000
"""Messages that are made from what a node stands at; then it is asked again."""
PAUSE_S = 0.1
WINDOW_S = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What one half does: how many messages, from which seed, to which nodes, and as which member."""

    count: int
    seed: int
    servers: list[str]
    cluster_id: str
    disk_id: str
    address: str


# The peer


class Peer:
    """The third member, or a node of no record: it says one message wrong after the other."""

    def __init__(self, stranger: Stranger, target: str, address: str) -> None:
        self._stranger, self._target, self._address = stranger, target, address
        self._line: Line | None = None
        self._open = AsyncExitStack()

    async def say(self, purpose: str, opening: bytes | None, data: bytes) -> str:
        """Send a message; whether the node has taken or refused it."""
        if purpose != "peer" or self._line is None:
            await self.hang_up()
            dialled = self._stranger.dialled(self._address, self._target, purpose)
            self._line = await self._open.enter_async_context(dialled)
            if opening is not None:
                await self._line.socket.send_bytes(opening)
        taken = await self._line.say(data)
        if not taken or purpose != "peer":
            await self.hang_up()
        return "taken" if taken else "refused"

    async def hang_up(self) -> None:
        self._line = None
        await self._open.aclose()


def peer_messages(view: View, chance: random.Random) -> Iterator[tuple[str, bytes | None, bytes]]:
    """(purpose, what is said before, message), in any order, for ever."""
    opening = encode(stream_examples(view)[Open][-1])
    found: list[tuple[str, bytes | None, bytes]] = []
    for kind, examples in peer_examples(view).items():
        if kind not in BELIEVED:
            found += [("peer", None, change.data) for each in examples for change in changes_of(each, chance)]
    for kind, streamed in stream_examples(view).items():
        if kind not in BELIEVED:
            before = None if kind is Open else opening
            found += [("stream", before, change.data) for each in streamed for change in changes_of(each, chance)]
    asked = changes_of_values([view.tail, None], ("index", "number"), chance)
    found += [("snapshot", None, change.data) for change in asked]
    while True:
        message = chance.choice(found)
        if not _is_believed(*message):
            yield message


def _is_believed(purpose: str, opening: bytes | None, data: bytes) -> bool:
    decode = decode_stream if purpose == "stream" else decode_peer
    with suppress(BadMessage):
        return type(decode(data)) in BELIEVED
    return False


async def view_of(address: str, info: PeerInfo) -> View:
    """What the node there says of itself."""
    status = json.loads((await answered(address, request(Ask("GET", "/status"))))[1])
    _, genesis = await answered(address, request(Ask("GET", "/admin/genesis")))
    epoch, tail = status["epoch"], status["highest_index"]
    promise = Promise(epoch, status["leader"] or "", 1)
    epochs = ((0, 0), (1, 1), (epoch, tail))
    digest = bytes.fromhex(status["digest"])
    return View(info.node_id, info.incarnation, promise, epochs, tail, epoch, status["clock"], 0, genesis, digest)


async def speak_as_peer(plan: Plan) -> Counter[str]:
    """Send the messages; what came of them."""
    chance, outcomes = random.Random(f"{plan.seed} peer"), Counter[str]()
    disk, ids = bytes.fromhex(plan.disk_id), bytes.fromhex(plan.cluster_id)
    member = PeerInfo(ids, "n3", disk, chance.getrandbits(60), plan.address, FEATURES)
    outsiders = [replace(member, node_id=f"n{9 + number}", disk_id=chance.randbytes(16)) for number in range(OUTSIDERS)]
    infos = [member, *outsiders]
    places = LINES_EACH * [(info, f"n{at}", address) for info in infos for at, address in enumerate(plan.servers, 1)]
    async with peer_session() as session:
        peers = [Peer(Stranger(session, info, SECRET.encode()), *where) for info, *where in places]
        left = plan.count
        while left:
            view = await view_of(chance.choice(plan.servers), member)
            made, some = peer_messages(view, chance), min(left, FRESH)
            messages = iter([next(made) for _ in range(some)])
            await asyncio.gather(*[_speak(peer, messages, outcomes) for peer in peers])
            left -= some
        await asyncio.gather(*[peer.hang_up() for peer in peers])
    return outcomes


async def _speak(peer: Peer, messages: Iterator[tuple[str, bytes | None, bytes]], outcomes: Counter[str]) -> None:
    for purpose, opening, data in messages:
        try:
            outcomes[await peer.say(purpose, opening, data)] += 1
        except LINK_FAILURES as error:
            outcomes[f"not sent: {type(error).__name__}"] += 1
            await peer.hang_up()


# The client


def request(ask: Ask) -> bytes:
    """A request as bytes."""
    lines = [f"{ask.method} {ask.path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in ask.headers.items()]
    lines += [] if ask.content_type is None else [f"Content-Type: {ask.content_type}"]
    lines += [] if ask.body is None else [f"Content-Length: {len(ask.body)}"]
    return "\r\n".join([*lines, "\r\n"]).encode() + (ask.body or b"")


async def answered(address: str, sent: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer, on a connection of its own."""
    reader, writer = await asyncio.open_connection(*host_and_port(address), limit=1 << 18)
    try:
        writer.write(sent)
        status, body, _ = await read_answer(reader, is_head=sent.startswith(b"HEAD"))
        return status, body
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, *, is_head: bool = False) -> tuple[int, bytes, bool]:
    """The status, the body, and whether another request may follow. A long body, in chunks, is not read."""
    async with asyncio.timeout(DEADLINE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            return await read_answer(reader, is_head=is_head)
        lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
        headers = {name: value.strip() for name, _, value in lines}
        body = b"" if is_head else await reader.readexactly(int(headers.get(b"content-length", 0)))
        goes_on = b"content-length" in headers and headers.get(b"connection") != b"close"
        return int(head.split()[1]), body, goes_on


class Kept:
    """Connections that are used again, one to each node."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def status(self, address: str, sent: bytes) -> int:
        """The status of the answer to a request that is HTTP."""
        if address not in self._open:
            self._open[address] = await asyncio.open_connection(*host_and_port(address), limit=1 << 18)
        reader, writer = self._open[address]
        goes_on = False
        try:
            writer.write(sent)
            status, _, goes_on = await read_answer(reader, is_head=sent.startswith(b"HEAD"))
            return status
        finally:
            if not goes_on:
                del self._open[address]
                writer.close()

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()


class Sent(NamedTuple):
    """A request, and what follows on the stream that it opens. Only after one that is HTTP may another one follow."""

    request: bytes
    streamed: bytes | None = None
    is_http: bool = False


def client_messages(chance: random.Random) -> Iterator[Sent]:
    """Requests in any order, for ever."""
    asks = [ask for known in NODE for _, ask in changes_of_request(known, chance)]
    found = [Sent(request(ask), is_http=True) for ask in asks if (ask.method, ask.path) != REMOVAL]
    found += [Sent(b"".join(raw.pieces)) for raw in (*BODIES, *LINES, *TAKEN)]
    headers = [Sent(sent) for _, sent in changed_headers()]
    opening = HANDSHAKE % b"1"
    streamed = [Sent(opening, case.sent) for case in (*MESSAGES, *FRAMES)]
    streamed += [Sent(opening, frame(BINARY, data)) for _, data in changes_of_bytes(GOOD, chance)]
    while True:
        yield chance.choice(chance.choice((found, found, headers, streamed)))


async def send_as_client(plan: Plan) -> Counter[str]:
    """Send the requests; the statuses of the answers."""
    chance, outcomes = random.Random(f"{plan.seed} client"), Counter[str]()
    made = client_messages(chance)
    messages = iter([(chance.choice(plan.servers), next(made)) for _ in range(plan.count)])
    await asyncio.gather(*[_send(messages, outcomes) for _ in range(AT_ONCE)])
    return outcomes


async def _send(messages: Iterator[tuple[str, Sent]], outcomes: Counter[str]) -> None:
    with closing(Kept()) as kept:
        for address, sent in messages:
            try:
                outcome = str(await _outcome(kept, address, sent))
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                outcome = type(error).__name__
            outcomes[outcome] += 1
            if outcome in ("500", "502", "TimeoutError"):
                sys.stderr.write(f"{outcome}: {sent.request[:400]!r} {sent.streamed!r}\n")


async def _outcome(kept: Kept, address: str, sent: Sent) -> int:
    if sent.is_http:
        return await kept.status(address, sent.request)
    if sent.streamed is None:
        return (await answered(address, sent.request))[0]
    reader, writer = await asyncio.open_connection(*host_and_port(address))
    try:
        writer.write(sent.request)
        status, _, _ = await read_answer(reader)
        if status == 101:
            writer.write(sent.streamed)
            async with asyncio.timeout(DEADLINE_S):
                await reader.read(1)
        return status
    finally:
        writer.close()


# Beside them


class Patient(Crowd):
    """A well-behaved client: one command after the other."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._servers = cluster.servers
        self.waits_s: list[float] = []
        self.failed: Counter[str] = Counter()

    async def _all(self) -> None:
        async with quire.connect(self._servers.split(","), timeout_s=30.0) as client:
            while not self.is_ending:
                began = time.monotonic()
                try:
                    await client.apply(["add", 1])
                except ClientError as error:
                    self.failed[f"{type(error).__name__}: {error}"[:160]] += 1
                self.waits_s.append(time.monotonic() - began)
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), PAUSE_S)


def formed(clusters: Clusters, folder: Path) -> Cluster:
    """Three nodes with a secret."""
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return clusters.formed(flags=[*FLAGS, "--peer-secret-file", str(file)])


def run(cluster: Cluster, count: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Send so many messages, half of them before memory is measured first; the figures, and what is wrong."""
    status = cluster["n3"].status()
    cluster.stop("n3")
    nodes = [cluster["n1"], cluster["n2"]]
    servers = [node.address for node in nodes]
    began, outcomes, sizes = time.monotonic(), dict[str, Counter[str]](), list[list[int]]()
    with Patient(cluster) as patient:
        for part in range(2):
            plan = Plan(
                count // 4, 2 * seed + part, servers, status["cluster_id"], status["disk_id"], cluster["n3"].address
            )
            for half, counted in _sent(cluster, plan).items():
                outcomes[half] = outcomes.get(half, Counter()) + counted
            sizes.append([resident_bytes(node.running.pid) for node in nodes])
        patient.end()
    journals = {node.node_id: node.output.read_text(errors="replace").splitlines() for node in nodes}
    grown = {node.node_id: after - before for node, before, after in zip(nodes, *sizes, strict=True)}
    figures = {
        "seconds": round(time.monotonic() - began, 1),
        **{half: dict(counted.most_common()) for half, counted in outcomes.items()},
        "grown_kib": {node_id: size >> 10 for node_id, size in grown.items()},
        "client": {
            "commands": len(patient.waits_s),
            "p50_s": round(rank(patient.waits_s, 0.5), 3),
            "p99_s": round(rank(patient.waits_s, 0.99), 3),
            "failed": dict(patient.failed),
        },
        "lines": {node_id: dict(Counter(map(_kind_of, lines)).most_common(12)) for node_id, lines in journals.items()},
    }
    wrong = failures(
        partial(_check_answers, outcomes, count),
        *(partial(_check_journal, node_id, lines) for node_id, lines in journals.items()),
        partial(_check_growth, grown),
        partial(cluster.wait_until_ready, *nodes),
    )
    return figures, wrong


def _sent(cluster: Cluster, plan: Plan) -> dict[str, Counter[str]]:
    """What came of the messages of both halves, each a process."""
    started = {
        half: subprocess.Popen(
            [sys.executable, "-m", "tests.overload.mutated", half, json.dumps(asdict(plan))],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for half in ("peer", "client")
    }
    try:
        cluster.wait_until(
            "all messages are sent",
            lambda: all(process.poll() is not None for process in started.values()),
            2 * DEADLINE_S + plan.count / 10,
        )
        return {half: Counter(json.loads(process.communicate()[0])) for half, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait(DEADLINE_S)


def _kind_of(line: str) -> str:
    try:
        return str(json.loads(line)["event"])
    except (ValueError, KeyError, TypeError):
        return f"no line of a journal: {line[:80]}"


def _check_answers(outcomes: dict[str, Counter[str]], count: int) -> None:
    faults = {status: outcomes["client"][status] for status in ("500", "502") if outcomes["client"][status]}
    if faults:
        raise Wrong(f"answers that are faults: {faults}")
    delivered = outcomes["peer"]["taken"] + outcomes["peer"]["refused"]
    answers = sum(number for status, number in outcomes["client"].items() if status.isdigit())
    if min(delivered, answers) < 0.4 * count:
        raise Wrong(f"{delivered} messages of a peer and {answers} of clients arrived, of {count}")


def _check_journal(node_id: str, lines: list[str]) -> None:
    """No traceback, and in each window no more lines of a kind than the journal's rate for it. Raises Wrong."""
    if faulty := [line[:300] for line in lines if "Traceback" in line]:
        raise Wrong(f"{node_id} logged {len(faulty)} tracebacks: {faulty[0]}")
    windows: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for line in lines:
        with suppress(ValueError, KeyError):
            document = json.loads(line)
            second = int(datetime.fromisoformat(document["timestamp"]).timestamp())
            log_name = document.get("log", "")
            windows[log_name, document["event"], document["who"] if log_name else ""][second // WINDOW_S] += 1
    above = {
        kind: max(counts.values())
        for kind, counts in windows.items()
        if max(counts.values()) > _most_in_window(rate_of(*kind[:2])) + 1
    }
    if above:
        raise Wrong(f"{node_id} logged too many lines of a kind in {WINDOW_S} s: {above}")


def _most_in_window(rate: LineRate) -> float:
    return rate.burst + rate.per_second * WINDOW_S


def _check_growth(grown: dict[str, int]) -> None:
    if max(grown.values()) > GROWTH_BYTES:
        raise Wrong(f"memory grew by {grown} bytes, more than {GROWTH_BYTES}")


def main() -> None:
    """`python -m tests.overload.mutated peer|client PLAN`, beside the nodes."""
    half, plan = sys.argv[1], Plan(**json.loads(sys.argv[2]))
    outcomes = uvloop.run(speak_as_peer(plan) if half == "peer" else send_as_client(plan))
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
