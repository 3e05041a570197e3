"""`quire demo kill leader`: how long a failover takes, and that it loses no acknowledged command."""

import time
from typing import NamedTuple

from ..cli.nodes.rows import Rows
from ..cli.output import Exit
from ..client import Client
from .nodes import DemoFailed, DemoNodes
from .scenario import CLIENTS, Demo, Leader, find_leader, run_scenario, under_load
from .writers import Writers, differences_in

COMMANDS_BEFORE = 2_000
COMMANDS_AFTER = 2_000


class Failover(NamedTuple):
    """A failover. `seconds` runs from just before the kill to the next leader's first acknowledged command."""

    killed: Leader
    elected: Leader
    seconds: float


class Outcome(NamedTuple):
    """The result: `lost` acknowledged commands are not in the log; the state is off by `off`."""

    failover: Failover
    acknowledged: int
    lost: int
    off: int
    rows: Rows

    @property
    def differences(self) -> list[str]:
        """What is wrong, in sentences; empty if nothing is."""
        return differences_in(self.rows, self.acknowledged, self.lost, self.off)


def run_failover(*, as_json: bool) -> Exit:
    """Run the scenario on new nodes; return the exit code: 0 if nothing was lost."""
    return run_scenario(_kill_the_leader, _conclusion, _document, as_json=as_json)


async def _kill_the_leader(demo: Demo) -> Outcome:
    nodes, report = demo.nodes, demo.report
    async with under_load(demo, COMMANDS_BEFORE) as scenario:
        writers = scenario.writers
        failover = await kill_leader(scenario.client, nodes, writers)
        killed, elected = failover.killed, failover.elected
        report(f"{killed.node_id} led epoch {killed.epoch} ({killed.reason}); SIGKILL while {CLIENTS} clients write")
        report(f"{elected.node_id} leads epoch {elected.epoch} ({elected.reason})")
        report(f"time from the kill to the next acknowledged command: {failover.seconds:.3f} s")
        await nodes.start_node(killed.node_id)
        await scenario.client.ready(nodes.addresses[killed.node_id])
        report(f"{killed.node_id} is restarted and follows")
        await writers.acknowledged(COMMANDS_AFTER)
        rows, off = await scenario.end()
        return Outcome(failover, writers.commands, await writers.lost(scenario.client), off, rows)


def _conclusion(outcome: Outcome) -> str:
    return (
        f"acknowledged commands lost: 0 (of {outcome.acknowledged:,})\n"
        "Each is in the log at its acknowledged index, each was executed exactly\n"
        "once, and all three nodes agree."
    )


async def kill_leader(client: Client, nodes: DemoNodes, writers: Writers) -> Failover:
    """Kill the leader, and wait until the next one acknowledges a command. Raises DemoFailed, Unavailable."""
    killed = await find_leader(client)
    at = time.monotonic()
    await nodes.kill(killed.node_id)
    first = await writers.acknowledged(1, above_epoch=killed.epoch)
    elected = await find_leader(client)
    if elected.epoch < first.epoch:
        raise DemoFailed(
            f"a command was acknowledged in epoch {first.epoch}, but {elected.node_id} leads epoch {elected.epoch}"
        )
    return Failover(killed, elected, first.at - at)


def _document(outcome: Outcome) -> dict[str, object]:
    failover = outcome.failover
    return {
        "killed": failover.killed._asdict(),
        "elected": failover.elected._asdict(),
        "seconds": round(failover.seconds, 6),
        "acknowledged": outcome.acknowledged,
        "lost": outcome.lost,
        "state_off_by": outcome.off,
        "nodes": {node_id: row.document() for node_id, row in outcome.rows.items()},
        "differences": outcome.differences,
    }
