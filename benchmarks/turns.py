"""The longest turn of the event loop, by kind of work: `python -m benchmarks.turns`, in a checkout.

Each kind of work has a new cluster of three real nodes. The figures are the nodes' own, the metric
`quire_loop_turn_longest_seconds`: processor time since the node was ready, less up to 10 ms.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from quire.cluster.serve.collector import FULL_S
from quire.log import pack
from quire.replication.address import host_and_port
from tests.processes.cluster import Cluster, Node, Unreachable, run_quire

MIB = 1 << 20
SECONDS = 5.0
CALLERS = 32
PASSES = 5
VALUE_BYTES = 60_000
VALUES = 4_000
STREAMED = 200_000
A_BATCH = 15
SETTLED_S = 1.0
"""Longer than a node needs to notice that it is ready, or that a turn is over."""
LONGEST = re.compile(r'^quire_loop_turn_longest_seconds\{what="(?P<what>.*)"\} (?P<seconds>\S+)$', re.MULTILINE)
JSON = {"Content-Type": "application/json"}
MSGPACK = {"Content-Type": "application/msgpack"}
WAITING_READERS = 1_000


class Kind(NamedTuple):
    """A kind of work, its size in words, and what does it; `work` returns what is to be said of how it went."""

    name: str
    size: str
    work: Callable[[Cluster], str]
    machine: str = "kv"


def post(cluster: Cluster, body: bytes) -> str:
    """Send one body PASSES times; the statuses of the answers."""
    return said([cluster.leader.call("POST", "/commands", body, JSON).status for _ in range(PASSES)])


def said(statuses: list[int]) -> str:
    """How many answers had each status."""
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


def body_of(command: list[Any], most: int) -> bytes:
    """A request of at most `most` times the command, and less than 1 MiB."""
    text = json.dumps(command)
    number = min(most, (MIB - 100) // (len(text) + 2))
    return json.dumps({"commands": [command] * number}).encode()


def idle(_: Cluster) -> str:
    """Nothing."""
    time.sleep(SECONDS)
    return ""


def singles(cluster: Cluster) -> str:
    """Callers that each send one command after another."""
    end, body = time.monotonic() + SECONDS, body_of(["incr", "n"], 1)

    def call(_: int) -> list[int]:
        statuses = []
        while time.monotonic() < end:
            statuses.append(cluster.leader.call("POST", "/commands", body, JSON).status)
        return statuses

    with ThreadPoolExecutor(CALLERS) as callers:
        return said([status for statuses in callers.map(call, range(CALLERS)) for status in statuses])


def most_commands(cluster: Cluster) -> str:
    """As many commands as a request may have."""
    return post(cluster, body_of(["incr", "n"], 10_000))


def containers(cluster: Cluster) -> str:
    """One command of many empty arrays."""
    return post(cluster, json.dumps({"commands": [[[]] * 31_000]}).encode())


def wide_integers(cluster: Cluster) -> str:
    """One command of many long integers."""
    return post(cluster, json.dumps({"commands": [[2**64 - 1] * 47_000]}).encode())


def quotes(cluster: Cluster) -> str:
    """One command of escaped quotes."""
    return post(cluster, json.dumps({"commands": ['"' * 500_000]}).encode())


def gets(cluster: Cluster) -> str:
    """A batch whose results are as large as a node answers, about."""
    cluster.leader.apply(["put", "k", "x" * 800])
    return post(cluster, body_of(["get", "k"], 10_000))


def stream(cluster: Cluster) -> str:
    """Commands over one stream, with as many batches in flight as its window holds."""
    with tempfile.NamedTemporaryFile("w", suffix=".ndjson") as file:
        file.writelines('["incr", "n"]\n' for _ in range(STREAMED))
        file.flush()
        ended = run_quire("load", file.name, "--server", cluster.leader.address, "--batch", "1000")
    return f"exit code {ended.code}"


def fill(cluster: Cluster) -> str:
    """Fill a large state."""
    filled = []
    for first in range(0, VALUES, A_BATCH):
        puts = [["put", f"k{number}", "x" * VALUE_BYTES] for number in range(first, first + A_BATCH)]
        filled.append(cluster.leader.call("POST", "/commands", json.dumps({"commands": puts}).encode(), JSON).status)
    return f"puts {said(filled)}"


def large_state(cluster: Cluster) -> str:
    """Fill a large state, then take a snapshot and ask every node for its status."""
    filled = fill(cluster)
    taken = cluster.leader.call("POST", "/admin/snapshot").status
    asked = [node.call("GET", "/status").status for node in cluster for _ in range(PASSES)]
    return f"{filled}; snapshot {taken}; status {said(asked)}"


def level(cluster: Cluster, node: Node) -> None:
    """Wait until a node has applied all that the leader has."""
    end = cluster.elected().status()["highest_index"]
    cluster.wait_until(f"{node.node_id} is level", lambda: node.status()["applied_index"] >= end)


def truncation(cluster: Cluster) -> str:
    """A leader that hears nobody appends, pauses, and cuts off what it appended when it finds another leader."""
    leader, followers, statuses = cluster.leader, cluster.followers, list[int]()
    for node in followers:
        node.pause()
    body = bytes(4 * MIB)
    with ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(leader.call, "POST", "/records", body) for _ in range(CALLERS // 2)]
        for called in calling:
            with suppress(Unreachable):
                statuses.append(called.result().status)
    appended = leader.get("/status")["highest_index"]
    leader.pause()
    for node in followers:
        node.resume()
    cluster.elected(but=leader)
    leader.resume()
    level(cluster, leader)
    return f"{said(statuses)}; cut from {appended} records to {leader.get('/status')['highest_index']}"


def raw_records(cluster: Cluster) -> str:
    """Callers that each send a raw record of 7 MiB, all at once."""
    with ThreadPoolExecutor(CALLERS) as callers:
        body = bytes(7 * MIB)
        return said(list(callers.map(lambda _: cluster.leader.call("POST", "/records", body).status, range(CALLERS))))


def small_values(cluster: Cluster) -> str:
    """One record of very many small values."""
    record = pack([[False] * 1_000_000])
    replies = [cluster.leader.call("POST", "/records", record, MSGPACK).status for _ in range(PASSES)]
    return said(replies)


def nothing_matches(cluster: Cluster) -> str:
    """Filtered reads that go through a long log and find next to nothing."""
    filled = [cluster.leader.call("POST", "/commands", body_of(["incr", "n"], 10_000), JSON).status for _ in range(30)]
    read = [node.call("GET", "/records?shard=65535/65536").status for node in cluster for _ in range(PASSES)]
    return f"commands {said(filled)}; reads {said(read)}"


def readers(cluster: Cluster) -> str:
    """Readers that wait at the end of the log, woken by one record."""
    leader = cluster.leader
    end = leader.get("/index_bounds")["highest_index"]

    async def read() -> int:
        reader, writer = await asyncio.open_connection(*host_and_port(leader.address))
        writer.write(
            f"GET /records?from={end}&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        return int(answer.split()[1])

    async def read_all() -> list[int]:
        reading = [asyncio.create_task(read()) for _ in range(WAITING_READERS)]
        await asyncio.sleep(SETTLED_S)
        await asyncio.to_thread(leader.apply, ["incr", "n"])
        return await asyncio.gather(*reading)

    return said(asyncio.run(read_all()))


def restart(cluster: Cluster) -> str:
    """A follower that starts again and has a long log to apply."""
    filled = [cluster.leader.call("POST", "/commands", body_of(["incr", "n"], 10_000), JSON).status for _ in range(40)]
    cluster.wait_for_equal()
    node = cluster.followers[0]
    node.kill()
    cluster.start(node.node_id)
    cluster.wait_for_equal()
    return f"commands {said(filled)}"


def slow_commands(cluster: Cluster) -> str:
    """A machine that needs 200 ms for each command."""
    return said([cluster.leader.call("POST", "/commands", body_of(["count"], 4), JSON).status for _ in range(PASSES)])


def many_objects(cluster: Cluster) -> str:
    """A state of millions of lists, which grows beyond several full garbage collections."""
    filled = [cluster.leader.call("POST", "/commands", body_of(["more"], 100), JSON).status for _ in range(25)]
    time.sleep(FULL_S)  # Until all is visited.
    return said(filled)


def election(cluster: Cluster) -> str:
    """The leader is killed while callers write; the turns are those of the others."""
    end, body, killed = time.monotonic() + SECONDS, body_of(["incr", "n"], 100), cluster.leader
    statuses: list[int] = []
    others = [node for node in cluster if node is not killed]

    def call(number: int) -> None:
        while time.monotonic() < end:
            with suppress(Unreachable):
                statuses.append(others[number % 2].call("POST", "/commands", body, JSON).status)

    with ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(call, number) for number in range(CALLERS)]
        time.sleep(SETTLED_S)
        killed.kill()
        for called in calling:
            called.result()
    cluster.start(killed.node_id)
    return said(statuses)


KINDS = (
    Kind("idle", "5 s", idle),
    Kind("single commands", "32 callers, 5 s", singles),
    Kind("largest batch", "10,000 commands, 5 times", most_commands),
    Kind("many containers", "31,000, 5 times", containers, "log"),
    Kind("wide integers", "47,000 of 20 digits, 5 times", wide_integers, "log"),
    Kind("escaped quotes", "500,000, 5 times", quotes, "log"),
    Kind("a stream of commands", "200,000", stream),
    Kind("batch of gets", "10,000 of 800 bytes, 5 times", gets),
    Kind("large state: filled, snapshot asked for, status", "240 MB", large_state),
    Kind("truncation", "records of 4 MiB", truncation, "log"),
    Kind("raw records", "7 MiB, 32 at once", raw_records, "log"),
    Kind("small values in one record", "1,000,000, 5 times", small_values, "log"),
    Kind("filtered reads that match next to nothing", "300,000 records, 5 times a node", nothing_matches),
    Kind("readers that wake together", "1,000", readers),
    Kind("a follower starts again", "400,000 commands", restart),
    Kind("slow commands", "200 ms each, 4 a batch, 5 times", slow_commands, "tests.cluster.machines:Slow"),
    Kind("garbage collections of a large state", "2,500,000 lists", many_objects, "tests.cluster.machines:Hoard"),
    Kind("an election under load", "32 callers, 5 s", election),
)


def longest(node: Node) -> tuple[float, str]:
    """The node's longest turn in ms, and what ran."""
    found = LONGEST.search(node.call("GET", "/metrics").body.decode())
    if found is None:
        raise SystemExit(f"{node.node_id} shows no longest turn")
    return float(found["seconds"]) * 1000, found["what"]


def measure(kind: Kind) -> None:
    """Print the row of one kind of work."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), flags=("--machine", kind.machine))
        try:
            cluster.start()
            time.sleep(SETTLED_S)
            answers = kind.work(cluster)
            time.sleep(SETTLED_S)
            leader, ran = longest(cluster.leader)
            follower, there = max(longest(node) for node in cluster.followers)
        finally:
            cluster.close()
    what = "; ".join(f"`{name}`" for name in dict.fromkeys((ran, there)) if name)
    print(f"| {kind.name} | {kind.size} | {answers} | {leader:.0f} | {follower:.0f} | {what} |", flush=True)


def main() -> None:
    """Measure every kind of work, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of a kind of work")
    only = parser.parse_args().only
    print("| kind of work | size | answers | leader ms | follower ms | what ran, from 50 ms on |")
    print("|---|---|---|---:|---:|---|")
    for kind in KINDS:
        if only in kind.name:
            measure(kind)


if __name__ == "__main__":
    main()
