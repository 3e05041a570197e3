"""The fitness of this node to lead, in words: one sentence for each level, with what to do about it."""

import asyncio
from pathlib import Path
from typing import Any, Self

import structlog

from quire.replication import Replica
from quire.replication.core.fitness import DRAINED, FAILED, REPLACE_DISK, ROTTEN, FitnessStatus, Level
from quire.replication.core.status import Status

from ..components import NodeView
from ..writing import Waiter

journal = structlog.get_logger(__name__)

LOOK_S = 1.0
"""The longest interval between two checks of the level, for the journal. A level lasts two election timeouts."""

ADVICE = {
    Level.FIT: "",
    Level.APPLY_LAG: "if it does not catch up, write less or give it a faster processor",
    Level.SLOW_DISK: "find out what else uses the volume of {data_dir}, or replace the disk",
    Level.NO_ROOM: "free space on the volume of {data_dir}; `quire expire` removes what may expire",
    Level.COMMITS_NOTHING: "check its network, and the disks of the other voters",
    Level.MACHINE_FAILED: "`reasons` in its /status say why, and what to do",
    Level.DISK_HANGS: "if it lasts, check the volume of {data_dir}, then restart the node",
}

UNDRAIN = "`quire undrain` ends it, or a restart"
SET_ASIDE = {DRAINED: UNDRAIN, ROTTEN: REPLACE_DISK}
SAME_CODE = "`alarms` in its /status say which nodes run which code, and what to do"

STOPS_A_LEADER = frozenset({Level.NO_ROOM, Level.COMMITS_NOTHING})
"""A leader at this level accepts or finishes no writes, so it is not ready. Its followers serve what they have.

So does one whose code is not a majority's (`runs_other_code`): as a follower it serves its own state.
"""


class Sentence(str):
    """A sentence on why a node is unready or unfit, with paths and addresses. A stranger gets its `name` instead."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, text: str) -> Self:
        self = super().__new__(cls, text)
        self.name = name
        return self


def runs_other_code(held: FitnessStatus) -> bool:
    """Whether it is this level for its code: its machine has not failed."""
    return held.level is Level.MACHINE_FAILED and held.reason != FAILED


def advice(level: Level, data_dir: Path) -> str:
    """What to do about a level; empty for FIT."""
    return ADVICE[level].format(data_dir=data_dir)


def sentences(fitness: FitnessStatus, data_dir: Path) -> list[Sentence]:
    """Everything that makes the node unfit, the most severe first, each with what to do; empty if it is fit.

    A failed machine is left out: it is a reason not to be ready (`unready_reasons`), and is reported only once. So are
    other code and rot, which have alarms of their own (`MachineCode`, `State.measured`).
    """
    levels = [held for held in (fitness, *fitness.lower) if held.reason != ROTTEN]
    return [_sentence(held, data_dir) for held in levels if held.level not in (Level.FIT, Level.MACHINE_FAILED)]


def fitness_alarms(node: NodeView) -> list[Sentence]:
    """Everything that makes a node unfit, ready or not, as `sentences`."""
    return [] if node.formed is None else sentences(node.formed.replica.core.status().fitness, node.config.data_dir)


def _sentence(held: FitnessStatus, data_dir: Path) -> Sentence:
    return Sentence(held.level.name.lower(), f"{held.reason}; {_advice(held, data_dir)}")


def _advice(held: FitnessStatus, data_dir: Path) -> str:
    if runs_other_code(held):
        return SAME_CODE
    return SET_ASIDE.get(held.reason) or advice(held.level, data_dir)


def fitness_document(fitness: FitnessStatus, data_dir: Path) -> dict[str, Any]:
    """For `/status`. `since` is in microseconds since the Unix epoch, 0 if the node was fit from its start."""
    return {**_document(fitness, data_dir), "lower": [_document(held, data_dir) for held in fitness.lower]}


def _document(held: FitnessStatus, data_dir: Path) -> dict[str, Any]:
    return {
        "level": int(held.level),
        "name": held.level.name.lower(),
        "reason": held.reason,
        "do": _advice(held, data_dir),
        "since": held.since,
    }


def unready_reasons(node: NodeView) -> list[Sentence]:
    """Why this node's unfitness keeps it from serving; empty if it can serve anyway."""
    if node.formed is None:
        return []
    data_dir, reasons = node.config.data_dir, list[Sentence]()
    status = node.formed.replica.core.status()
    if not status.disk_answers:  # Now: the level is kept for a while after it has answered.
        hangs = f"the disk has not answered for an election timeout; {advice(Level.DISK_HANGS, data_dir)}"
        reasons.append(Sentence(Level.DISK_HANGS.name.lower(), hangs))
    applier = node.formed.applying.applier
    if applier.refusal is not None:
        failed = Level.MACHINE_FAILED.name.lower()
        reasons += [Sentence(failed, str(each)) for each in (applier.failure, applier.unproven) if each is not None]
    elif (behind := _why_behind(status, applier.applied_index, data_dir)) is not None:
        reasons.append(behind)
    if node.leadership.leader_id == node.config.node:
        held = (status.fitness, *status.fitness.lower)
        stops = [level for level in held if level.level in STOPS_A_LEADER or runs_other_code(level)]
        reasons += [_sentence(level, data_dir) for level in stops]
    return reasons


def _why_behind(status: Status, applied_index: int, data_dir: Path) -> Sentence | None:
    """Why a node whose machine is behind serves nothing; None if it is not behind.

    After a start or an install it is behind until everything committed at that time is applied. After that the level
    decides, so that a node that is slightly late under load does not keep switching.
    """
    for held in (status.fitness, *status.fitness.lower):
        if held.level is Level.APPLY_LAG and held.reason != ROTTEN:
            return _sentence(held, data_dir)
    if applied_index < status.backlog.end_index:
        count = f"{status.backlog.end_index - applied_index:,} records"
        why = f"{count} that were committed before this node started or installed a snapshot are not applied yet"
        return Sentence(Level.APPLY_LAG.name.lower(), why)
    return None


async def log_levels(replica: Replica[Waiter], data_dir: Path, look_s: float) -> None:
    """Log each change of the level, once, until cancelled."""
    known = Level.FIT
    while True:
        fitness = replica.core.status().fitness
        if fitness.level is not known:
            if fitness.level is Level.FIT:
                journal.info("fit to lead again", was=known.name.lower())
            else:
                what = _advice(fitness, data_dir)
                journal.warning("unfit to lead", level=fitness.level.name.lower(), reason=fitness.reason, do=what)
            known = fitness.level
        await asyncio.sleep(look_s)
