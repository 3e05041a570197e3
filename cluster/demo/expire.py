"""`quire demo expire`: how the logs of nodes expire, each by its own limit; what holds them; who comes back too late.

Segments are as small as they may be here, so that seconds under load are what weeks are elsewhere.
"""

import asyncio
import time
from typing import Any, NamedTuple

from rich.console import Console

from quire.log import ReadOnlyDirectory, stored_mark

from ..cli.output import complain
from ..cli.status import Rows, node_table
from ..client import NotFound
from .nodes import NODE_IDS, DemoFailed
from .room import CLIENTS, LOOK_EVERY_S, LOOKS, Room, writing
from .scenario import Stage, run_shown
from .writers import differences_in

KIB = 1 << 10
RETENTION_KIB = dict(zip(NODE_IDS, (128, 192, 256), strict=True))
FOLLOWER_KIB = 128
SNAPSHOT_RECORDS = 5_000
BATCH_COMMANDS = 50
COMMANDS_AFTER = 5_000
FLAGS = {
    node_id: (
        *("--segment-bytes", str(64 * KIB), "--snapshot-records", str(SNAPSHOT_RECORDS)),
        *("--retention-bytes", str(size * KIB), "--retention-follower-bytes", str(FOLLOWER_KIB * KIB)),
    )
    for node_id, size in RETENTION_KIB.items()
}
TAUGHT = (
    "Each node removes whole segments of its own log, by its own limit, and never what something needs: two snapshots "
    "of its own, a follower's stream, a follower that is not far behind. Who is away for longer than the log reaches "
    "back is sent the state instead of the records. A reader that does not keep up is told so, with the lowest index "
    "that is left: nothing is left out unsaid."
)


class TooLate(NamedTuple):
    """A node that came back behind every other log: where its own ended, and what it was sent instead.

    `removed_before`: how many segments it had removed when it left; it counts anew since.
    """

    node_id: str
    removed_before: int
    left_at: int
    logs_began_at: int
    snapshot_index: int
    seconds: float


class Outcome(NamedTuple):
    """What it came to. `expired`: how many segments each node removed; `reader`: what one was told who asks for 0."""

    too_late: TooLate
    expired: dict[str, int]
    reader: str
    acknowledged: int
    differences: list[str]
    rows: Rows


def run_expire(*, as_json: bool) -> int:
    """Run it on fresh nodes; return the exit code: 0 if nothing was lost and all agree."""
    return run_shown(_expire, _show, _document, as_json=as_json, flags=FLAGS)


async def _expire(stage: Stage) -> Outcome:
    async with writing(stage, BATCH_COMMANDS, BATCH_COMMANDS) as room:
        writers = room.writers
        await _watch_expiry(room)
        too_late = await _stay_away(room)
        reader = await _read_the_first(room)
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await room.end()
        statuses = {node_id: await room.status(node_id) for node_id in room.nodes.addresses}
        differences = differences_in(rows, writers.commands, await _lost(room), off)
        expired = {node_id: int(status["expiry"]["expired_segments"]) for node_id, status in statuses.items()}
        expired[too_late.node_id] += too_late.removed_before
        return Outcome(too_late, expired, reader, writers.commands, differences, rows)


async def _watch_expiry(room: Room) -> None:
    """Say again and again what each node holds of its log, until each has removed a segment."""
    limits = ", ".join(f"{node_id} {size} KiB" for node_id, size in RETENTION_KIB.items())
    room.stage.say(
        f"{room.leader} leads; {CLIENTS} clients write; segments have 64 KiB, and each node has a limit of its own for "
        f"its log: {limits}"
    )
    for _ in range(LOOKS):
        await asyncio.sleep(LOOK_EVERY_S)
        for node_id in NODE_IDS:
            room.stage.say("  " + _of_expiry(node_id, await room.status(node_id)))

    async def all_have() -> bool:
        return all([(await room.status(node_id))["expiry"]["expired_segments"] for node_id in NODE_IDS])

    await room.until("each node removes a segment", all_have)


def _of_expiry(node_id: str, status: dict[str, Any]) -> str:
    expiry = status["expiry"]
    said = (
        f"{node_id} holds [{status['lowest_index']:,}, {status['highest_index']:,}) in {status['log_bytes'] // KIB:,} "
        f"KiB, and has removed {expiry['expired_segments']} segments"
    )
    if held := expiry["held"]["segments"]:
        said += f"; {held} more are over its limit, and stay: {expiry['holds'][0]['why']}"
    return said


async def _stay_away(room: Room) -> TooLate:
    """A follower leaves, for longer than the log of any other reaches back, and comes back."""
    nodes, say = room.nodes, room.stage.say
    away = next(node_id for node_id in nodes.addresses if node_id != room.leader)
    removed = (await room.status(away))["expiry"]["expired_segments"]
    await nodes.leave(away)
    mark = stored_mark(ReadOnlyDirectory(nodes.directory / away))
    if mark is None or not mark.clean:
        raise DemoFailed(f"{away} did not stop cleanly; the end of {nodes.log_file(away)} says why")
    end = mark.durable_index
    say(f"{away} leaves (SIGTERM); its log ends at {end:,}; for a node that is away {FOLLOWER_KIB} KiB are kept")
    began_at = await _watch_until_gone(room, away, end)
    say(f"  every log begins at {began_at:,} or above: what {away} needs next is gone")
    began = time.monotonic()
    await nodes.start_node(away)
    goal = (await room.client.status())["highest_index"]
    snapshot = 0

    async def begins_above() -> bool:
        nonlocal snapshot
        snapshot = int((await room.status(away)).get("lowest_index", 0))
        return snapshot > end

    async def is_level() -> bool:
        return bool((await room.status(away))["durable_index"] >= goal)

    await room.until(f"{away} installs a snapshot", begins_above)
    await room.until(f"{away} comes level", is_level)
    seconds = time.monotonic() - began
    say(
        f"{away} is back: it was sent the snapshot at {snapshot:,}, and the log from there on. {snapshot - end:,} "
        f"records it never saw; it has their result, and what the leader had then, {seconds:.2f} s later"
    )
    return TooLate(away, removed, end, began_at, snapshot, seconds)


async def _watch_until_gone(room: Room, away: str, end: int) -> int:
    """Say again and again what is kept for a node that is away; the lowest index of all once they are above `end`."""
    others = [node_id for node_id in room.nodes.addresses if node_id != away]
    reached = 0

    async def is_gone() -> bool:
        nonlocal reached
        statuses = {node_id: await room.status(node_id) for node_id in others}
        for node_id, status in statuses.items():
            room.stage.say(
                f"  {node_id} holds [{status['lowest_index']:,}, {status['highest_index']:,}){_kept(status, away)}"
            )
        reached = min(status["lowest_index"] for status in statuses.values())
        if reached <= end:
            await asyncio.sleep(LOOK_EVERY_S)
        return bool(reached > end)

    await room.until(f"every log begins above {end}", is_gone)
    return reached


def _kept(status: dict[str, Any], away: str) -> str:
    """What a leader keeps for a node that is away; nothing of a follower."""
    if not status["serving"]:
        return ""
    holds = status["expiry"]["holds"]
    kept = [hold["why"] for hold in holds if hold["what"] == "follower" and hold["why"].startswith(away)]
    return f", and leads: {kept[0]}" if kept else f", and leads: {away} lacks too much, and nothing is kept for it"


async def _lost(room: Room) -> int:
    """How many acknowledged commands are lost of those that the logs still hold."""
    lost = 0

    async def are_counted() -> bool:
        nonlocal lost
        lowest = max([(await room.status(node_id))["lowest_index"] for node_id in NODE_IDS])
        lost = await room.writers.lost(room.client, lowest)  # NotFound: another segment has expired meanwhile.
        return True

    await room.until("what the logs hold is read", are_counted)
    return lost


async def _read_the_first(room: Room) -> str:
    """What a reader is told that asks for the first record. Raises DemoFailed: it is given one."""
    try:
        await room.client.read(0)
    except NotFound as error:
        told = str(error)
        room.stage.say(f"A reader that asks for record 0 now is told: {told}")
        return told
    raise DemoFailed("record 0 was read, though every log has expired")


def _show(outcome: Outcome, console: Console) -> None:
    console.print(node_table(outcome.rows))
    for difference in outcome.differences:
        complain(difference)
    if not outcome.differences:
        removed = ", ".join(f"{node_id} {count}" for node_id, count in outcome.expired.items())
        console.print(
            f"acknowledged commands lost: 0 (of {outcome.acknowledged:,}), as the state says; all three nodes agree.\n"
            f"Segments removed: {removed}.\n{TAUGHT}",
            highlight=False,
        )


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "lesson": "expire",
        **outcome.too_late._asdict(),
        "retention_kib": RETENTION_KIB,
        "expired_segments": outcome.expired,
        "reader": outcome.reader,
        "acknowledged": outcome.acknowledged,
        "nodes": {node_id: row._asdict() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
