"""`quire certs`: the certificates of a cluster. It needs the package cryptography; nodes and clients do not."""

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ClusterError
from .connection import Json
from .group import Group
from .output import Exit, complain, say, to_json

certs_app = typer.Typer(
    name="certs", cls=Group, no_args_is_help=True, help="The certificates of a cluster's nodes, and their CA."
)

MAX_DAYS = 7300
PACKAGE = "cryptography"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of ca.crt and ca.key.")]
Days = Annotated[int | None, typer.Option("--days", min=1, max=MAX_DAYS, help="How long it is valid.")]


@certs_app.command()
def init(
    folder: Folder,
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="The cluster's name, one DNS label.")],
    following: Annotated[bool, typer.Option("--next", help="Add a second CA, to replace the present one.")] = False,
    days: Days = None,
) -> None:
    """Make a CA: DIR/ca.crt, for every node and client, and DIR/ca.key, which stays here. It is valid for 10 years.

    To replace a CA without an outage, run this again with --next. ca.crt then holds the new CA and the old one. Copy it
    to every node and client first, then run `quire certs node` for every node and copy those files, then run `quire
    certs retire` and copy ca.crt again.
    """
    with _refusals():
        from ..access import certificates  # The package is an extra.

        make = certificates.add_ca if following else certificates.make_ca
        make(folder, cluster, days or certificates.CA_DAYS)
    shown = shlex.quote(str(folder))
    if following:
        say(f"{folder}/ca.crt holds a new CA and the old one. Copy it to every node and client before you go on with:")
        say(f"    quire certs node {shown} NODE     for every node; then copy NODE.crt and NODE.key to it")
        say(f"    quire certs retire {shown}        then copy ca.crt to every node and client again")
    else:
        say(f"{folder} holds the CA of the cluster {cluster}. Keep ca.key here, closed to others. For every node, run:")
        say(f"    quire certs node {shown} NODE --host NAME")


@certs_app.command()
def node(
    folder: Folder,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's id, as in `quire serve --node`.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME|IP", help="A name for curl, browsers and Prometheus. May be repeated."),
    ] = None,
    days: Days = None,
) -> None:
    """Make a node's certificate and key: DIR/NODE.crt and DIR/NODE.key. They are valid for a year.

    Run it again to replace both. Without --host, the new certificate has the hosts of the old one. A running node reads
    its files again when they change: copy NODE.key and NODE.crt over the old ones.
    """
    with _refusals():
        from ..access import certificates  # The package is an extra.

        names = certificates.make_node(folder, node, hosts or (), days or certificates.NODE_DAYS)
    say(
        f"{folder}/{node}.crt is for {', '.join(names)}. Copy it, {node}.key and ca.crt to the node, and start it with:"
    )
    say(f"    quire serve ... --tls-cert {node}.crt --tls-key {node}.key --tls-ca ca.crt")


@certs_app.command()
def retire(folder: Folder) -> None:
    """Remove the replaced CA from DIR/ca.crt, the last step of `quire certs init --next`.

    It is refused while a certificate in DIR is signed by that CA. Run it when every node has its new certificate.
    """
    with _refusals():
        from ..access import certificates  # The package is an extra.

        removed = certificates.retire_ca(folder)
    if removed:
        say(f"{folder}/ca.crt holds the newest CA alone. Copy it to every node and client.")
    else:
        say(f"{folder}/ca.crt holds one CA; there is none to remove.")


@certs_app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A certificate, or a folder of *.crt files.")],
    as_json: Json = False,
) -> None:
    """Show what certificates are for, their names and expiry, and the CA that signed them."""
    with _refusals():
        from ..access import certificates  # The package is an extra.

        rows = certificates.show(path)
    for row in rows:
        if as_json:
            say(to_json(asdict(row)))
            continue
        left = f"{row.days_left} days left" if row.days_left >= 0 else "it has expired"
        say(f"{row.file}: {row.purpose}")
        for name in row.names:
            say(f"    name       {name}")
        say(f"    expires    {row.expires}, {left}")
        say(f"    signed by  the CA with the key {row.signed_by}")


@contextmanager
def _refusals() -> Generator[None]:
    """Print why a command is refused, or the package that it lacks, and exit."""
    try:
        yield
    except ClusterError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != PACKAGE:
            raise
        complain(f"`quire certs` needs the package {PACKAGE}: run `pip install 'quire[certs]'`")
        raise typer.Exit(Exit.USAGE) from None
