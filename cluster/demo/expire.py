"""`quire demo expire`: how logs expire, each by its node's limit, what holds them, and how a stale node catches up.

Segments have the smallest possible size, so that seconds under load stand for weeks in production.
"""

import asyncio
import time
from typing import NamedTuple

from quire.log import ReadOnlyDirectory, stored_mark

from ..cli.nodes.rows import Rows
from ..cli.output import Exit
from ..client import NotFound, Status
from .nodes import NODE_IDS, DemoFailed
from .scenario import CLIENTS, OBSERVATIONS, OBSERVE_EVERY_S, Demo, Scenario, run_scenario, under_load
from .writers import differences_in

KIB = 1 << 10
RETENTION_KIB = dict(zip(NODE_IDS, (128, 192, 256), strict=True))
SNAPSHOT_RECORDS = 5_000
BATCH_COMMANDS = 50
COMMANDS_AFTER = 5_000
FLAGS = {
    node_id: (
        *("--segment-bytes", str(64 * KIB), "--snapshot-records", str(SNAPSHOT_RECORDS)),
        *("--retention-bytes", str(size * KIB)),
    )
    for node_id, size in RETENTION_KIB.items()
}
CONCLUSION = (
    "Each node deletes whole segments of its own log, by its own limit, and never what is still needed: by two of its "
    "snapshots, by a follower's stream, or by a follower that is not far behind. A node that is away for longer than "
    "the log reaches back receives a snapshot instead of the records. A reader that falls behind gets an error with "
    "the lowest index that is left: no record is skipped silently."
)


class StaleNode(NamedTuple):
    """A node whose log ended below the start of every other log when it came back, and the snapshot it received.

    `removed_before` is the number of segments it had deleted before it left; the node's own count starts again at 0.
    """

    node_id: str
    removed_before: int
    left_at: int
    logs_began_at: int
    snapshot_index: int
    seconds: float


class Outcome(NamedTuple):
    """The result. `expired` counts the segments each node deleted; `reader` is the error of a read of record 0."""

    stale: StaleNode
    expired: dict[str, int]
    reader: str
    acknowledged: int
    differences: list[str]
    rows: Rows


def run_expire(*, as_json: bool) -> Exit:
    """Run the scenario on new nodes; return the exit code: 0 if nothing was lost and all nodes agree."""
    return run_scenario(_expire, _conclusion, _document, as_json=as_json, flags=FLAGS)


async def _expire(demo: Demo) -> Outcome:
    async with under_load(demo, BATCH_COMMANDS, BATCH_COMMANDS) as scenario:
        writers = scenario.writers
        await _watch_expiry(scenario)
        stale = await _stay_away(scenario)
        reader = await _read_the_first(scenario)
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await scenario.end()
        statuses = {node_id: await scenario.status(node_id) for node_id in scenario.nodes.addresses}
        differences = differences_in(rows, writers.commands, await _lost(scenario), off)
        expired = {node_id: int(status["expiry"]["expired_segments"]) for node_id, status in statuses.items()}
        expired[stale.node_id] += stale.removed_before
        return Outcome(stale, expired, reader, writers.commands, differences, rows)


async def _watch_expiry(scenario: Scenario) -> None:
    """Report several times what each node holds of its log, and wait until each has deleted a segment."""
    limits = ", ".join(f"{node_id} {size} KiB" for node_id, size in RETENTION_KIB.items())
    scenario.demo.report(
        f"{scenario.leader} leads; {CLIENTS} clients write; segments have 64 KiB, and each node limits the size of its "
        f"log: {limits}"
    )
    for _ in range(OBSERVATIONS):
        await asyncio.sleep(OBSERVE_EVERY_S)
        for node_id in NODE_IDS:
            scenario.demo.report("  " + _expiry_line(node_id, await scenario.status(node_id)))

    async def all_have() -> bool:
        return all([(await scenario.status(node_id))["expiry"]["expired_segments"] for node_id in NODE_IDS])

    await scenario.until("each node deletes a segment", all_have)


def _expiry_line(node_id: str, status: Status) -> str:
    expiry = status["expiry"]
    line = (
        f"{node_id} holds [{status['lowest_index']:,}, {status['highest_index']:,}) in {status['log_bytes'] // KIB:,} "
        f"KiB and has deleted {expiry['expired_segments']} segments"
    )
    if held := expiry["held"]["segments"]:
        line += f"; {held} more are over its limit and held: {expiry['holds'][0]['why']}"
    return line


async def _stay_away(scenario: Scenario) -> StaleNode:
    """Stop a follower for longer than any other log reaches back, and start it again."""
    nodes, report = scenario.nodes, scenario.demo.report
    away = next(node_id for node_id in nodes.addresses if node_id != scenario.leader)
    removed = (await scenario.status(away))["expiry"]["expired_segments"]
    await nodes.leave(away)
    mark = stored_mark(ReadOnlyDirectory(nodes.directory / away))
    if mark is None or not mark.clean:
        raise DemoFailed(f"{away} did not stop cleanly; the end of {nodes.log_file(away)} says why")
    end = mark.durable_index
    report(f"{away} is stopped (SIGTERM); its log ends at {end:,}; the others keep as much for it as for themselves")
    began_at = await _watch_until_gone(scenario, away, end)
    report(f"  every log begins at {began_at:,} or above: the record that {away} needs next is gone")
    began = time.monotonic()
    await nodes.start_node(away)
    goal = (await scenario.client.status())["highest_index"]
    snapshot = 0

    async def begins_above() -> bool:
        nonlocal snapshot
        snapshot = int((await scenario.status(away)).get("lowest_index", 0))
        return snapshot > end

    async def has_caught_up() -> bool:
        return bool((await scenario.status(away))["durable_index"] >= goal)

    await scenario.until(f"{away} installs a snapshot", begins_above)
    await scenario.until(f"{away} catches up", has_caught_up)
    seconds = time.monotonic() - began
    report(
        f"{away} is back: it received the snapshot at {snapshot:,} and the log from there on, and caught up after "
        f"{seconds:.2f} s. It never saw {snapshot - end:,} of the records, but has their result"
    )
    return StaleNode(away, removed, end, began_at, snapshot, seconds)


async def _watch_until_gone(scenario: Scenario, away: str, end: int) -> int:
    """Report what the others keep for an absent node, until all logs begin above `end`; return the lowest index."""
    others = [node_id for node_id in scenario.nodes.addresses if node_id != away]
    reached = 0

    async def is_gone() -> bool:
        nonlocal reached
        statuses = {node_id: await scenario.status(node_id) for node_id in others}
        for node_id, status in statuses.items():
            scenario.demo.report(
                f"  {node_id} holds [{status['lowest_index']:,}, {status['highest_index']:,}){_kept(status, away)}"
            )
        reached = min(status["lowest_index"] for status in statuses.values())
        if reached <= end:
            await asyncio.sleep(OBSERVE_EVERY_S)
        return bool(reached > end)

    await scenario.until(f"every log begins above {end}", is_gone)
    return reached


def _kept(status: Status, away: str) -> str:
    """What the leader keeps for an absent node; empty for a follower."""
    if not status["serving"]:
        return ""
    holds = status["expiry"]["holds"]
    kept = [hold["why"] for hold in holds if hold["what"] == "follower" and hold["why"].startswith(away)]
    return f", and leads: {kept[0]}" if kept else f", and leads: {away} lacks too much, so nothing is kept for it"


async def _lost(scenario: Scenario) -> int:
    """The number of acknowledged commands that are lost, of those whose indices the logs still hold."""
    lost = 0

    async def are_counted() -> bool:
        nonlocal lost
        lowest = max([(await scenario.status(node_id))["lowest_index"] for node_id in NODE_IDS])
        lost = await scenario.writers.lost(scenario.client, lowest)  # Raises NotFound if a segment expires meanwhile.
        return True

    await scenario.until("all logs are read", are_counted)
    return lost


async def _read_the_first(scenario: Scenario) -> str:
    """The error of a read of the first record. Raises DemoFailed if there is none."""
    try:
        await scenario.client.read(0)
    except NotFound as error:
        scenario.demo.report(f"a read of record 0 now fails: {error}")
        return str(error)
    raise DemoFailed("record 0 was read, although every log has expired")


def _conclusion(outcome: Outcome) -> str:
    removed = ", ".join(f"{node_id} {count}" for node_id, count in outcome.expired.items())
    return (
        f"acknowledged commands lost: 0 (of {outcome.acknowledged:,}), by the state; all three nodes agree.\n"
        f"Segments deleted: {removed}.\n{CONCLUSION}"
    )


def _document(outcome: Outcome) -> dict[str, object]:
    return {
        "lesson": "expire",  # The key is part of the output's format.
        **outcome.stale._asdict(),
        "retention_kib": RETENTION_KIB,
        "expired_segments": outcome.expired,
        "reader": outcome.reader,
        "acknowledged": outcome.acknowledged,
        "nodes": {node_id: row.document() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
