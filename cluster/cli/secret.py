"""`quire secret`: the secret by which the nodes of a cluster authenticate each other."""

from pathlib import Path
from typing import Annotated

import typer

from ..config.secret_file import write_new_secret
from .output import Exit, complain, say

secret_app = typer.Typer(name="secret", no_args_is_help=True, help="The secret by which nodes authenticate each other.")


@secret_app.command()
def new(file: Annotated[Path, typer.Argument(help="The file to create. It must not exist.")]) -> None:
    """Create a file with a new peer secret: 32 random bytes, readable only by you.

    Every node of a cluster gets the same file: quire serve --peer-secret-file FILE.
    """
    try:
        write_new_secret(file)
    except FileExistsError:
        complain(f"{file} exists and may be in use; give another name or remove it first")
        raise typer.Exit(Exit.USAGE) from None
    except OSError as error:
        complain(f"{file} cannot be created: {(error.strerror or str(error)).lower()}")
        raise typer.Exit(Exit.FAILED) from None
    say(f"{file} holds a new secret. Copy it to every node, readable only by the node's user, and start each with:")
    say(f"    quire serve ... --peer-secret-file {file}")
