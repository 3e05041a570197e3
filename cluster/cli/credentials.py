"""`quire secret` and `quire token`: the files by which nodes know each other, and clients."""

import re
import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..access.roles import Role
from .connection import Json, fail_usage
from .group import Group
from .output import Exit, complain, say, to_json

if TYPE_CHECKING:
    from ..access.tokens import Token, TokensRefused

secret_app = typer.Typer(
    name="secret", cls=Group, no_args_is_help=True, help="The secret by which nodes authenticate each other."
)
token_app = typer.Typer(name="token", cls=Group, no_args_is_help=True, help="The tokens by which clients are known.")

File = Annotated[Path, typer.Option("--file", metavar="FILE", help="The token file, as in `quire serve --tokens`.")]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="How long it is valid: 90d, 12h, 30m or never.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Who uses it: 1 to 64 of a-z, 0-9 and ._-")]

SECONDS = {"d": 86_400, "h": 3_600, "m": 60}
NEVER = "never"
LAST = 253_370_764_800.0
"""The year 9999."""


class TokenRole(StrEnum):
    """The roles that a token may have."""

    READ = Role.READ.word
    WRITE = Role.WRITE.word
    ADMIN = Role.ADMIN.word


@secret_app.command("new")
def new_secret(file: Annotated[Path, typer.Argument(help="The file to create. It must not exist.")]) -> None:
    """Create a file with a new peer secret: 32 random bytes, readable only by you.

    Every node of a cluster gets the same file: quire serve --peer-secret-file FILE.
    """
    from ..config.secret_file import write_new_secret

    try:
        write_new_secret(file)
    except FileExistsError:
        complain(f"{file} exists and may be in use; give another name or remove it first")
        raise typer.Exit(Exit.USAGE) from None
    except OSError as error:
        complain(f"{file} cannot be created: {(error.strerror or str(error)).lower()}")
        raise typer.Exit(Exit.FAILED) from None
    say(f"{file} holds a new secret. Copy it to every node, readable only by the node's user, and start each with:")
    say(f"    quire serve ... --peer-secret-file {shlex.quote(str(file))}")


@token_app.command("new")
def new_token(
    name: Name,
    role: Annotated[TokenRole, typer.Option("--role", help="write includes read; admin includes both.")],
    file: File,
    expires: Expires = NEVER,
    as_json: Json = False,
) -> None:
    """Make a token and print it, once. The file gets its SHA-256; the token itself is stored nowhere.

    Copy the file to every node first, then use the token. A node reads the file again when it changes. stdout has
    nothing but the token: (umask 077; quire token new app --role write --file tokens > app.token)
    """
    from ..access.tokens import TokensRefused, add_token

    expires_at = _expiry_of(expires, time.time())
    try:
        text = add_token(file, name, Role[role.name], expires_at)
    except TokensRefused as error:
        _refuse(error)
    _say_token(file, name, text, as_json=as_json)


@token_app.command()
def renew(name: Name, expires: Expires, file: File, as_json: Json = False) -> None:
    """Make a new token of the same name and role, and print it, once. The old one is valid until it is revoked.

    Sessions belong to a token's name, so its user keeps them. Copy the file to every node, give the user the new token,
    then run `quire token revoke NAME+old` and copy the file again.
    """
    from ..access.tokens import TokensRefused, renew_token

    expires_at = _expiry_of(expires, time.time())
    try:
        text = renew_token(file, name, expires_at)
    except TokensRefused as error:
        _refuse(error)
    _say_token(file, name, text, as_json=as_json)


@token_app.command("list")
def list_tokens(file: File, as_json: Json = False) -> None:
    """List the tokens: name, role, expiry, and the first digits of the SHA-256."""
    from ..access.tokens import TokensRefused, read_tokens

    try:
        found = read_tokens(file)
    except TokensRefused as error:
        _refuse(error)
    now = time.time()
    for token in found.tokens:
        say(*([to_json(_row(token, now))] if as_json else _cells(token, now)))
    if found.alarm is not None:
        complain(found.alarm)


@token_app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a token from the file, and the one that it replaced. With NAME+old: the replaced one alone.

    A node that reads the file ends the token's open streams within a second.
    """
    from ..access.tokens import TokensRefused, revoke_token

    try:
        revoke_token(file, name)
    except TokensRefused as error:
        _refuse(error)
    say(f"{file} has no token {name} any more. Copy it to every node.")


def _say_token(file: Path, name: str, text: str, *, as_json: bool) -> None:
    from ..access.tokens import expiry_text, read_tokens

    token = read_tokens(file).find(text)
    if token is None:
        complain(f"{file} was changed by someone else: it has no token {name} any more; try again")
        raise typer.Exit(Exit.FAILED)
    role, expires = token.role.word, expiry_text(token.expires_at)
    if as_json:
        say(to_json({"name": name, "role": role, "expires": expires, "token": text}))
        return
    note = f"{file} has the token {name} now ({role}, expires: {expires}). Copy it to every node first."
    complain(f"{note} The token is shown this once:")
    say(text)


def _row(token: "Token", now: float) -> dict[str, object]:
    from ..access.tokens import expiry_text

    return {
        "name": token.label,
        "role": token.role.word,
        "expires": expiry_text(token.expires_at),
        "expired": token.is_expired(now),
        "sha256": token.digits,
    }


def _cells(token: "Token", now: float) -> list[str]:
    from ..access.tokens import expiry_text

    expiry = expiry_text(token.expires_at)
    return [token.label, token.role.word, f"{expiry} (expired)" if token.is_expired(now) else expiry, token.digits]


def _expiry_of(text: str, now: float) -> float | None:
    """When a token expires that is valid for so long from now; if the text is no such time, print why and exit."""
    if text == NEVER:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,6})([dhm])", text)
    if found is None or (at := now + int(found[1]) * SECONDS[found[2]]) >= LAST:
        fail_usage("--expires is neither `never` nor a time such as 90d, 12h or 30m")
    return at


def _refuse(error: "TokensRefused") -> NoReturn:
    complain(str(error))
    raise typer.Exit(Exit.FAILED)
