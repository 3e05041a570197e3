"""The file of the tokens by which clients are known. It holds the SHA-256 of each token, never the token itself.

    # name:sha256:role:expiry
    app:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:write:2027-02-24T12:00:00Z
    app+old:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752:write:never

A token is 256 random bits, so a slow hash or a salt would add nothing to it. Blank lines and lines that begin with #
are ignored. The last line ends in a line feed: a file without it is half written, and is refused.

A name has one token, and a second one, `NAME+old`, while it is renewed. Both give the same name, to which sessions
belong.
"""

import base64
import hashlib
import hmac
import re
import secrets
import shlex
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ..errors import ClusterError
from .files import PRIVATE, NewFile, locked, read_bounded, replace_files
from .roles import Role

PREFIX = "quire_"
TOKEN_BYTES = 32
TOKEN_TEXT = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
TOKEN_ROLES = {role.word: role for role in (Role.READ, Role.WRITE, Role.ADMIN)}
MAX_TOKENS = 1000
MAX_FILE_BYTES = 1024 * 1024
NEVER = "never"
SHOWN_DIGITS = 12
"""How much of a digest is shown: enough to find the token in a list, and to compare two files."""
OLD = "+old"
"""Follows the name of a token that was renewed. No name has a + of its own."""
HEADING = "# name:sha256:role:expiry; written by `quire token`\n"
NEW = "quire token new NAME --role read|write|admin --file FILE"

_ANY_CASE = re.compile(TOKEN_TEXT.pattern, re.IGNORECASE)
_NAME = re.compile(rf"(?!{PREFIX})[a-z0-9][a-z0-9._-]{{0,63}}")  # Never a token's text: names are shown.
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EXPIRY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_EXPIRY_FORM = "%Y-%m-%dT%H:%M:%SZ"


class TokensRefused(ClusterError):
    """The token file cannot be used or changed; the text says why and what to do, and holds nothing secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file. `expires_at` is in seconds since 1970; None: it does not expire."""

    name: str
    """Whose token it is: the same for one that was renewed and for the one that follows it."""
    digest: bytes = field(repr=False)
    role: Role
    expires_at: float | None
    is_old: bool = field(default=False, compare=False)
    """Whether another token of the same name follows it."""

    @property
    def label(self) -> str:
        """The name as it is written in the file."""
        return self.name + OLD * self.is_old

    @property
    def digits(self) -> str:
        """The first hexadecimal digits of its SHA-256."""
        return self.digest.hex()[:SHOWN_DIGITS]

    def is_expired(self, now: float) -> bool:
        """Whether the token has no effect any more at this time, in seconds since 1970."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The tokens of a file, as they were when it was read."""

    tokens: tuple[Token, ...] = ()
    alarm: str | None = None
    """A sentence that every user of the machine may read or change the file, and what to do; None if they may not."""
    _by_digest: dict[bytes, Token] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_digest", {token.digest: token for token in self.tokens})

    def find(self, text: str) -> Token | None:
        """The token with this text, even if it has expired; None if there is none."""
        digest = _digest_of(text)
        # The time of the lookup depends on the digest alone, which nobody can choose to be near another.
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def by_name(self, name: str) -> Token | None:
        """The token with this name as it is written in the file, even if it has expired; None if there is none."""
        return next((token for token in self.tokens if token.label == name), None)

    def current(self, token: Token) -> Token | None:
        """A token of an earlier reading as it is now, perhaps old; None if its name, role or expiry is another."""
        found = self._by_digest.get(token.digest)
        return found if found == token else None


def read_tokens(path: Path) -> TokenFile:
    """Read the tokens of a file.

    Raises:
        TokensRefused: the file cannot be read, is half written or too large, has a malformed line, or a name or token
            twice.
    """
    return _parsed(path, *_content(path))


def is_token_name(text: str) -> bool:
    """Whether a token can have this name."""
    return _NAME.fullmatch(text) is not None


def add_token(path: Path, name: str, role: Role, expires_at: float | None) -> str:
    """Add a token to the file, which is created if there is none; return the token's text. Durable on return.

    Raises:
        TokensRefused: the name or role is not one, or is taken; the file is refused, full, or cannot be written. The
            file is unchanged.
    """
    if not is_token_name(name):
        form = "1 to 64 of a-z, 0-9 and ._- that begin with a letter or digit"
        raise TokensRefused(f"the name is not {form}, or begins with {PREFIX}; choose another")
    if role not in TOKEN_ROLES.values():
        raise TokensRefused(f"a token's role is one of {', '.join(TOKEN_ROLES)}, not {role.word}")
    text, digest = _new_text()
    with _changing(path) as change:
        if change.before.by_name(name) is not None:
            revoke = f"revoke it first (`quire token revoke {name} --file {shlex.quote(str(path))}`)"
            raise TokensRefused(
                f"{path} has a token {name} already; {revoke}, or choose another name, such as {name}-2; `quire token "
                "renew` gives the same name a new one"
            )
        change.lines.append(_line(name, digest, role, expires_at))
    return text


def renew_token(path: Path, name: str, expires_at: float | None) -> str:
    """Add a new token of the same name and role; return its text. The old one remains as `NAME+old`. Durable on return.

    Raises:
        TokensRefused: there is no token of that name, or an old one is there already; the file is refused, or cannot be
            written. The file is unchanged.
    """
    text, digest = _new_text()
    with _changing(path) as change:
        if (token := change.before.by_name(name)) is None or token.is_old:
            raise _no_such(path, name)
        if change.before.by_name(old := f"{name}{OLD}") is not None:
            revoke = f"quire token revoke {old} --file {shlex.quote(str(path))}"
            raise TokensRefused(f"{path} has {old} already; once nobody uses it, run `{revoke}`, then renew {name}")
        change.lines[change.number_of(name)] = _line(old, token.digest, token.role, token.expires_at)
        change.lines.append(_line(name, digest, token.role, expires_at))
    return text


def revoke_token(path: Path, name: str) -> None:
    """Remove the token with this name, and its old one; or with `NAME+old`, the old one alone. Durable on return.

    Other lines stay as they are.

    Raises:
        TokensRefused: there is no token of that name; the file is refused, or cannot be written. The file is unchanged.
    """
    with _changing(path) as change:
        if change.before.by_name(name) is None:
            raise _no_such(path, name)
        for label in (name, f"{name}{OLD}"):
            if change.before.by_name(label) is not None:
                del change.lines[change.number_of(label)]


def digits_of(text: str) -> str:
    """The first digits of the SHA-256 of what has the form of a token; none of other text, which might be guessed."""
    return _digest_of(text).hex()[:SHOWN_DIGITS] if TOKEN_TEXT.fullmatch(text) else ""


def has_token(text: str) -> bool:
    """Whether a token is in the text, in capitals, too."""
    return _ANY_CASE.search(text) is not None


def without_tokens(text: str) -> str:
    """The text, with `quire_...` in the place of each token."""
    return _ANY_CASE.sub(f"{PREFIX}...", text)


def expiry_text(expires_at: float | None) -> str:
    """The time at which a token expires, as in the file: UTC to the second, or `never`."""
    return NEVER if expires_at is None else datetime.fromtimestamp(int(expires_at), UTC).strftime(_EXPIRY_FORM)


@dataclass(slots=True)
class _Change:
    """The lines of a file that is being changed, and the tokens that were in it."""

    before: TokenFile
    lines: list[str]

    def number_of(self, name: str) -> int:
        """Where the line of a token is that is in the file."""
        return next(number for number, line in enumerate(self.lines) if line.strip().partition(":")[0] == name)


@contextmanager
def _changing(path: Path) -> Generator[_Change]:
    """Read the file, let its lines be changed, and replace it, if what is in it then is accepted."""
    try:
        with locked(path.resolve().parent):
            old, mode = _content(path) if path.exists() else (HEADING.encode(), PRIVATE)
            change = _Change(_parsed(path, old, mode), old.decode().split("\n")[:-1])
            yield change
            new = "".join(f"{line}\n" for line in change.lines or [HEADING.rstrip()]).encode()
            _parsed(path, new, mode)
            replace_files(NewFile(path, new))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = f"check that {path.parent} exists and that you may write to it"
        raise TokensRefused(f"{path} cannot be changed: {why}; {advice}") from None


def _new_text() -> tuple[str, bytes]:
    text = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).rstrip(b"=").decode()
    return text, _digest_of(text)


def _line(name: str, digest: bytes, role: Role, expires_at: float | None) -> str:
    return f"{name}:{digest.hex()}:{role.word}:{expiry_text(expires_at)}"


def _no_such(path: Path, name: str) -> TokensRefused:
    shown = f"named {name}" if _NAME.fullmatch(name.removesuffix(OLD)) else "of that name"
    return TokensRefused(f"{path} has no token {shown}; `quire token list --file {shlex.quote(str(path))}` lists them")


def _digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()  # A header may hold any byte.


def _content(path: Path) -> tuple[bytes, int]:
    try:
        return read_bounded(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise TokensRefused(f"the token file {path} does not exist; make it with `{NEW}`") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = "make it readable to the node's user or to a group of that user"
        raise TokensRefused(f"the token file {path} cannot be read: {why}; {advice}") from None


def _parsed(path: Path, data: bytes, mode: int) -> TokenFile:
    if len(data) > MAX_FILE_BYTES:
        raise TokensRefused(f"the token file {path} has more than {MAX_FILE_BYTES:,} bytes; revoke what is not used")
    if not data.endswith(b"\n"):
        advice = "copy the whole file again, or end that line"
        raise TokensRefused(f"the token file {path} is half written: its last line has no line feed; {advice}")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise TokensRefused(f"the token file {path} is not text; make another with `{NEW}`") from None
    tokens: list[Token] = []
    names: set[str] = set()
    digests: set[bytes] = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        where = f"the token file {path}, line {number}"
        token = _token_of(line, where)
        if token.label in names:
            raise TokensRefused(f"{where}: the name {token.label} is there twice; remove one of the lines")
        if token.digest in digests:
            raise TokensRefused(f"{where}: the token {token.label} has another name above; remove one of the lines")
        names.add(token.label)
        digests.add(token.digest)
        tokens.append(token)
    if len(tokens) > MAX_TOKENS:
        raise TokensRefused(f"the token file {path} has more than {MAX_TOKENS:,} tokens; revoke what is not used")
    return TokenFile(tuple(tokens), _alarm_of(path, mode))


def _token_of(line: str, where: str) -> Token:
    """The token of a line. An error shows no part of it but a valid name, since it may hold a token by mistake."""
    parts = line.split(":", 3)
    is_old = parts[0].endswith(OLD)
    if len(parts) != 4 or not _NAME.fullmatch(parts[0].removesuffix(OLD)):
        raise TokensRefused(f"{where} is not NAME:SHA256:ROLE:EXPIRY; remove it, and make a token with `{NEW}`")
    name, digest, role, expiry = parts
    if not _DIGEST.fullmatch(digest):
        raise TokensRefused(
            f"{where}: the token {name} has no SHA-256 of 64 hexadecimal digits; revoke it and make another"
        )
    if role not in TOKEN_ROLES:
        raise TokensRefused(f"{where}: the role of {name} is none of {', '.join(TOKEN_ROLES)}; correct it")
    expires_at = _expiry_of(expiry, f"{where}: the expiry of {name}")
    return Token(name.removesuffix(OLD), bytes.fromhex(digest), TOKEN_ROLES[role], expires_at, is_old)


def _expiry_of(text: str, what: str) -> float | None:
    if text == NEVER:
        return None
    try:
        if not _EXPIRY.fullmatch(text):
            raise ValueError(text)
        return datetime.strptime(text, _EXPIRY_FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TokensRefused(
            f"{what} is neither `{NEVER}` nor a time such as 2027-02-24T12:00:00Z; correct it"
        ) from None


def _alarm_of(path: Path, mode: int) -> str | None:
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return None
    file = shlex.quote(str(path))
    return (
        f"the token file {path} has mode {stat.S_IMODE(mode):04o}: every user of this machine may read or change it; "
        f"run `chmod o= {file}`, and look for tokens that you did not make (`quire token list --file {file}`)"
    )
