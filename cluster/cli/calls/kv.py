"""`quire get`, `put` and `scan`: keys and values of the kv machine. Keys and values are text, or JSON with --json."""

from typing import TYPE_CHECKING, Annotated, TypedDict, cast

import typer

from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting
from ..group import Words
from ..output import Exit, complain, printable, say, to_json
from .operands import json_value_of
from .writing import say_result

if TYPE_CHECKING:
    from ...client import Client

app = typer.Typer()

PAIRS = 1000
"""How many pairs a scan prints unless it is told otherwise, and at most in one request."""


class _Page(TypedDict):
    values: list[tuple[str, object]]
    next: str | None


@app.command(cls=Words, context_settings={"ignore_unknown_options": True})
@connecting
def get(
    cluster: ClusterOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the value of a key of the kv machine. The read is linearizable; without such a key, the exit code is 1."""
    value = ask(cluster, timeout, lambda client: client.query(["get", key]))
    if value is None:
        complain(f"there is no key {key!r}")
        raise typer.Exit(Exit.FAILED)
    say(to_json(value) if as_json else printable(value))


@app.command(cls=Words, context_settings={"ignore_unknown_options": True})
@connecting
def put(
    cluster: ClusterOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Text, or JSON with --json.")],
    as_json: Annotated[bool, typer.Option("--json", help="The value is JSON, and so is what is printed.")] = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set a key of the kv machine. Prints true if it is new, false if it had a value."""
    command = ["put", key, json_value_of(value) if as_json else value]
    say_result(ask(cluster, timeout, lambda client: client.apply(command), writes=True), as_json=as_json)


@app.command(cls=Words, context_settings={"ignore_unknown_options": True})
@connecting
def scan(
    cluster: ClusterOptions,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="What keys start with.")] = "",
    after: Annotated[str | None, typer.Option("--after", metavar="KEY", help="Begin after this key.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="At most so many pairs.")] = PAIRS,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the keys of the kv machine that start with a prefix, and their values.

    They come in the order of the keys' bytes. If there are more, stderr says how to continue.
    """

    async def print_pages(client: "Client") -> str | None:
        left, following = count, after
        while True:
            page = cast("_Page", await client.query(["scan", prefix, following, min(left, PAIRS)]))
            for key, value in page["values"]:
                say(*([to_json([key, value])] if as_json else [key, printable(value)]))
            left, following = left - len(page["values"]), page["next"]
            if following is None or not left:
                return following

    if (last := ask(cluster, timeout, print_pages)) is not None:
        complain(f"there are more keys; the next ones come with --after {last!r}")
