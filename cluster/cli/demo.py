"""`quire demo`, and what can be done to its nodes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..demo import Lesson, run_demo, run_expire, run_kill, run_lesson
from .connection import Json

demo_app = typer.Typer(no_args_is_help=False)


class Victim(StrEnum):
    """Whom `quire demo kill` kills."""

    LEADER = "leader"


@demo_app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="End when the answers are compared; 0 only if all agree.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Keep the nodes' data here; may be used again. Default: a fresh one."),
    ] = None,
    commands: Annotated[int, typer.Option("--commands", min=1, help="How many instructions to load.")] = 100_000,
    as_json: Json = False,
) -> None:
    """Start three nodes on this machine, load the classroom's instructions, show that all reach the same answer."""
    if context.invoked_subcommand is None:
        raise typer.Exit(run_demo(check=check, data_dir=data_dir, commands=commands, as_json=as_json))


@demo_app.command()
def kill(
    victim: Annotated[Victim, typer.Argument(help="Whom to kill.")],
    as_json: Json = False,
) -> None:
    """Kill the leader of three nodes under load; show who leads next, after how long, and that nothing was lost."""
    match victim:
        case Victim.LEADER:
            raise typer.Exit(run_kill(as_json=as_json))


@demo_app.command()
def pause(as_json: Json = False) -> None:
    """Let a follower stand still under load; show its lag while it lasts, and how it comes level again."""
    raise typer.Exit(run_lesson(Lesson.PAUSE, as_json=as_json))


@demo_app.command()
def cut(as_json: Json = False) -> None:
    """Cut a follower off under load; show its lag, where its log and the leader's meet again, and what it is sent."""
    raise typer.Exit(run_lesson(Lesson.CUT, as_json=as_json))


@demo_app.command()
def absent(as_json: Json = False) -> None:
    """Let a follower leave and come back under load; show what the absent student copies, and what it need not."""
    raise typer.Exit(run_lesson(Lesson.ABSENT, as_json=as_json))


@demo_app.command()
def diverge(as_json: Json = False) -> None:
    """Cut the leader off under load; show what it wrote in vain, and how that is cut off when it follows again."""
    raise typer.Exit(run_lesson(Lesson.DIVERGE, as_json=as_json))


@demo_app.command()
def expire(as_json: Json = False) -> None:
    """Let each node's log expire by its own limit; a follower that is away for too long is sent a snapshot."""
    raise typer.Exit(run_expire(as_json=as_json))
