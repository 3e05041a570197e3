"""`quire demo pause|cut|absent|diverge`: what the cluster does while a node is behind, and how the node catches up.

Each scenario starts with three nodes under load. Each ends with the check that the log holds every acknowledged command
once, and that all nodes agree. In between it reports what the leader and the node know.
"""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from ..cli.nodes.rows import Rows
from ..cli.output import Exit
from ..client import Client, ClientError, Status, connect
from ..client.documents import Stream
from .nodes import DemoFailed
from .scenario import (
    CLIENTS,
    OBSERVATIONS,
    OBSERVE_EVERY_S,
    Demo,
    Scenario,
    find_leader,
    run_scenario,
    under_load,
)
from .writers import Acknowledged, differences_in

COMMANDS_BEFORE = 2_000
COMMANDS_AFTER = 1_000
UNCOMMITTED = 20
UNCOMMITTED_TIMEOUT_S = 1.0


class Fault(StrEnum):
    """What happens to a node."""

    PAUSE = "pause"
    CUT = "cut"
    ABSENT = "absent"
    DIVERGE = "diverge"


CONCLUSIONS = {
    Fault.PAUSE: "A frozen follower delays nobody: two of three disks are a majority. The leader knows only what it "
    "last heard from the follower. The follower's log was intact, so replication continued where it had stopped.",
    Fault.CUT: "A node that hears no leader reports so on /readyz, and refuses linearizable reads. Its log stays as it "
    "was. Once reconnected, it tells the leader what it has, and receives only what it lacks.",
    Fault.ABSENT: "A follower that comes back copies the records it missed, in order, and reaches the same state. It "
    "does not copy again what was on its disk before it left.",
    Fault.DIVERGE: "Records that only a cut-off leader has written are not acknowledged and may be truncated, because "
    "the majority continued without them. Acknowledged records are on a majority's disks; none was truncated.",
}


class Gap(NamedTuple):
    """How far a node was behind, and how it caught up. `match_index` is where its log and the leader's diverged."""

    node_id: str
    most: Mapping[str, object]
    match_index: int
    received_bytes: int
    truncated: int
    seconds: float


class Outcome(NamedTuple):
    """The result of a scenario."""

    gap: Gap
    acknowledged: int
    differences: list[str]
    rows: Rows


def run_fault(fault: Fault, *, as_json: bool) -> Exit:
    """Run the scenario on new nodes; return the exit code: 0 if nothing was lost and all nodes agree."""
    return run_scenario(
        partial(_inject, fault), partial(_conclusion, fault), partial(_document, fault), as_json=as_json, proxied=True
    )


async def _inject(fault: Fault, demo: Demo) -> Outcome:
    async with under_load(demo, COMMANDS_BEFORE) as scenario:
        writers = scenario.writers
        gap = await (_diverge(scenario) if fault is Fault.DIVERGE else _fall_behind(scenario, fault))
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await scenario.end()
        differences = differences_in(rows, writers.commands, await writers.lost(scenario.client), off)
        return Outcome(gap, writers.commands, differences, rows)


async def _fall_behind(scenario: Scenario, fault: Fault) -> Gap:
    """Freeze, cut off or stop a follower while the others continue; then bring it back."""
    nodes, report = scenario.nodes, scenario.demo.report
    away = next(node_id for node_id in nodes.addresses if node_id != scenario.leader)
    before = await scenario.status(away)
    what = await _begin(scenario, fault, away)
    report(
        f"{scenario.leader} leads; {CLIENTS} clients write; {away} has {before['durable_index']:,} records and {what}"
    )
    most = await _observe(scenario, away)
    began = time.monotonic()
    await _end(scenario, fault, away)
    goal = (await scenario.status(scenario.leader))["highest_index"]

    async def has_caught_up() -> bool:
        return bool((await scenario.status(away))["durable_index"] >= goal)

    await scenario.until(f"{away} catches up", has_caught_up)
    seconds, stream = time.monotonic() - began, _stream(await scenario.status(away))
    received, match_index = stream["received_bytes"], stream["from_index"]
    earlier = _stream(before)
    if match_index == earlier["from_index"] and fault is Fault.PAUSE:  # The stream survived the pause.
        received, match_index = received - earlier["received_bytes"], before["durable_index"]
    report(
        f"{away} is back: it continues at index {match_index:,}, receives {received:,} bytes of frames, and catches up "
        f"after {seconds:.2f} s"
    )
    return Gap(away, most, match_index, received, 0, seconds)


async def _begin(scenario: Scenario, fault: Fault, away: str) -> str:
    nodes = scenario.nodes
    match fault:
        case Fault.PAUSE:
            nodes.pause(away)
            return "is frozen (SIGSTOP)"
        case Fault.CUT:
            await nodes.cut(away)
            return "is cut off from both others"
        case _:
            await nodes.leave(away)
            return "is stopped (SIGTERM)"


async def _end(scenario: Scenario, fault: Fault, away: str) -> None:
    match fault:
        case Fault.PAUSE:
            scenario.nodes.resume(away)
        case Fault.CUT:
            await scenario.nodes.heal()
        case _:
            await scenario.nodes.start_node(away)


async def _observe(scenario: Scenario, away: str) -> Mapping[str, object]:
    """Report several times what is known of a node that is away; return its last lag, which is its largest."""
    most: Mapping[str, object] = {}
    for _ in range(OBSERVATIONS):
        await asyncio.sleep(OBSERVE_EVERY_S)
        status = await scenario.status(scenario.leader)
        if "nodes" not in status:  # It no longer leads, because the machine is busy.
            scenario = scenario._replace(leader=(await find_leader(scenario.client)).node_id)
            status = await scenario.status(scenario.leader)
        heard = status.get("nodes", {}).get(away)
        known = f"it knows that {away} has" if heard else f"it has never heard {away}, which has"
        try:
            row = heard or await scenario.status(away)
        except ClientError:
            scenario.demo.report(f"  {scenario.leader} now leads and has never heard {away}, which does not answer")
            continue
        most = behind = row["lag"]
        lag = f"{behind['records']:,} records, {behind['bytes']:,} bytes, {behind['seconds']:.1f} s behind"
        scenario.demo.report(
            f"  {scenario.leader} has {status['durable_index']:,} and committed {status['commit_index']:,}; {known} "
            f"{row['durable_index']:,}: {lag}"
        )
    return most


async def _diverge(scenario: Scenario) -> Gap:
    """Cut the leader off and write to it; another leader is elected, and the first one's suffix is truncated."""
    nodes, report, old = scenario.nodes, scenario.demo.report, scenario.leader
    epoch = (await scenario.status(old))["epoch"]
    await nodes.cut(old)
    async with connect([nodes.addresses[old]], timeout_s=UNCOMMITTED_TIMEOUT_S) as isolated:
        error = await _write_to(isolated)
    status = await scenario.status(old)
    end = status["highest_index"]
    report(f"{old} leads epoch {epoch} and is cut off; {UNCOMMITTED} more commands reach only {old}, and fail: {error}")
    report(f"  its log ends at {end:,}, and {status['commit_index']:,} are committed")
    first = await scenario.writers.acknowledged(1, above_epoch=epoch)
    elected = await find_leader(scenario.client)
    report(f"{elected.node_id} leads epoch {elected.epoch}; {first_answer(first)}")
    most = await _observe(scenario._replace(leader=elected.node_id), old)
    began = time.monotonic()
    await nodes.heal()
    goal = (await scenario.status(elected.node_id))["highest_index"]

    async def follows() -> bool:
        status = await scenario.status(old)
        return bool(status["durable_index"] >= goal and status["leader"] == elected.node_id)

    await scenario.until(f"{old} follows", follows)
    seconds, stream = time.monotonic() - began, _stream(await scenario.status(old))
    truncated = max(0, end - stream["from_index"])
    report(
        f"{old} follows: the logs diverged at {stream['from_index']:,}, so the last {truncated:,} records of its log "
        f"were truncated, and {stream['received_bytes']:,} bytes of frames replaced them within {seconds:.2f} s"
    )
    return Gap(old, most, stream["from_index"], stream["received_bytes"], truncated, seconds)


def _stream(status: Status) -> Stream:
    """What a follower receives. Raises DemoFailed if it follows nobody."""
    if (stream := status.get("stream")) is None:
        raise DemoFailed(f"{status['node_id']} receives no stream")
    return stream


def first_answer(first: Acknowledged) -> str:
    """What a new leader acknowledged first, in words: a command that was sent again has no index."""
    if first.index is None:
        return "the first command that it acknowledged was sent again, and had executed before"
    return f"its first acknowledged record is at {first.index:,}"


async def _write_to(isolated: Client) -> str:
    """The error that a client of an isolated leader gets. Raises DemoFailed if it gets none."""
    try:
        await isolated.append_batch([["add", 0]] * UNCOMMITTED)
    except ClientError as error:
        return type(error).__name__
    raise DemoFailed("a leader that is cut off acknowledged a command")


def _conclusion(fault: Fault, outcome: Outcome) -> str:
    return f"acknowledged commands lost: 0 (of {outcome.acknowledged:,}); all three nodes agree.\n{CONCLUSIONS[fault]}"


def _document(fault: Fault, outcome: Outcome) -> dict[str, object]:
    return {
        "lesson": fault.value,  # The key is part of the output's format.
        **outcome.gap._asdict(),
        "acknowledged": outcome.acknowledged,
        "nodes": {node_id: row.document() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
