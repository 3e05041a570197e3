"""`quire demo kill leader`: what a failover costs, and that it costs nothing that was acknowledged."""

import asyncio
import sys
import time
from typing import Any, NamedTuple

from rich.console import Console

from ..cli.exits import Exit, complain
from ..cli.output import to_json
from ..cli.status import Rows, node_table
from ..client import Client, Unavailable, connect
from .nodes import DemoFailed, DemoNodes
from .scenario import READY_TIMEOUT_S, Stage, run_scenario
from .writers import Writers, differences_in

CLIENTS = 4
COMMANDS_BEFORE = 2_000
COMMANDS_AFTER = 2_000


class Leader(NamedTuple):
    """Who leads, since which epoch and why, in its own words."""

    node_id: str
    epoch: int
    reason: str


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

    async def scenario(stage: Stage) -> Exit:
        outcome = await stage.unless_ended(_kill_the_leader(stage))
        if outcome is None:
            return Exit.INTERRUPTED
        if as_json:
            sys.stdout.write(to_json(_document(outcome)) + "\n")
        _show(outcome, stage.console)
        return Exit.FAILED if outcome.differences else Exit.DONE

    return run_scenario(scenario, data_dir=None, as_json=as_json)


async def _kill_the_leader(stage: Stage) -> Outcome:
    nodes, say = stage.nodes, stage.say
    async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
        await asyncio.gather(*map(client.ready, nodes.addresses.values()))
        before = int((await client.state()).state)
        writers = Writers(nodes.servers, CLIENTS)
        writing = tasks.create_task(writers.run())
        await writers.acknowledged(COMMANDS_BEFORE)
        failover = await kill_leader(client, nodes, writers)
        killed, elected = failover.killed, failover.elected
        say(f"{killed.node_id} led epoch {killed.epoch} ({killed.reason}); kill -9, while {CLIENTS} clients write")
        say(f"{elected.node_id} leads epoch {elected.epoch} ({elected.reason})")
        say(f"from the kill to the next acknowledged command: {failover.seconds:.3f} s")
        await nodes.start_node(killed.node_id)
        await client.ready(nodes.addresses[killed.node_id])
        say(f"{killed.node_id} was started again and follows")
        await writers.acknowledged(COMMANDS_AFTER)
        writers.end()
        await writing
        rows = await stage.all_applied(client, (await client.status())["highest_index"])
        off = int((await client.state()).state) - before - writers.sum
        return Outcome(failover, writers.commands, await writers.lost(client), off, rows)


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


async def find_leader(client: Client) -> Leader:
    """Whoever serves as the leader now. Raises Unavailable: nobody did within the client's time."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        status: dict[str, Any] = await client.status()
        if status["serving"]:
            own = [change for change in status["leaders"] if change["role"] == "leader"]
            return Leader(status["node_id"], status["epoch"], own[-1]["reason"])
        await client.state()  # Linearizable: answered once a leader serves, and then the client knows it.
    raise Unavailable("no leader was found")


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
