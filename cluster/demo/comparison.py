"""`quire demo`: loads the example instructions, and compares the nodes' answers with an independent program's."""

import asyncio
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from ..cli.calls.load import BATCH_COMMANDS, Loaded, Summary, load, source_of
from ..cli.nodes.rows import NodeRow, Rows
from ..cli.nodes.table import print_nodes
from ..cli.output import Exit, complain, say_all, to_json
from ..cli.progress import shown_progress
from ..client import connect
from .nodes import DemoFailed
from .scenario import READY_TIMEOUT_S, Demo, run_on_nodes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
INSTRUCTIONS, CHECK = "classroom.py", "classroom_check.py"
SCRIPT_TIMEOUT_S = 300.0


class Comparison(NamedTuple):
    """The summary of the load, the expected answer, and the nodes' status and answers."""

    loaded: Summary
    expected: str
    rows: Rows

    @property
    def differences(self) -> list[str]:
        """What is wrong, in sentences; empty if every node gives the expected answer."""
        found = [f"{node_id} gives no answer: {row.failure}" for node_id, row in self.rows.items() if _failed(row)]
        for name in ("applied_index", "digest"):
            values = {node_id: row.status[name] for node_id, row in self.rows.items() if row.status}
            if len(set(values.values())) != 1:
                found.append(f"{name} differs: {values}")
        wrong = {node_id: row.answer for node_id, row in self.rows.items() if row.answer != self.expected}
        if wrong:
            found.append(f"the answer must be {self.expected}: {wrong}")
        return found


def run_demo(*, check: bool, data_dir: Path | None, commands: int, as_json: bool) -> Exit:
    """Run the demo; return the exit code: 0 if every node gave the expected answer."""
    missing = [script for script in (INSTRUCTIONS, CHECK) if not (EXAMPLES / script).is_file()]
    if missing:
        complain(f"the demo needs {missing[0]} from the repository's examples/; run it in a clone: make demo")
        return Exit.FAILED

    async def run(demo: Demo) -> Exit:
        comparison = await demo.unless_interrupted(_load_and_compare(demo, commands))
        if comparison is None:
            return Exit.INTERRUPTED
        await _show(comparison, demo, as_json=as_json)
        if not check:
            _suggest_commands(demo)
            await demo.unless_interrupted(asyncio.Event().wait())
        return Exit.FAILED if comparison.differences else Exit.DONE

    return run_on_nodes(run, data_dir=data_dir, as_json=as_json)


async def _load_and_compare(demo: Demo, commands: int) -> Comparison:
    nodes = demo.nodes
    file = nodes.directory / "instructions.ndjson"
    async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
        writing = _run_script(INSTRUCTIONS, "--count", str(commands), "--output", str(file))
        await asyncio.gather(writing, *map(client.ready, nodes.addresses.values()))
        before = await client.state()
        loaded = Loaded()
        with file.open("rb") as lines, shown_progress("loading", file.stat().st_size, hidden=False) as progress:
            await load(client, source_of(lines), BATCH_COMMANDS, loaded, None, progress)
        summary = loaded.summary()
        demo.report(
            f"{summary['commands']:,} instructions in {summary['seconds']:g} s ({summary['rate']:,}/s), "
            "durable on a majority of the nodes"
        )
        rows, expected = await asyncio.gather(
            demo.all_applied(loaded.applied_index or 0),
            _run_script(CHECK, f"--initial={before.state!s}", str(file)),
        )
    return Comparison(summary, expected.strip(), rows)


async def _run_script(script: str, *arguments: str) -> str:
    """The output of a script in examples/. Raises DemoFailed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SCRIPT_TIMEOUT_S):
            output, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise DemoFailed(f"{script} exited with code {process.returncode}: {errors.decode(errors='replace').strip()}")
    return output.decode()


def _failed(row: NodeRow) -> bool:
    return row.status is None or bool(row.failure)


async def _show(comparison: Comparison, demo: Demo, *, as_json: bool) -> None:
    differences = comparison.differences
    if as_json:
        nodes = {node_id: row.document() for node_id, row in comparison.rows.items()}
        document = {**comparison._asdict(), "rows": nodes, "equal": not differences, "differences": differences}
        await demo.unless_interrupted(say_all([to_json(document)]))
    print_nodes(demo.console, comparison.rows)
    if differences:
        for difference in differences:
            complain(difference)
        return
    demo.console.print(
        f"All three nodes answer {comparison.expected},\n"
        "with equal applied_index and digest. So does examples/classroom_check.py,\n"
        "which shares no code with quire.",
        highlight=False,
    )


def _suggest_commands(demo: Demo) -> None:
    demo.report(
        f"\nThe nodes run until Ctrl-C. Try in another terminal:\n\n"
        f"{_path_to_quire()}"
        f"  export QUIRE_SERVER={demo.nodes.servers}\n"
        "  quire apply add 3                  apply one more instruction, and print the new answer\n"
        "  quire state                        print the answer and its digest\n"
        "  quire status                       show this table again\n"
        "  quire read --from 1 --to 6         print the first records of the log\n"
    )


def _path_to_quire() -> str:
    """The command after which the shell finds this program as `quire`; nothing if it does."""
    folder = Path(sys.executable).parent
    found = shutil.which("quire")
    if found and Path(found).parent.resolve() == folder.resolve():
        return ""
    return f"  export PATH={shlex.quote(str(folder))}:$PATH\n"
