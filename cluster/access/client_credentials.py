"""What a client shows to the servers of a cluster, a token, and what it demands of them: a certificate of its CA.

A token is sent only to a server that proved the cluster's name, so there is no token without a CA.

Both may be files, which are followed: operators replace them while clients run. A file is looked at once a second, and
at once after a server refused what it held. A file that is missing or half written leaves the old content in use.
"""

import logging
import shlex
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import ClusterError
from .files import read_bounded
from .tls import ClientTls, TlsRefused, load_client_tls
from .tokens import TOKEN_TEXT

MAX_TOKEN_FILE_BYTES = 64 << 10
LOOK_EVERY_S = 1.0
SETTLING_S = 10.0  # How long after a new token a 401 may only mean that the server has not read its own file yet.

HAS_EXPIRED, NOT_YET_VALID, WRONG_NAME = 10, 9, 62  # X509_V_ERR_CERT_HAS_EXPIRED and so on, of OpenSSL.
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})

Content = TypeVar("Content")
Clock = Callable[[], float]

log = logging.getLogger("quire.client")


class TokenRefused(ClusterError):
    """The token's file cannot be used; the text says why and what to do, and never holds the token."""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What the next request shows and demands. It stays as it is; after a change of a file there is another."""

    tls: ClientTls | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context to dial with; None for plain HTTP."""
        return None if self.tls is None else self.tls.context

    @property
    def server_name(self) -> str | None:
        """The name that the server must prove; None for plain HTTP."""
        return None if self.tls is None else self.tls.server_name

    @property
    def has_token(self) -> bool:
        """Whether a token is shown."""
        return bool(self.headers)

    def url(self, server: str, path: str) -> str:
        """The URL of a path on a server."""
        return f"{'http' if self.tls is None else 'https'}://{server}{path}"

    def refusal_of(self, server: str, error: ssl.SSLError) -> str | None:
        """Why a server did not prove that it is of the cluster, as a sentence; None if the error does not say that."""
        if self.tls is None:
            return None
        cluster = self.tls.server_name.partition(".")[0]
        if error.reason in NO_TLS:
            return f"{server} does not speak TLS; start it with --tls-cert, --tls-key and --tls-ca, or leave out the CA"
        if not isinstance(error, ssl.SSLCertVerificationError):
            return None
        match error.verify_code:
            case code if code == HAS_EXPIRED:
                return (
                    f"the certificate of {server} has expired; make another with `quire certs node`, or set this clock"
                )
            case code if code == NOT_YET_VALID:
                return f"the certificate of {server} is not valid yet; set the clock of this machine, or of its issuer"
            case code if code == WRONG_NAME:
                why = f"its certificate does not have the name {self.tls.server_name}"
            case _:
                why = f"its certificate is not of the CA that was given ({error.verify_message})"
        return f"{server} is not a server of the cluster {cluster}: {why}"


class ClientCredentials:
    """The token and the CA of a client, as they are now. For one thread or event loop."""

    def __init__(
        self,
        token: str | Path | None = None,
        ca: str | Path | None = None,
        cluster: str | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        """Read the files. `token`: the text of one, or the path of a file that holds it on its first line.

        Raises:
            ValueError: a token or a cluster's name is given without a CA, or the text is no token.
            TokenRefused, TlsRefused: a file cannot be used.
        """
        if ca is None and (token is not None or cluster is not None):
            what = "a token" if token is not None else "a cluster's name"
            raise ValueError(f"{what} needs the cluster's CA as well: give its ca.crt (--ca, QUIRE_CA or ca=)")
        if isinstance(token, str) and not TOKEN_TEXT.fullmatch(token):
            raise ValueError("token is not the text of a token, quire_...; a file of one is given as a pathlib.Path")
        self._clock = clock
        self._text = token if isinstance(token, str) else None
        self._token = _Followed(token, _read_token) if isinstance(token, Path) else None
        self._ca = None if ca is None else _Followed(Path(ca), lambda path: load_client_tls(path, cluster))
        self._look_at = clock() + LOOK_EVERY_S
        self._settled_at = -float("inf")
        self._shown = self._read()

    @property
    def settling(self) -> bool:
        """Whether the token is so new that servers may not know it yet."""
        return self._clock() < self._settled_at

    def shown(self) -> Shown:
        """What to show now. It looks at the files if it did not in the last second."""
        if self._clock() >= self._look_at:
            self._look()
        return self._shown

    def renewed(self, shown: Shown) -> bool:
        """Whether, after a server refused `shown`, there is something else to show. It looks at the files."""
        if self._shown is shown:
            self._look()
        return self._shown is not shown

    def _look(self) -> None:
        self._look_at = self._clock() + LOOK_EVERY_S
        new_token = self._token is not None and self._token.changed()
        if new_token:
            self._settled_at = self._clock() + SETTLING_S
        if (self._ca is not None and self._ca.changed()) or new_token:
            self._shown = self._read()

    def _read(self) -> Shown:
        text = self._text if self._token is None else self._token.content
        headers = {} if text is None else {"Authorization": f"Bearer {text}"}
        return Shown(None if self._ca is None else self._ca.content, headers)


def is_token(text: str) -> bool:
    """Whether a text has the form of a token, as one that was given in place of its file's path."""
    return TOKEN_TEXT.fullmatch(text) is not None


class _Followed(Generic[Content]):
    """A file, and what was read from it the last time that it could be used."""

    def __init__(self, path: Path, read: Callable[[Path], Content]) -> None:
        self._path, self._read = path, read
        self._stamp = self._stamped()  # Before it is read: a later change is seen.
        self.content = read(path)

    def changed(self) -> bool:
        """Whether the content is another one now."""
        stamp = self._stamped()
        if stamp in (self._stamp, None):
            return False
        self._stamp = stamp
        try:
            self.content = self._read(self._path)
        except (TokenRefused, TlsRefused) as error:
            log.warning("%s; what was read before stays in use", error)
            return False
        return True

    def _stamped(self) -> tuple[int, int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_token(path: Path) -> str:
    if is_token(path.name):  # Not to be shown in the sentence that there is no such file.
        raise TokenRefused(
            "the token itself was given in place of its file's path, where others may have seen it: revoke it, and "
            "write another into a file that only you may read"
        )
    try:
        data, _ = read_bounded(path, MAX_TOKEN_FILE_BYTES)  # It refuses a pipe, on which the client's loop would wait.
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise TokenRefused(f"token file {path} cannot be read: {why}; correct the path or its mode") from None
    text = data.partition(b"\n")[0].strip().decode("ascii", "replace")
    if not TOKEN_TEXT.fullmatch(text):
        how = "put there what `quire token new` printed last"
        raise TokenRefused(f"token file {path} does not hold a token, quire_..., on its first line; {how}")
    return text


def warning_of(token_file: Path) -> str | None:
    """A sentence that every user of this machine may read or change a token's file; None if they may not."""
    try:
        mode = token_file.stat().st_mode
    except OSError:
        return None
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return None
    return (
        f"token file {token_file} has mode {stat.S_IMODE(mode):04o}: every user of this machine may read or change it; "
        f"run `chmod o= {shlex.quote(str(token_file))}`, and if it was readable for long, make another token"
    )
