"""`quire demo kill leader`: what a failover costs, and that it costs nothing that was acknowledged."""

import time
from typing import Any, NamedTuple

from rich.console import Console

from ..cli.output import complain
from ..cli.status import Rows, node_table
from ..client import Client
from .nodes import DemoFailed, DemoNodes
from .room import CLIENTS, Leader, find_leader, writing
from .scenario import Stage, run_shown
from .writers import Writers, differences_in

COMMANDS_BEFORE = 2_000
COMMANDS_AFTER = 2_000


class Failover(NamedTuple):
    """A kill of the leader. `seconds`: from just before the signal to the next leader's first acknowledged command."""

    killed: Leader
    elected: Leader
    seconds: float


class Outcome(NamedTuple):
    """What the scenario came to: how many acknowledged commands the log lacks, and by how much the state is off."""

    failover: Failover
    acknowledged: int
    lost: int
    off: int
    rows: Rows

    @property
    def differences(self) -> list[str]:
        """What is not as it must be, in words; empty if all is well."""
        return differences_in(self.rows, self.acknowledged, self.lost, self.off)


def run_kill(*, as_json: bool) -> int:
    """Run it on fresh nodes; return the exit code: 0 if nothing was lost."""
    return run_shown(_kill_the_leader, _show, _document, as_json=as_json)


async def _kill_the_leader(stage: Stage) -> Outcome:
    nodes, say = stage.nodes, stage.say
    async with writing(stage, COMMANDS_BEFORE) as room:
        writers = room.writers
        failover = await kill_leader(room.client, nodes, writers)
        killed, elected = failover.killed, failover.elected
        say(f"{killed.node_id} led epoch {killed.epoch} ({killed.reason}); kill -9, while {CLIENTS} clients write")
        say(f"{elected.node_id} leads epoch {elected.epoch} ({elected.reason})")
        say(f"from the kill to the next acknowledged command: {failover.seconds:.3f} s")
        await nodes.start_node(killed.node_id)
        await room.client.ready(nodes.addresses[killed.node_id])
        say(f"{killed.node_id} was started again and follows")
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await room.end()
        return Outcome(failover, writers.commands, await writers.lost(room.client), off, rows)


def _show(outcome: Outcome, console: Console) -> None:
    console.print(node_table(outcome.rows))
    for difference in outcome.differences:
        complain(difference)
    if not outcome.differences:
        console.print(
            f"acknowledged commands lost: 0 (of {outcome.acknowledged:,})\n"
            "Each stands in the log where its client was told that it does, each was\n"
            "executed once, as the state says, and all three nodes agree.",
            highlight=False,
        )


async def kill_leader(client: Client, nodes: DemoNodes, writers: Writers) -> Failover:
    """SIGKILL to whoever leads, and the way to the next one. Raises DemoFailed, Unavailable."""
    killed = await find_leader(client)
    at = time.monotonic()
    await nodes.kill(killed.node_id)
    first = await writers.acknowledged(1, above_epoch=killed.epoch)
    elected = await find_leader(client)
    if elected.epoch < first.epoch:
        raise DemoFailed(f"epoch {first.epoch} answered, and {elected.node_id} leads {elected.epoch}")
    return Failover(killed, elected, first.at - at)


def _document(outcome: Outcome) -> dict[str, Any]:
    failover = outcome.failover
    return {
        "killed": failover.killed._asdict(),
        "elected": failover.elected._asdict(),
        "seconds": round(failover.seconds, 6),
        "acknowledged": outcome.acknowledged,
        "lost": outcome.lost,
        "state_off_by": outcome.off,
        "nodes": {node_id: row._asdict() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
