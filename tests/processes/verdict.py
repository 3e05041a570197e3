"""The verdict on the nodes' logs by what clients were told: nothing lost, nothing twice, one order, one answer."""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quire.log import Kind, decode_system, stored_records, walk_frames
from tests.processes.cluster import Cluster, Node
from tests.processes.load import Command, Load, classroom_check


@dataclass(frozen=True, slots=True)
class Held:
    """A command as it stands in a log."""

    index: int
    epoch: int
    command: Command


def commands_in(raw: bytes) -> list[Held]:
    """Every record of raw frames that is no system record."""
    return [
        Held(record.index, record.epoch, record.value)
        for frame in walk_frames(raw)
        if frame.header.kind != Kind.SYSTEM
        for record in stored_records(frame)
    ]


def system_records(raw: bytes, type_: str) -> list[tuple[int, dict[str, Any]]]:
    """(epoch, record) of every system record of one type."""
    decoded = ((frame.header, decode_system(frame.payload)) for frame in walk_frames(raw) if frame.header.kind == 2)
    return [(header.epoch, value) for header, value in decoded if value["type"] == type_]


def answer_to(commands: list[Command]) -> str:
    """What the classroom's independent script answers."""
    answer = classroom_check.answer(json.dumps(command) for command in commands)
    assert isinstance(answer, str)
    return answer


def check_logs(logs: Mapping[str, bytes], load: Load) -> list[Held]:
    """The commands in the logs' common order, after these were found true:

    - all logs are the same bytes
    - every acknowledged batch stands at the indices that its client was told, in its order, with its epoch
    - what else stands there are whole batches whose outcome was unknown, each at most once
    - each client's batches stand in the order in which it sent them
    """
    (first_id, first), *others = logs.items()
    for node_id, raw in others:
        assert raw == first, f"the logs of {first_id} ({len(first)} bytes) and {node_id} ({len(raw)} bytes) differ"
    held = commands_in(first)
    by_index = {record.index: record for record in held}
    covered: set[int] = set()
    last_index: dict[int, int] = {}
    for batch in load.acknowledged:
        indices = range(batch.index, batch.index + len(batch.commands))
        found = [by_index.get(index) for index in indices]
        lost = [index for index, record in zip(indices, found, strict=True) if record is None]
        assert not lost, f"acknowledged and lost: indices {lost[0]} to {lost[-1]} of {batch.client}"
        told = [Held(*row) for row in zip(indices, [batch.epoch] * len(indices), batch.commands, strict=True)]
        assert found == told, f"other commands stand at the indices that client {batch.client} was told"
        assert covered.isdisjoint(indices), f"two batches were told index {batch.index}"
        covered.update(indices)
        assert batch.index > last_index.get(batch.client, -1), f"client {batch.client} was reordered"
        last_index[batch.client] = batch.index
    _check_unacknowledged([record.command for record in held if record.index not in covered], load.unknown)
    return held


def _check_unacknowledged(commands: list[Command], unknown: list[list[Command]]) -> None:
    """Whole batches of unknown outcome, each at most once, and nothing else."""
    left = list(unknown)
    place = 0
    while place < len(commands):
        batch = next((batch for batch in left if batch == commands[place : place + len(batch)]), None)
        assert batch is not None, f"nobody sent this so, or twice: {commands[place]} and what follows"
        left.remove(batch)
        place += len(batch)


def check_results(held: list[Held], load: Load) -> None:
    """Every result that a client was given is what the independent script gets by the log's order."""
    results = dict(zip((record.index for record in held), _steps([record.command for record in held]), strict=True))
    for batch in load.acknowledged:
        expected = [results[index] for index in range(batch.index, batch.index + len(batch.commands))]
        assert batch.results == expected, f"wrong results for client {batch.client} at index {batch.index}"


def _steps(commands: list[Command]) -> Iterator[str]:
    context = decimal.Context(prec=34, Emin=-6143, Emax=6144, clamp=1, capitals=1)
    value = decimal.Decimal(42)
    for command in commands:
        value = classroom_check.step(value, command, context)
        yield context.to_sci_string(value)


def check_cluster(cluster: Cluster, load: Load) -> str:
    """Wait until all nodes are equal, check their logs and results against the load; the answer, which is right."""
    cluster.wait_for_equal()
    held = check_logs({node.node_id: node.raw_frames() for node in cluster}, load)
    check_results(held, load)
    answer = str(cluster.leader.get("/state")["state"])
    assert answer == answer_to([record.command for record in held])
    return answer


def check_received(cluster: Cluster, node: Node, durable_before: int) -> None:
    """It received, since it connected, what the leader has behind its match position: not a byte more or less."""
    stream = node.status()["stream"]
    match_index = stream["from_index"]
    end = cluster.leader.status()["durable_index"]
    assert durable_before <= match_index < end, "it kept what it had acknowledged, and lacked something"
    assert stream["received_bytes"] == len(cluster.leader.raw_frames(match_index, end))
