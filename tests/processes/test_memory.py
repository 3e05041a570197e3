"""How far a node's memory grows under overload: real processes and sockets, and the kernel's figures."""

import asyncio
import re
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.cluster.http.admission.slow_callers import REQUESTS_HELD_BYTES, RESPONSES_HELD_BYTES
from quire.log import pack
from quire.replication.address import host_and_port
from quire.replication.core import CoreOptions
from tests import tuned
from tests.processes.cluster import RAW_FRAMES, Clusters, Node

MIB = 1 << 20
DEADLINE_S = 120.0
SLACK_BYTES = 120 * MIB  # What the allocator, a frame that is being written and the buffers of sockets take.
FALSES = 1_000_000  # A byte each as msgpack, six as JSON.
PATIENT = ("--machine", "log", "--election-timeout-ms", "60000")


def peak_bytes(node: Node) -> int:
    """The most memory that a node's process ever had."""
    status = Path(f"/proc/{node.running.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+([0-9]+) kB", status)
    assert found
    return int(found[1]) << 10


async def posted(node: Node, body: bytes) -> tuple[int, bool]:
    """The status of a `POST /records` by a connection of its own, and whether the answer says when to come back.

    (0, False) of one that was cut off: it sent nothing for a second while others needed its room.
    """
    reader, writer = await asyncio.open_connection(*host_and_port(node.address))
    try:
        head = f"POST /records HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        return int(answer.split()[1]), b"\r\nRetry-After: " in answer
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, False
    finally:
        writer.transport.abort()


async def all_posted(node: Node, body: bytes, count: int) -> Counter[tuple[int, bool]]:
    async with asyncio.timeout(DEADLINE_S):
        return Counter(await asyncio.gather(*(posted(node, body) for _ in range(count))))


@pytest.mark.full
@pytest.mark.parametrize(("asked", "paused"), [("n1", ("n2", "n3"))], ids=["leader"])
def test_excess_writes_are_refused_and_memory_stays_bounded(
    clusters: Clusters, asked: str, paused: tuple[str, ...]
) -> None:
    cluster = clusters.formed(flags=[*PATIENT, *tuned.flags(request_timeout_ms=2000)])
    node, body = cluster[asked], bytes(7 * MIB)
    assert asyncio.run(all_posted(node, body, 2)) == {(200, False): 2}
    before = peak_bytes(node)
    for node_id in paused:
        cluster[node_id].pause()

    answers = asyncio.run(all_posted(node, body, 120))

    grown = peak_bytes(node) - before
    bound = REQUESTS_HELD_BYTES + CoreOptions().waiting_bytes + CoreOptions().uncommitted_bytes + SLACK_BYTES
    assert set(answers) <= {(429, True), (503, True), (504, False), (0, False)}, answers
    assert answers[(429, True)] > 60
    assert grown < bound < 120 * len(body) // 2, f"{grown >> 20} MiB"
    for node_id in paused:
        cluster[node_id].resume()
    cluster.wait_until("writes are accepted again", lambda: node.call("POST", "/records", b"1").status == 200)


@pytest.mark.soak
@pytest.mark.parametrize("asked", ["n3"], ids=["follower"])
def test_stalled_tails_hold_bounded_memory_and_delay_nobody_else(clusters: Clusters, asked: str) -> None:
    cluster = clusters.formed(flags=PATIENT)
    node, record = cluster[asked], pack([[False] * FALSES])
    replies = [
        cluster.leader.call("POST", "/records", record, {"Content-Type": "application/msgpack"}) for _ in range(9)
    ]
    assert {reply.status for reply in replies} == {200}
    first = replies[0].document["write_index"]
    cluster.wait_for_equal()
    for accept in (RAW_FRAMES, "application/x-ndjson"):
        assert node.call("GET", f"/records?from={first}", headers={"Accept": accept}).status == 200
    before, epoch = peak_bytes(node), node.status()["epoch"]

    with ExitStack() as opened:
        for number in range(160):
            caller = opened.enter_context(socket.socket())
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.connect(host_and_port(node.address))
            accept = RAW_FRAMES if number % 2 else "application/x-ndjson"
            request = f"GET /records?from={first}&wait_ms=10000 HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
            caller.sendall(request.encode())
            if number % 8 == 7:
                written = node.call("POST", "/records", b"x").document["write_index"]
                told = node.call("GET", f"/records/{written}")
                seen = node.call("GET", f"/records?from={written}&wait_ms=10000")
                assert (told.status in (200, 404), seen.status) == (True, 200)
        grown = peak_bytes(node) - before

    assert grown < RESPONSES_HELD_BYTES + SLACK_BYTES < 160 * 6 * MIB, f"{grown >> 20} MiB"
    assert node.status()["epoch"] == epoch, "nobody started an election"
