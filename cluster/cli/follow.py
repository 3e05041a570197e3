"""`quire tail` and `quire status --watch`: what runs until it is told to stop, by Ctrl-C or a closed pipe."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from dataclasses import asdict

from rich.console import Console
from rich.live import Live

from ..client import ClientError, connect
from .asking import exit_of
from .exits import Exit, complain
from .output import to_json
from .status import Rows, all_nodes, node_table


def follow_log(servers: str, from_index: int | None, count: int | None, *, timeout_s: float) -> int:
    """Print records as lines of JSON as they become visible; return the exit code."""
    return _until_stopped(lambda: asyncio.run(_print_records(servers, from_index, count, timeout_s)))


async def _print_records(servers: str, from_index: int | None, count: int | None, timeout_s: float) -> None:
    left = count
    async with connect(servers, timeout_s=timeout_s) as client, aclosing(client.tail_pages(from_index)) as pages:
        async for page in pages:
            sys.stdout.writelines(to_json(asdict(record)) + "\n" for record in page[:left])
            sys.stdout.flush()
            if left is not None:
                left -= len(page)
                if left <= 0:
                    return


def watch_status(servers: str, interval_s: float, *, as_json: bool, timeout_s: float) -> int:
    """Show every node again and again: in place on a terminal, one after the other elsewhere; return the exit code."""
    return _until_stopped(lambda: asyncio.run(_show_nodes(servers, interval_s, as_json, timeout_s)))


async def _show_nodes(servers: str, interval_s: float, as_json: bool, timeout_s: float) -> None:
    console = Console()
    in_place = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
        while True:
            rows = await _asked(servers, timeout_s)
            if rows is None:
                pass  # Said on stderr; the nodes may come back.
            elif as_json:
                print(to_json({node_id: row._asdict() for node_id, row in rows.items()}), flush=True)
            elif live is not None:
                live.update(node_table(rows), refresh=True)
            else:
                console.print(node_table(rows))
                sys.stdout.flush()
            await asyncio.sleep(interval_s)


async def _asked(servers: str, timeout_s: float) -> Rows | None:
    try:
        return await all_nodes(servers, timeout_s)
    except ClientError as error:
        complain(str(error))
        return None


def _until_stopped(run: Callable[[], None]) -> int:
    try:
        run()
    except KeyboardInterrupt:
        return Exit.DONE  # It was to run until then.
    except BrokenPipeError:
        # Whoever read this has seen enough, as in `quire tail | head`. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except ClientError as error:
        return exit_of(error)
    return Exit.DONE
