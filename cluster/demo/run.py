"""The demo from start to stop: start, load, compare, show, and stay up until Ctrl-C."""

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from rich.console import Console

from ..cli.exits import Exit, complain
from ..cli.load import BATCH_COMMANDS, Loaded, load
from ..cli.output import to_json
from ..cli.progress import shown_progress
from ..cli.status import NodeRow, Rows, ask_nodes, node_table
from ..client import Client, ClientError, connect
from .classroom import expected_answer, require_scripts, write_instructions
from .nodes import DemoFailed, DemoNodes

READY_TIMEOUT_S = 30.0
EQUAL_TIMEOUT_S = 60.0
POLL_S = 0.05


class Outcome(NamedTuple):
    """What the demo came to."""

    loaded: dict[str, Any]
    expected: str
    rows: Rows

    @property
    def differences(self) -> list[str]:
        """What is not as it must be, in words; empty if every node gives the expected answer."""
        found = [f"{node_id} gives no answer: {row.failure}" for node_id, row in self.rows.items() if _broken(row)]
        for name in ("applied_index", "digest"):
            values = {node_id: row.status[name] for node_id, row in self.rows.items() if row.status}
            if len(set(values.values())) != 1:
                found.append(f"{name} differs: {values}")
        wrong = {node_id: row.answer for node_id, row in self.rows.items() if row.answer != self.expected}
        if wrong:
            found.append(f"the answer must be {self.expected}: {wrong}")
        return found


def run_demo(*, check: bool, data_dir: Path | None, commands: int, as_json: bool) -> int:
    """Run the demo; return the exit code: 0 if every node gave the expected answer."""
    try:
        require_scripts()
    except DemoFailed as error:
        complain(str(error))
        return Exit.FAILED
    directory = Path(tempfile.mkdtemp(prefix="quire-demo-")) if data_dir is None else data_dir
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_demo(directory, commands, check=check, as_json=as_json))
    except (DemoFailed, ClientError) as error:
        complain(f"{error}\nquire: the nodes' logs are in {directory}")
        return Exit.FAILED
    if data_dir is None and code is not Exit.FAILED:
        shutil.rmtree(directory, ignore_errors=True)
    return code


async def _demo(directory: Path, commands: int, *, check: bool, as_json: bool) -> Exit:
    console = Console(stderr=as_json)
    nodes = DemoNodes(directory)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        await nodes.start()
        console.print(f"Three nodes are starting; their data and logs are in {directory}", highlight=False)
        outcome = await _unless_ended(_load_and_compare(nodes, commands, console), nodes, interrupted)
        if outcome is None:
            return Exit.INTERRUPTED
        _show(outcome, console, as_json=as_json)
        if check:
            return Exit.FAILED if outcome.differences else Exit.DONE
        _say_what_next(nodes, console)
        await _unless_ended(asyncio.Event().wait(), nodes, interrupted)
        return Exit.FAILED if outcome.differences else Exit.DONE
    finally:
        console.print("Stopping the nodes ...")
        await nodes.stop()


async def _unless_ended(work: Any, nodes: DemoNodes, interrupted: asyncio.Event) -> Any:
    """What the work gives; None after Ctrl-C. Raises DemoFailed if a node ends meanwhile."""
    working = asyncio.ensure_future(work)
    others = [asyncio.create_task(nodes.watch()), asyncio.create_task(interrupted.wait())]
    try:
        done, _ = await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
        if others[0] in done:
            others[0].result()
        return working.result() if working in done else None
    finally:
        for task in (working, *others):
            task.cancel()
        await asyncio.gather(working, *others, return_exceptions=True)


async def _load_and_compare(nodes: DemoNodes, commands: int, console: Console) -> Outcome:
    file = nodes.directory / "instructions.ndjson"
    async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
        await asyncio.gather(write_instructions(file, commands), *map(client.ready, nodes.addresses.values()))
        before = await client.state()
        loaded = Loaded()
        with file.open("rb") as lines, shown_progress("loading", file.stat().st_size, hidden=False) as progress:
            await load(client, lines, BATCH_COMMANDS, loaded, None, progress)
        summary = loaded.summary()
        console.print(
            f"{summary['commands']:,} instructions in {summary['seconds']:g} s ({summary['rate']:,}/s), "
            "all of them on a majority's disks",
            highlight=False,
            soft_wrap=True,
        )
        rows, expected = await asyncio.gather(
            _all_applied(client, nodes, loaded.applied_index or 0), expected_answer(file, str(before.state))
        )
    return Outcome(summary, expected, rows)


async def _all_applied(client: Client, nodes: DemoNodes, index: int) -> Rows:
    """The nodes' rows once all have applied everything below `index`, or as they are when the time is over."""
    deadline = asyncio.get_running_loop().time() + EQUAL_TIMEOUT_S
    while True:
        rows = await ask_nodes(client, nodes.addresses)
        if all(row.status and row.status["applied_index"] >= index for row in rows.values()):
            return rows
        if asyncio.get_running_loop().time() > deadline:
            return rows
        await asyncio.sleep(POLL_S)


def _broken(row: NodeRow) -> bool:
    return row.status is None or bool(row.failure)


def _show(outcome: Outcome, console: Console, *, as_json: bool) -> None:
    differences = outcome.differences
    if as_json:
        nodes = {node_id: row._asdict() for node_id, row in outcome.rows.items()}
        sys.stdout.write(
            to_json({**outcome._asdict(), "rows": nodes, "equal": not differences, "differences": differences}) + "\n"
        )
    console.print(node_table(outcome.rows))
    if differences:
        for difference in differences:
            complain(difference)
        return
    console.print(
        f"All three nodes answer {outcome.expected},\n"
        "with equal applied_index and digest. examples/classroom_check.py, which\n"
        "knows nothing of quire, gives the same.",
        highlight=False,
    )


def _say_what_next(nodes: DemoNodes, console: Console) -> None:
    console.print(
        f"\nThe nodes stay up until Ctrl-C. Try, in another terminal:\n\n"
        f"  export QUIRE_SERVER={nodes.servers}\n"
        "  quire apply add 3                  one more instruction, and the new answer\n"
        "  quire state                        the answer, with the digest of how it was reached\n"
        "  quire status                       this table again\n"
        "  quire read --from 1 --to 6         the first records of the log\n",
        highlight=False,
        soft_wrap=True,
    )
