"""`quire status` and `quire status --watch`: what is wrong with a cluster, and the status of every node side by side.

The exit code is for scripts and monitors: 0 if every member answers and is ready, 1 if one does not, or hears a node
of another history, 3 if no server gave a status. `--watch` asks all nodes again at every interval, each with a deadline
of a second.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from ..access.client_credentials import ClientCredentials, TokenRefused
from ..access.tls import TlsRefused
from ..terminal import escaped
from .connection import ClusterOptions, fail_usage
from .nodes.asking import Denied, NoAnswer, NodeCaller, NotReached, Silent
from .nodes.problems import problem_lines, problems_of, problems_of_log, shown_problems
from .nodes.rows import LogRow, Survey, TwoClusters, survey
from .output import Exit, complain, interruptible, say_all, say_escaped, to_json

if TYPE_CHECKING:
    from rich.live import Live

LOOK_S = 0.2
WATCH_TIMEOUT_S = 1.0
"""The deadline of each node's answer while the cluster is watched: a frozen node shows within that time."""


def show_status(cluster: ClusterOptions, *, as_json: bool, timeout_s: float, states: bool, wait_s: float = 0.0) -> Exit:
    """Print the status of all nodes that the servers know, once all are ready or `wait_s` is over; return the code."""
    servers, until = cluster.servers.split(","), time.monotonic() + wait_s

    async def ask() -> Survey:
        async with _calling(cluster) as caller:
            while True:
                found = await survey(caller, servers, timeout_s, states=states)
                if time.monotonic() >= until or (found and _is_well(found)):
                    return found
                await asyncio.sleep(LOOK_S)

    try:
        with interruptible():
            found = asyncio.run(ask())
    except TwoClusters as error:
        fail_usage(f"--server or QUIRE_SERVER: {error}")
    except KeyboardInterrupt:
        complain("interrupted")
        return Exit.INTERRUPTED
    if not found:
        complain(_nobody(found.strays))
        return Exit.FAILED if any(isinstance(each, Denied) for each in found.strays) else Exit.UNAVAILABLE
    _complain_of(found.strays)
    say_escaped(_printed(found, as_json=as_json))
    return _exit_of(found)


async def watch_status(
    cluster: ClusterOptions, interval_s: float, *, as_json: bool, timeout_s: float, states: bool
) -> None:
    """Print the status of all nodes at every interval; on a terminal, each replaces the previous one."""
    servers, patience_s = cluster.servers.split(","), min(timeout_s, WATCH_TIMEOUT_S)
    known: Mapping[str, str] = {}
    complained: set[str] = set()
    async with _calling(cluster) as caller:
        with _screen(as_json=as_json) as screen:
            while True:
                due_at = time.monotonic() + interval_s
                try:
                    found = await survey(caller, servers, patience_s, states=states, known=known)
                except TwoClusters as error:
                    fail_usage(f"--server or QUIRE_SERVER: {error}")
                if not found:
                    complain(_nobody(found.strays))  # The nodes may come back.
                else:
                    known = {node_id: row.address for node_id, row in found.rows.items()}
                    new, complained = _new(found.strays, complained)
                    _complain_of(new)
                    await screen.show(found)
                await asyncio.sleep(max(0.0, due_at - time.monotonic()))


def _new(strays: Sequence[NoAnswer], complained: Collection[str]) -> tuple[list[NoAnswer], set[str]]:
    """Those that were not reported at the previous interval; and what has been reported now."""
    return [stray for stray in strays if str(stray) not in complained], {str(stray) for stray in strays}


@asynccontextmanager
async def _calling(cluster: ClusterOptions) -> AsyncGenerator[NodeCaller]:
    """Connections with the options' credentials. Wrong ones are printed, and the command exits."""
    try:
        credentials = ClientCredentials(cluster.token_file, cluster.ca)
    except (ValueError, TokenRefused, TlsRefused) as error:
        fail_usage(str(error))
    async with NodeCaller(credentials) as caller:
        yield caller


class _Lines:
    """Shows each survey after the previous one: as JSON, or as lines and a table."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    async def show(self, found: Survey) -> None:
        """Print a survey, however long its reader takes."""
        await say_all(_printed(found, as_json=self._as_json))


class _InPlace:
    """Shows each survey in place of the previous one."""

    def __init__(self, live: "Live") -> None:
        self._live = live

    async def show(self, found: Survey) -> None:
        """Replace what is on the screen."""
        from rich.console import Group
        from rich.text import Text

        from .nodes.table import cursor_lines, node_table

        parts = [Text(line) for line in _lines(found)]
        if found.logs:
            self._live.update(Group(*parts), refresh=True)
            return
        below = [Text(line) for line in cursor_lines(found.rows)]
        self._live.update(Group(*parts, node_table(found.rows), *below), refresh=True)


@contextmanager
def _screen(*, as_json: bool) -> Generator[_Lines | _InPlace]:
    if as_json or not sys.stdout.isatty():
        yield _Lines(as_json=as_json)
        return
    from rich.live import Live  # Only a table needs rich, which takes longer to import than to ask.

    from .console import EscapingConsole

    with Live(console=EscapingConsole(), auto_refresh=False) as live:
        yield _InPlace(live)


def _printed(found: Survey, *, as_json: bool) -> list[str]:
    if as_json:
        return [to_json(_document(found))]
    lines = [escaped(line) for line in _lines(found)]
    if not found.logs:
        from .console import EscapingConsole
        from .nodes.table import cursor_lines, node_table

        console = EscapingConsole()
        with console.capture() as table:
            console.print(node_table(found.rows))
        lines += [*table.get().splitlines(), *map(escaped, cursor_lines(found.rows))]
    return lines


def _lines(found: Survey) -> list[str]:
    """What stands before the table: the problems, and the standalone logs."""
    of_logs = [f"{log.address} {problem}" for log in found.logs for problem in problems_of_log(log)]
    return [*shown_problems([*problem_lines(found.rows), *of_logs]), *map(_of_log, found.logs)]


def _of_log(log: LogRow) -> str:
    accepts = "accepting records" if log.reason is None else "accepting none"
    return f"standalone log at {log.address}: records [{log.lowest_index:,}, {log.highest_index:,}), {accepts}"


def _document(found: Survey) -> Mapping[str, object]:
    """For JSON: a row by node id, or by address if it is a standalone log."""
    problems = problems_of(found.rows)
    rows = {node_id: {**row.document(), "problems": problems[node_id]} for node_id, row in found.rows.items()}
    logs = {log.address: {**log.document(), "problems": problems_of_log(log)} for log in found.logs}
    return rows or logs


def _complain_of(strays: Sequence[NoAnswer]) -> None:
    for stray in strays:
        complain(f"{stray}; no node shown has this address, which --server or QUIRE_SERVER names")


def _nobody(absent: Sequence[NoAnswer]) -> str:
    """Why there is no status at all, and what to do. Servers that fail alike are named together."""
    alike: dict[tuple[type[NoAnswer], str], list[NoAnswer]] = {}
    for each in absent:
        # The text of a refusal names the node, so it is another one for each.
        alike.setdefault((type(each), "" if isinstance(each, Denied) else each.predicate), []).append(each)
    said = [f"{first}{_same_for(others)}" for first, *others in alike.values()]
    advice = [each.advice for each in absent if each.advice and not isinstance(each, NotReached | Silent)]
    if any(isinstance(each, NotReached | Silent) for each in absent):
        advice.append("check --server, or start the nodes")
    return "; ".join([*said, *dict.fromkeys(advice)])


def _same_for(others: Sequence[NoAnswer]) -> str:
    return f"; so for {', '.join(each.server for each in others)}" if others else ""


def _is_well(found: Survey) -> bool:
    return all(row.is_well for row in found.rows.values()) and all(log.reason is None for log in found.logs)


def _exit_of(found: Survey) -> Exit:
    return Exit.DONE if _is_well(found) else Exit.FAILED
