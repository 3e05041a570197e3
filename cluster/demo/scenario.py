"""Shared by all demos: three nodes that are watched and stopped, and a workload for demos that inject a fault."""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import uvloop

from ..access.client_credentials import ClientCredentials
from ..cli.console import EscapingConsole
from ..cli.nodes.asking import NodeCaller
from ..cli.nodes.rows import Rows, ask_nodes
from ..cli.nodes.table import print_nodes
from ..cli.output import Exit, complain, say_all, to_json
from ..client import Client, ClientError, Status, Unavailable, connect
from ..standard_streams import queue_standard_streams
from .nodes import DemoFailed, DemoNodes
from .writers import BATCH_COMMANDS, Writers

READY_TIMEOUT_S = 30.0
APPLIED_TIMEOUT_S = 60.0
CONDITION_TIMEOUT_S = 60.0
APPLIED_POLL_S = 0.05
CONDITION_POLL_S = 0.02
CLIENTS = 4
OBSERVATIONS = 4
OBSERVE_EVERY_S = 0.7

T = TypeVar("T")


class Result(Protocol):
    """The result of a demo."""

    @property
    def differences(self) -> list[str]:
        """What is wrong, in sentences; empty if nothing is."""
        ...

    @property
    def rows(self) -> Rows:
        """The nodes at the end."""
        ...


Outcome = TypeVar("Outcome", bound=Result)


class Demo:
    """Three running nodes, and the console to report to."""

    def __init__(self, nodes: DemoNodes, console: EscapingConsole, interrupted: asyncio.Event) -> None:
        self.nodes = nodes
        self.console = console
        self._interrupted = interrupted

    def report(self, sentence: str) -> None:
        """Print a line."""
        self.console.print(sentence, highlight=False, soft_wrap=True)

    async def unless_interrupted(self, work: Awaitable[T]) -> T | None:
        """The result of the work, or None after Ctrl-C. Raises DemoFailed if a node exits."""
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

    async def all_applied(self, index: int) -> Rows:
        """The status of all nodes once they have applied everything below `index`; at the timeout, as it is then."""
        deadline = asyncio.get_running_loop().time() + APPLIED_TIMEOUT_S
        async with NodeCaller(ClientCredentials()) as caller:
            while True:
                rows = await ask_nodes(caller, self.nodes.addresses, READY_TIMEOUT_S, states=True)
                if all(row.status and row.status["applied_index"] >= index for row in rows.values()):
                    return rows
                if asyncio.get_running_loop().time() > deadline:
                    return rows
                await asyncio.sleep(APPLIED_POLL_S)


class Leader(NamedTuple):
    """A leader, its epoch, and the reason it gives for leading."""

    node_id: str
    epoch: int
    reason: str


class Scenario(NamedTuple):
    """A demo under load.

    `leader` led and `state_before` was the state when the load began. `writing` is the task of the writers.
    """

    demo: Demo
    client: Client
    writers: Writers
    leader: str
    state_before: int
    writing: asyncio.Task[None]

    @property
    def nodes(self) -> DemoNodes:
        """The nodes."""
        return self.demo.nodes

    async def status(self, node_id: str) -> Status:
        """The status of a node. Raises ClientError."""
        return await self.client.status(self.nodes.addresses[node_id])

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the condition holds. Raises DemoFailed at the timeout."""
        deadline = time.monotonic() + CONDITION_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(ClientError):
                if await condition():
                    return
            await asyncio.sleep(CONDITION_POLL_S)
        raise DemoFailed(f"{what}: not within {CONDITION_TIMEOUT_S:g} s")

    async def end(self) -> tuple[Rows, int]:
        """Stop the writers; return the nodes' status once all have applied everything, and the error of the state."""
        self.writers.end()
        await self.writing
        rows = await self.demo.all_applied((await self.client.status())["highest_index"])
        return rows, int(str((await self.client.state()).state)) - self.state_before - self.writers.sum


@asynccontextmanager
async def under_load(demo: Demo, commands: int, batch_commands: int = BATCH_COMMANDS) -> AsyncGenerator[Scenario, None]:
    """A scenario whose writers have this many commands acknowledged.

    Raises the first error of the block or of a writer.
    """
    nodes = demo.nodes
    try:
        async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
            await asyncio.gather(*map(client.ready, nodes.addresses.values()))
            before = int(str((await client.state()).state))
            writers = Writers(nodes.servers, CLIENTS, batch_commands)
            writing = tasks.create_task(writers.run())
            await writers.acknowledged(commands)
            yield Scenario(demo, client, writers, (await find_leader(client)).node_id, before, writing)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def find_leader(client: Client) -> Leader:
    """The leader that serves now. Raises Unavailable if there is none within the timeout."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        status = await client.status()
        if status["serving"]:
            own = [change for change in status["leaders"] if change["role"] == "leader"]
            return Leader(status["node_id"], status["epoch"], own[-1]["reason"])
        await client.state()  # A linearizable read is answered once a leader serves; the client then knows that leader.
    raise Unavailable("no leader was found")


def run_scenario(
    work: Callable[[Demo], Awaitable[Outcome]],
    conclusion: Callable[[Outcome], str],
    document: Callable[[Outcome], dict[str, object]],
    *,
    as_json: bool,
    proxied: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Exit:
    """Run a scenario on new nodes and show its outcome, also as JSON if asked; return the exit code.

    It is 0 if there are no differences; then `conclusion` is printed. `proxied` and `flags` are those of `DemoNodes`.
    """

    async def run(demo: Demo) -> Exit:
        outcome = await demo.unless_interrupted(work(demo))
        if outcome is None:
            return Exit.INTERRUPTED
        if as_json:
            await demo.unless_interrupted(say_all([to_json(document(outcome))]))
        print_nodes(demo.console, outcome.rows)
        for difference in outcome.differences:
            complain(difference)
        if not outcome.differences:
            demo.console.print(conclusion(outcome), highlight=False)
        return Exit.FAILED if outcome.differences else Exit.DONE

    return run_on_nodes(run, data_dir=None, as_json=as_json, proxied=proxied, flags=flags)


def run_on_nodes(
    work: Callable[[Demo], Awaitable[Exit]],
    *,
    data_dir: Path | None,
    as_json: bool,
    proxied: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Exit:
    """Run a demo on three nodes, in a temporary directory if `data_dir` is None; return the exit code.

    A temporary directory is kept if the demo fails. `proxied` and `flags` are those of `DemoNodes`.
    """
    directory = Path(tempfile.mkdtemp(prefix="quire-demo-")) if data_dir is None else data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        complain(f"{directory} cannot be used: {(error.strerror or str(error)).lower()}; give another --data-dir")
        return Exit.USAGE
    if not as_json:
        queue_standard_streams()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_run_watched(work, DemoNodes(directory, proxied=proxied, flags=flags), as_json=as_json))
    except (DemoFailed, ClientError) as error:
        complain(str(error))
        complain(f"the nodes' data and logs are in {directory}")
        return Exit.FAILED
    if data_dir is None and code is not Exit.FAILED:
        shutil.rmtree(directory, ignore_errors=True)
    return code


async def _run_watched(work: Callable[[Demo], Awaitable[Exit]], nodes: DemoNodes, *, as_json: bool) -> Exit:
    console = EscapingConsole(stderr=as_json)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        await nodes.start()
        console.print(f"Three nodes are starting; their data and logs are in {nodes.directory}", highlight=False)
        return await work(Demo(nodes, console, interrupted))
    finally:
        console.print("Stopping the nodes ...")
        await nodes.stop()
