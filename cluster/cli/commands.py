"""The commands of `quire`, each imported when it is named: most commands run for less time than all imports take.

A module of a command imports typer and little else at its top, so that its help and its usage errors come at once. What
it needs to do its work (the client, a table, a backup) it imports when it runs.
"""

from importlib import import_module
from typing import Annotated, NamedTuple

import typer
import typer.main

import quire

from .group import Group
from .output import Exit, complain, ending, say

ABOUT = "A replicated state machine: one durable log, and the same state on every node."


class Location(NamedTuple):
    """Where a command is, as `module:application`, and its line in the list of commands."""

    at: str
    about: str


CALLS, OPERATING = "quire.cluster.cli.calls", "quire.cluster.cli.operating"

COMMANDS = {
    "serve": Location("quire.cluster.cli.commands:serve_app", "Run one node of a cluster, or a standalone log."),
    "apply": Location(f"{CALLS}.writing:app", "Apply one command and print its result."),
    "append": Location(
        f"{CALLS}.writing:app", "Append one record, a JSON value or raw bytes, and print its index and its result."
    ),
    "load": Location(f"{CALLS}.writing:app", "Apply a file of commands in order, each exactly once."),
    "read": Location(
        f"{CALLS}.reading:app", "Print one record, or a range with indices; without arguments, the newest records."
    ),
    "tail": Location(f"{CALLS}.reading:app", "Print new records as lines of JSON, until Ctrl-C."),
    "consume": Location(
        f"{CALLS}.consume:app",
        "Give each new record to a consumer, at least once: as a line of JSON, or to a command.",
    ),
    "state": Location(f"{CALLS}.reading:app", "Print the machine's state, applied index and digest."),
    "query": Location(
        f"{CALLS}.reading:app", "Print the machine's answer to a request; without one, which is null, its whole state."
    ),
    "get": Location(f"{CALLS}.kv:app", "Print the value of a key of the kv machine."),
    "put": Location(f"{CALLS}.kv:app", "Set a key of the kv machine."),
    "scan": Location(f"{CALLS}.kv:app", "Print the keys of the kv machine that start with a prefix, and their values."),
    "status": Location(f"{CALLS}.reading:app", "Show every node: role, indices, lag and digest."),
    "transfer": Location(f"{OPERATING}.admin:admin_app", "Move leadership to another node."),
    "snapshot": Location(f"{OPERATING}.admin:admin_app", "Take a snapshot on every node."),
    "expire": Location(f"{OPERATING}.admin:admin_app", "Delete expired log segments on every node now."),
    "members": Location(
        f"{OPERATING}.members:members_app", "Show the members; add, remove, promote, demote or move one."
    ),
    "drain": Location(
        f"{OPERATING}.members:drain_app", "Have a node hand over, and wait until the cluster can do without it."
    ),
    "undrain": Location(f"{OPERATING}.members:drain_app", "Let a drained node lead again."),
    "roll": Location(f"{OPERATING}.roll:roll_app", "Restart each member in turn: observers first, the leader last."),
    "recover": Location(
        f"{OPERATING}.recover:recover_app", "Make the only survivor of a lost majority a cluster of one voter."
    ),
    "session": Location(f"{OPERATING}.admin:session_app", "Open, show and close sessions."),
    "cursor": Location(f"{OPERATING}.cursors:cursor_app", "Show, set and delete the positions of consumers."),
    "admin": Location(f"{OPERATING}.admin:code_app", "Accept changed code of the machine."),
    "backup": Location(
        "quire.cluster.cli.backup:app",
        "Back a cluster up to a folder or an object store, with `quire backup DESTINATION`; or verify what is there.",
    ),
    "restore": Location(
        f"{OPERATING}.restore:restore_app", "Make a cluster of one node from a backup, in a history of its own."
    ),
    "log": Location("quire.cluster.cli.log_files:app", "Inspect or repair the files of a log."),
    "spark": Location("quire.pipeline.cli:app", "Run jobs over a whole log on Spark: archive, scrub, replay, report."),
    "secret": Location(
        "quire.cluster.cli.credentials:secret_app", "The secret by which nodes authenticate each other."
    ),
    "token": Location("quire.cluster.cli.credentials:token_app", "The tokens by which clients are known."),
    "certs": Location("quire.cluster.cli.certs:certs_app", "The certificates of a cluster's nodes, and their CA."),
    "demo": Location("quire.cluster.cli.demo:demo_app", "Run three nodes and compare their answers."),
}


def group_of(location: Location) -> typer.Typer:
    """The application that holds a command, imported."""
    module, _, attribute = location.at.partition(":")
    found: typer.Typer = getattr(import_module(module), attribute)
    return found


class Commands(Group):
    """The group of all commands, which imports the one that is asked for."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """All names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[no-untyped-def, override]
        """The command or the group of this name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        application = group_of(COMMANDS[cmd_name])
        application.rich_markup_mode = None  # Rich takes four times as long as the rest.
        group = typer.main.get_group(application)
        return group if application.info.name == cmd_name else group.commands[cmd_name]

    def format_commands(self, ctx: typer.Context, formatter) -> None:  # type: ignore[no-untyped-def, override]
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, location.about) for name, location in COMMANDS.items()])

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command; what ends it otherwise is a sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(Exit.INTERRUPTED) from None


app = typer.Typer(
    name="quire",
    cls=Commands,
    help=ABOUT,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
serve_app = typer.Typer()


def _print_version(asked: bool) -> None:
    if asked:
        say(f"quire {quire.__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def quire_command(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that precede a command."""


@serve_app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def serve(context: typer.Context) -> None:
    """Run one node of a cluster, or a standalone log."""
    from ..serve.node_service import serve as run_node  # `main` begins it without typer.

    raise typer.Exit(run_node(context.args))


def run() -> int:
    """Run the command that the process's arguments name; return its exit code."""
    return ending(lambda: app(prog_name="quire"))
