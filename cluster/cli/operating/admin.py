"""Administration of a cluster: `quire transfer`, `snapshot`, `expire`, `session` and `admin`.

Only the options are here. What they do is imported by the command that runs.
"""

from typing import Annotated

import typer

from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, fail_usage
from ..group import Group
from ..output import printable, say, to_json

admin_app = typer.Typer()
code_app = typer.Typer(name="admin", cls=Group, help="Accept changed code of the machine.", no_args_is_help=True)
session_app = typer.Typer(name="session", cls=Group, help="Open, show and close sessions.", no_args_is_help=True)

OneNode = Annotated[str | None, typer.Option("--node", metavar="ID", help="Only this node. Default: every member.")]
SessionId = Annotated[
    int, typer.Argument(metavar="ID", min=1, help="The session's id, from POST /sessions or `quire session open`.")
]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only sessions whose names start with this.")]
IdleS = Annotated[
    float, typer.Option("--idle", metavar="SECONDS", min=0.0, help="Only sessions that have been idle for this long.")
]


@admin_app.command()
@connecting
def transfer(
    cluster: ClusterOptions,
    target: Annotated[
        str | None, typer.Argument(help="The node that is to lead. Default: the most up-to-date follower.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move leadership to another node. Loses no write."""
    leader = ask(cluster, timeout, lambda client: client.transfer(target), writes=True)
    say(f'{{"leader": {to_json(leader)}}}' if as_json else f"{printable(leader)} leads")


@admin_app.command()
@connecting
def snapshot(
    cluster: ClusterOptions, node: OneNode = None, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Take a snapshot on every node. Says at which index each did, its size, and the start of its checksum."""
    from .node_calls import call_each, take_snapshot

    raise typer.Exit(call_each(cluster, node, take_snapshot, as_json=as_json, timeout_s=timeout))


@admin_app.command()
@connecting
def expire(
    cluster: ClusterOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing. Say what would be deleted, what is held, and why.")
    ] = False,
    node: OneNode = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete expired log segments on every node now. Nodes also do this by themselves every second."""
    from .node_calls import call_each, expiring

    raise typer.Exit(call_each(cluster, node, expiring(dry_run=dry_run), as_json=as_json, timeout_s=timeout))


@code_app.callback()
def code_command() -> None:
    """Keep `accept-code` a subcommand: typer would merge a group that has only one command into the group itself."""


@code_app.command("accept-code")
@connecting
def accept_code(
    cluster: ClusterOptions, node: OneNode = None, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Accept, on every node, the machine's code that the members now run. Do this only if its results are the same.

    Clears the alarms about changed code and about members that run different code. Prints the fingerprints. Repeat it
    for nodes that did not answer.
    """
    from . import node_calls

    raise typer.Exit(node_calls.call_each(cluster, node, node_calls.accept_code, as_json=as_json, timeout_s=timeout))


@session_app.command("open")
@connecting
def open_session(
    cluster: ClusterOptions,
    name: Annotated[str, typer.Argument(help="The session's name. If it is in use, its holder is fenced.")],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Open a named session. Prints its id and last sequence. It stays open until it is closed."""
    from . import sessions

    sessions.open_session(cluster, name, as_json=as_json, timeout_s=timeout)


@session_app.command("show")
@connecting
def show_session(
    cluster: ClusterOptions, session: SessionId, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Print a session's name and its last executed sequence."""
    from . import sessions

    sessions.show_session(cluster, session, as_json=as_json, timeout_s=timeout)


@session_app.command("list")
@connecting
def list_sessions(
    cluster: ClusterOptions,
    prefix: Prefix = "",
    idle_s: IdleS = 0.0,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the open sessions: id, name, last executed sequence, and when the log last used it."""
    from . import sessions

    sessions.list_sessions(cluster, prefix, idle_s, as_json=as_json, timeout_s=timeout)


@session_app.command("close")
@connecting
def close_session(
    cluster: ClusterOptions,
    session: Annotated[
        int | None,
        typer.Argument(metavar="ID", min=1, help="The session's id. Or use --name, --prefix, --idle."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The session that is open under this name.")] = None,
    prefix: Prefix = "",
    idle_s: IdleS = 0.0,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Close one session, or all idle ones with a name prefix. Their holders' next commands fail."""
    many = bool(prefix or idle_s)
    if (session is not None) + (name is not None) + many != 1:
        fail_usage("give a session's id, or --name NAME, or --prefix TEXT and --idle SECONDS")
    from . import sessions

    if many:
        sessions.close_idle_sessions(cluster, prefix, idle_s, as_json=as_json, timeout_s=timeout)
    else:
        sessions.close_session(cluster, session, name, as_json=as_json, timeout_s=timeout)
