"""What every demo does around its own: three nodes in a directory, watched until Ctrl-C or the end, and stopped."""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop
from rich.console import Console

from ..cli.output import Exit, complain, to_json
from ..cli.status import Rows, ask_nodes
from ..client import Client, ClientError
from .nodes import DemoFailed, DemoNodes

READY_TIMEOUT_S = 30.0
EQUAL_TIMEOUT_S = 60.0
POLL_S = 0.05

T = TypeVar("T")


class Shown(Protocol):
    """What a demo came to."""

    @property
    def differences(self) -> list[str]:
        """What is not as it must be, in words; empty if all is well."""
        ...


Outcome = TypeVar("Outcome", bound=Shown)


class Stage:
    """Three nodes that run, and where to tell of them."""

    def __init__(self, nodes: DemoNodes, console: Console, interrupted: asyncio.Event) -> None:
        self.nodes = nodes
        self.console = console
        self._interrupted = interrupted

    def say(self, sentence: str) -> None:
        """Tell whoever watches, on a line of its own."""
        self.console.print(sentence, highlight=False, soft_wrap=True)

    async def unless_ended(self, work: Awaitable[T]) -> T | None:
        """What the work gives; None after Ctrl-C. Raises DemoFailed if a node ends meanwhile."""
        working = asyncio.ensure_future(work)
        watching = asyncio.create_task(self.nodes.watch())
        others = [watching, asyncio.create_task(self._interrupted.wait())]
        try:
            done, _ = await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
            if watching in done:
                watching.result()
            return working.result() if working in done else None
        finally:
            for task in (working, *others):
                task.cancel()
            await asyncio.gather(working, *others, return_exceptions=True)

    async def all_applied(self, client: Client, index: int) -> Rows:
        """The nodes' rows once all have applied everything below `index`, or as they are when the time is over."""
        deadline = asyncio.get_running_loop().time() + EQUAL_TIMEOUT_S
        while True:
            rows = await ask_nodes(client, self.nodes.addresses)
            if all(row.status and row.status["applied_index"] >= index for row in rows.values()):
                return rows
            if asyncio.get_running_loop().time() > deadline:
                return rows
            await asyncio.sleep(POLL_S)


def run_shown(
    work: Callable[[Stage], Awaitable[Outcome]],
    show: Callable[[Outcome, Console], None],
    document: Callable[[Outcome], dict[str, Any]],
    *,
    as_json: bool,
    relayed: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Exit:
    """Run a demo on fresh nodes, show what it came to, as JSON, too, if asked; return the exit code: 0 if all is well.

    `relayed`, `flags`: as `run_scenario`.
    """

    async def scenario(stage: Stage) -> Exit:
        outcome = await stage.unless_ended(work(stage))
        if outcome is None:
            return Exit.INTERRUPTED
        if as_json:
            sys.stdout.write(to_json(document(outcome)) + "\n")
        show(outcome, stage.console)
        return Exit.FAILED if outcome.differences else Exit.DONE

    return run_scenario(scenario, data_dir=None, as_json=as_json, relayed=relayed, flags=flags)


def run_scenario(
    scenario: Callable[[Stage], Awaitable[Exit]],
    *,
    data_dir: Path | None,
    as_json: bool,
    relayed: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Exit:
    """Run a scenario on three nodes; return the exit code. A fresh directory goes if nothing failed.

    `relayed`: over links that `DemoNodes.cut` and `heal` work on. `flags`: further ones of each node, by its id.
    """
    directory = Path(tempfile.mkdtemp(prefix="quire-demo-")) if data_dir is None else data_dir
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_on_stage(scenario, DemoNodes(directory, relayed=relayed, flags=flags), as_json=as_json))
    except (DemoFailed, ClientError) as error:
        complain(f"{error}\nquire: the nodes' logs are in {directory}")
        return Exit.FAILED
    if data_dir is None and code is not Exit.FAILED:
        shutil.rmtree(directory, ignore_errors=True)
    return code


async def _on_stage(scenario: Callable[[Stage], Awaitable[Exit]], nodes: DemoNodes, *, as_json: bool) -> Exit:
    console = Console(stderr=as_json)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        await nodes.start()
        console.print(f"Three nodes are starting; their data and logs are in {nodes.directory}", highlight=False)
        return await scenario(Stage(nodes, console, interrupted))
    finally:
        console.print("Stopping the nodes ...")
        await nodes.stop()
