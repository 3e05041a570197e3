"""The demo itself: load, compare, show, and stay up until Ctrl-C."""

import asyncio
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from ..cli.load import BATCH_COMMANDS, Loaded, load
from ..cli.output import Exit, complain, to_json
from ..cli.progress import shown_progress
from ..cli.status import NodeRow, Rows, node_table
from ..client import connect
from .classroom import expected_answer, require_scripts, write_instructions
from .nodes import DemoFailed
from .scenario import READY_TIMEOUT_S, Stage, run_scenario


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

    async def classroom(stage: Stage) -> Exit:
        outcome = await stage.unless_ended(_load_and_compare(stage, commands))
        if outcome is None:
            return Exit.INTERRUPTED
        _show(outcome, stage.console, as_json=as_json)
        if not check:
            _say_what_next(stage)
            await stage.unless_ended(asyncio.Event().wait())
        return Exit.FAILED if outcome.differences else Exit.DONE

    return run_scenario(classroom, data_dir=data_dir, as_json=as_json)


async def _load_and_compare(stage: Stage, commands: int) -> Outcome:
    nodes = stage.nodes
    file = nodes.directory / "instructions.ndjson"
    async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
        await asyncio.gather(write_instructions(file, commands), *map(client.ready, nodes.addresses.values()))
        before = await client.state()
        loaded = Loaded()
        with file.open("rb") as lines, shown_progress("loading", file.stat().st_size, hidden=False) as progress:
            await load(client, lines, BATCH_COMMANDS, loaded, None, progress)
        summary = loaded.summary()
        stage.console.print(
            f"{summary['commands']:,} instructions in {summary['seconds']:g} s ({summary['rate']:,}/s), "
            "all of them on a majority's disks",
            highlight=False,
            soft_wrap=True,
        )
        rows, expected = await asyncio.gather(
            stage.all_applied(client, loaded.applied_index or 0), expected_answer(file, str(before.state))
        )
    return Outcome(summary, expected, rows)


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


def _say_what_next(stage: Stage) -> None:
    stage.console.print(
        f"\nThe nodes stay up until Ctrl-C. Try, in another terminal:\n\n"
        f"  export QUIRE_SERVER={stage.nodes.servers}\n"
        "  quire apply add 3                  one more instruction, and the new answer\n"
        "  quire state                        the answer, with the digest of how it was reached\n"
        "  quire status                       this table again\n"
        "  quire read --from 1 --to 6         the first records of the log\n",
        highlight=False,
        soft_wrap=True,
    )
