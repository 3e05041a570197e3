"""`quire demo pause|cut|absent|diverge`: what a cluster does while a node is behind, and how it comes level again.

Each begins with three nodes under load and ends like every demo: all that was acknowledged stands in the log once, and
all nodes agree. In between, the leader and the node itself are asked what they know, and each line shows it.
"""

import asyncio
import time
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from ..cli.output import complain
from ..cli.status import Rows, node_table
from ..client import Client, ClientError, connect
from .nodes import DemoFailed
from .room import CLIENTS, LOOK_EVERY_S, LOOKS, Room, find_leader, writing
from .scenario import Stage, run_shown
from .writers import differences_in

COMMANDS_BEFORE = 2_000
COMMANDS_AFTER = 1_000
UNCOMMITTED = 20
UNCOMMITTED_TIMEOUT_S = 1.0


class Lesson(StrEnum):
    """What is done to a node."""

    PAUSE = "pause"
    CUT = "cut"
    ABSENT = "absent"
    DIVERGE = "diverge"


TAUGHT = {
    Lesson.PAUSE: "A node that stands still costs nobody anything: two of three disks are a majority. The leader knows "
    "only what it last heard of it. Nothing was wrong with its log, so it went on where it had stopped.",
    Lesson.CUT: "A node that hears no leader says so on /readyz and answers no read that must not be old. Its log "
    "stays as it was. Once it hears again, it says what it has, and is sent what it lacks and nothing else.",
    Lesson.ABSENT: "The absent student copies what was written meanwhile, in its order, and comes to the same answer. "
    "What it had written down before it left it does not copy again.",
    Lesson.DIVERGE: "What a leader writes that nobody else hears is not acknowledged, and may be cut off later: the "
    "others went on without it. Acknowledged is what a majority holds, and that was never cut.",
}


class Gap(NamedTuple):
    """What a node was behind by, and how it came level: `match_index` is where its log and the leader's parted."""

    node_id: str
    most: dict[str, Any]
    match_index: int
    received_bytes: int
    truncated: int
    seconds: float


class Outcome(NamedTuple):
    """What a lesson came to."""

    gap: Gap
    acknowledged: int
    differences: list[str]
    rows: Rows


def run_lesson(lesson: Lesson, *, as_json: bool) -> int:
    """Run it on fresh nodes; return the exit code: 0 if nothing was lost and all agree."""
    return run_shown(
        partial(_teach, lesson), partial(_show, lesson), partial(_document, lesson), as_json=as_json, relayed=True
    )


async def _teach(lesson: Lesson, stage: Stage) -> Outcome:
    async with writing(stage, COMMANDS_BEFORE) as room:
        writers = room.writers
        gap = await (_diverge(room) if lesson is Lesson.DIVERGE else _fall_behind(room, lesson))
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await room.end()
        differences = differences_in(rows, writers.commands, await writers.lost(room.client), off)
        return Outcome(gap, writers.commands, differences, rows)


async def _fall_behind(room: Room, lesson: Lesson) -> Gap:
    """A follower stands still, is cut off, or leaves, while the others go on; then it comes back."""
    nodes, say = room.nodes, room.stage.say
    away = next(node_id for node_id in nodes.addresses if node_id != room.leader)
    before = await room.status(away)
    what = await _part(room, lesson, away)
    say(f"{room.leader} leads; {CLIENTS} clients write; {away} has {before['durable_index']:,} records, and {what}")
    most = await _watch(room, away)
    began = time.monotonic()
    await _return(room, lesson, away)
    goal = (await room.status(room.leader))["highest_index"]

    async def is_level() -> bool:
        return bool((await room.status(away))["durable_index"] >= goal)

    await room.until(f"{away} comes level", is_level)
    seconds, stream = time.monotonic() - began, (await room.status(away))["stream"]
    received, match_index = stream["received_bytes"], stream["from_index"]
    if match_index == before["stream"]["from_index"] and lesson is Lesson.PAUSE:  # The stream that it had still stands.
        received, match_index = received - before["stream"]["received_bytes"], before["durable_index"]
    say(
        f"{away} is back: it goes on from index {match_index:,}, received {received:,} bytes of frames, and has what "
        f"the leader had then, {seconds:.2f} s later"
    )
    return Gap(away, most, match_index, received, 0, seconds)


async def _part(room: Room, lesson: Lesson, away: str) -> str:
    nodes = room.nodes
    match lesson:
        case Lesson.PAUSE:
            nodes.pause(away)
            return "stands still (SIGSTOP)"
        case Lesson.CUT:
            await nodes.cut(away)
            return "is cut off from both others"
        case _:
            await nodes.leave(away)
            return "leaves (SIGTERM)"


async def _return(room: Room, lesson: Lesson, away: str) -> None:
    match lesson:
        case Lesson.PAUSE:
            room.nodes.resume(away)
        case Lesson.CUT:
            await room.nodes.heal()
        case _:
            await room.nodes.start_node(away)


async def _watch(room: Room, away: str) -> dict[str, Any]:
    """Say again and again what is known of a node that is away; its lag when it was most."""
    most: dict[str, Any] = {}
    for _ in range(LOOKS):
        await asyncio.sleep(LOOK_EVERY_S)
        status = await room.status(room.leader)
        if "nodes" not in status:  # It leads no more, on a machine that is busy with something else.
            room = room._replace(leader=(await find_leader(room.client)).node_id)
            status = await room.status(room.leader)
        row = status.get("nodes", {}).get(away)
        known = f"of {away} it knows" if row else f"it never heard {away}, which has"
        try:
            row = row or await room.status(away)
        except ClientError:
            room.stage.say(f"  {room.leader} leads now, and never heard {away}, which answers nobody")
            continue
        most = row["lag"]
        lag = f"{most['records']:,} records, {most['bytes']:,} bytes, {most['seconds']:.1f} s behind"
        room.stage.say(
            f"  {room.leader} has {status['durable_index']:,} and committed {status['commit_index']:,}; {known} "
            f"{row['durable_index']:,}: {lag}"
        )
    return most


async def _diverge(room: Room) -> Gap:
    """A leader writes what nobody hears, another one is elected, and the first one's suffix is cut off."""
    nodes, say, old = room.nodes, room.stage.say, room.leader
    epoch = (await room.status(old))["epoch"]
    await nodes.cut(old)
    async with connect([nodes.addresses[old]], timeout_s=UNCOMMITTED_TIMEOUT_S) as alone:
        told = await _written_alone(alone)
    status = await room.status(old)
    end = status["highest_index"]
    say(f"{old} leads epoch {epoch}, and is cut off; {UNCOMMITTED} more commands reach it alone, and end in {told}")
    say(f"  its log ends at {end:,}, and {status['commit_index']:,} are committed")
    first = await room.writers.acknowledged(1, above_epoch=epoch)
    elected = await find_leader(room.client)
    say(f"{elected.node_id} leads epoch {elected.epoch}; its first acknowledged record stands at {first.index:,}")
    most = await _watch(room._replace(leader=elected.node_id), old)
    began = time.monotonic()
    await nodes.heal()
    goal = (await room.status(elected.node_id))["highest_index"]

    async def follows() -> bool:
        status = await room.status(old)
        return bool(status["durable_index"] >= goal and status["leader"] == elected.node_id)

    await room.until(f"{old} follows", follows)
    seconds, stream = time.monotonic() - began, (await room.status(old))["stream"]
    cut = max(0, end - stream["from_index"])
    say(
        f"{old} follows: the logs parted at {stream['from_index']:,}, so the last {cut:,} records of its write segment "
        f"were cut off, and {stream['received_bytes']:,} bytes of frames took their place within {seconds:.2f} s"
    )
    return Gap(old, most, stream["from_index"], stream["received_bytes"], cut, seconds)


async def _written_alone(alone: Client) -> str:
    """What a client is told that writes to a leader that nobody hears."""
    try:
        await alone.append_batch([["add", 0]] * UNCOMMITTED)
    except ClientError as error:
        return type(error).__name__
    raise DemoFailed("a leader that nobody hears acknowledged a command")


def _show(lesson: Lesson, outcome: Outcome, console: Console) -> None:
    console.print(node_table(outcome.rows))
    for difference in outcome.differences:
        complain(difference)
    if not outcome.differences:
        console.print(
            f"acknowledged commands lost: 0 (of {outcome.acknowledged:,}); all three nodes agree.\n{TAUGHT[lesson]}",
            highlight=False,
        )


def _document(lesson: Lesson, outcome: Outcome) -> dict[str, Any]:
    return {
        "lesson": lesson.value,
        **outcome.gap._asdict(),
        "acknowledged": outcome.acknowledged,
        "nodes": {node_id: row._asdict() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
