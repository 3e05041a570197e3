"""`quire demo` and its scenarios."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .connection import Json
from .group import Group
from .output import interruptible

demo_app = typer.Typer(name="demo", cls=Group, no_args_is_help=False)


class Victim(StrEnum):
    """Which node `quire demo kill` kills."""

    LEADER = "leader"


@demo_app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Exit after the comparison: with 0 only if all nodes agree.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Keep the nodes' data here for later runs. Default: a temporary directory."),
    ] = None,
    commands: Annotated[int, typer.Option("--commands", min=1, help="How many instructions to load.")] = 100_000,
    as_json: Json = False,
) -> None:
    """Run three nodes and compare their answers.

    Starts three nodes on this machine, loads the example instructions, and compares each node's answer with that of an
    independent program. The nodes run until Ctrl-C.
    """
    if context.invoked_subcommand is None:
        from ..demo import run_demo

        with interruptible():
            raise typer.Exit(run_demo(check=check, data_dir=data_dir, commands=commands, as_json=as_json))


@demo_app.command()
def kill(
    victim: Annotated[Victim, typer.Argument(help="The node to kill.")],
    as_json: Json = False,
) -> None:
    """Kill the leader under load.

    Shows which node leads next, how long the failover takes, and that no acknowledged command is lost.
    """
    from ..demo import run_failover

    match victim:
        case Victim.LEADER:
            with interruptible():
                raise typer.Exit(run_failover(as_json=as_json))


@demo_app.command()
def pause(as_json: Json = False) -> None:
    """Freeze a follower under load. Shows its lag, and how it catches up."""
    _run("PAUSE", as_json=as_json)


@demo_app.command()
def cut(as_json: Json = False) -> None:
    """Cut off a follower under load. Shows its lag, where it continues, and what it receives."""
    _run("CUT", as_json=as_json)


@demo_app.command()
def absent(as_json: Json = False) -> None:
    """Stop and restart a follower under load. Shows which records it copies, and which it need not."""
    _run("ABSENT", as_json=as_json)


@demo_app.command()
def diverge(as_json: Json = False) -> None:
    """Cut off the leader under load. Shows the records it fails to commit, and how they are truncated."""
    _run("DIVERGE", as_json=as_json)


@demo_app.command()
def expire(as_json: Json = False) -> None:
    """Expire the nodes' logs under load. Shows what holds them, and how a stale node receives a snapshot."""
    from ..demo import run_expire

    with interruptible():
        raise typer.Exit(run_expire(as_json=as_json))


def _run(name: str, *, as_json: bool) -> None:
    from ..demo import Fault, run_fault

    with interruptible():
        raise typer.Exit(run_fault(Fault[name], as_json=as_json))
