"""How fit this node is to lead, in words: one sentence for each level, with what to do about it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from quire.replication import Replica
from quire.replication.core.fitness import FitnessStatus, Level

from .pending import Waiter

if TYPE_CHECKING:
    from .node import Node

journal = structlog.get_logger(__name__)

LOOK_S = 1.0
"""The longest pause between two looks at the level, for the journal. A level lasts two election timeouts."""

ADVICE = {
    Level.FIT: "",
    Level.APPLY_LAG: "if it does not catch up, write less or give it a faster processor",
    Level.SLOW_DISK: "find out what else uses the volume of {data_dir}, or replace the disk",
    Level.NO_ROOM: "free space on the volume of {data_dir}; `quire expire` removes what may expire",
    Level.COMMITS_NOTHING: "check its network, and the disks of the other voters",
    Level.MACHINE_FAILED: "restart it if other nodes apply on; if all stopped at this index, mend the machine first",
    Level.DISK_HANGS: "if it lasts, check the volume of {data_dir}, then restart the node",
}

STOPS_A_LEADER = frozenset({Level.NO_ROOM, Level.COMMITS_NOTHING})
"""A leader of this level takes or finishes no write, so it is not ready. A follower of it serves what it has."""


def advice(level: Level, data_dir: Path) -> str:
    """What to do about a level; empty for FIT."""
    return ADVICE[level].format(data_dir=data_dir)


def sentence(fitness: FitnessStatus, data_dir: Path) -> str:
    """What ails the node, and what to do; empty if it is fit."""
    return f"{fitness.reason}; {advice(fitness.level, data_dir)}" if fitness.level else ""


def fitness_document(fitness: FitnessStatus, data_dir: Path) -> dict[str, Any]:
    """For `/status`. `since` is in microseconds since the Unix epoch, 0 if the node was fit from its start."""
    return {
        "level": int(fitness.level),
        "name": fitness.level.name.lower(),
        "reason": fitness.reason,
        "do": advice(fitness.level, data_dir),
        "since": fitness.since,
    }


def unready_reasons(node: "Node") -> list[str]:
    """Why what ails this node keeps it from serving; empty if it serves all the same."""
    if node.formed is None:
        return []
    data_dir = node.config.data_dir
    if (failure := node.formed.applying.applier.failure) is not None:
        return [f"applying has stopped: {failure}; {advice(Level.MACHINE_FAILED, data_dir)}"]
    status = node.formed.replica.status()
    fitness, leads = status.fitness, node.leader_id == node.node_id
    if not status.disk_answers:  # Now: the level is kept for a while after it has answered.
        return [f"the disk has not answered for an election timeout; {advice(Level.DISK_HANGS, data_dir)}"]
    if leads and fitness.level in STOPS_A_LEADER:
        return [sentence(fitness, data_dir)]
    return []


async def log_levels(replica: Replica[Waiter], data_dir: Path, look_s: float) -> None:
    """Log each change of the level, once, until cancelled."""
    known = Level.FIT
    while True:
        fitness = replica.status().fitness
        if fitness.level is not known:
            if fitness.level is Level.FIT:
                journal.info("fit to lead again", was=known.name.lower())
            else:
                what = advice(fitness.level, data_dir)
                journal.warning("unfit to lead", level=fitness.level.name.lower(), reason=fitness.reason, do=what)
            known = fitness.level
        await asyncio.sleep(look_s)
