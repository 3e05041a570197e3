"""What a server proves and asks for: its certificates and its tokens, as they are in their files now.

The files are read again when one of them changes, and on SIGHUP. Each reading makes everything anew, or nothing: if a
file is half written, or does not belong to the others, what was read before stays in force, and an alarm says so.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext

import structlog
from aiohttp import web

from quire.replication.net.trust import dialling

from ..errors import ClusterError
from .tls import Tls, TlsFiles, TlsRefused, load_tls, name_of_node, node_in
from .tokens import TokenFile, read_tokens

LOOK_S = 0.5
"""How often the files' times and sizes are looked at: a revoked token ends its streams within a second."""
EXPIRY_ALARM_S = 30 * 86_400.0

Seen = tuple[tuple[int, int, int], ...]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where they are; without `tls`, connections are plain, and without `tokens`, every caller may do everything."""

    tls: TlsFiles | None = None
    tokens: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        tls = () if self.tls is None else (self.tls.certificate, self.tls.key, self.tls.ca)
        return tls if self.tokens is None else (*tls, self.tokens)


class Credentials:
    """A server's certificates and tokens. One event loop. Implements `quire.replication.net.trust.Certificates`."""

    def __init__(self, files: CredentialFiles | None = None, node_id: str | None = None) -> None:
        """Read the files. `node_id` is the node that the certificate must be issued to.

        Raises:
            TlsRefused, TokensRefused: they cannot be used.
        """
        self._files = files or CredentialFiles()
        self._node_id = node_id
        self._seen = self._look()
        self.tls: Tls | None = None
        self.tokens: TokenFile | None = None
        self._refusal: str | None = None
        self._unequal: dict[str, str] = {}
        self._changed: list[Callable[[], None]] = []
        self._distrusted: list[Callable[[Tls], None]] = []
        self._due = asyncio.Event()
        self._take(*self._read())

    @property
    def has_files(self) -> bool:
        """Whether there is anything to read again."""
        return bool(self._files.paths)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever files were read again, and whenever an alarm may have changed."""
        self._changed.append(changed)

    def on_distrust(self, distrusted: Callable[[Tls], None]) -> None:
        """Call `distrusted` when a CA is trusted no more, with what is in force now."""
        self._distrusted.append(distrusted)

    def reload(self) -> None:
        """Have the files read again soon, even if none of them seems to have changed. For SIGHUP."""
        self._due.set()

    async def watch(self) -> None:
        """Read the files again when they change, until cancelled."""
        while self.has_files:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()
                asked = True
            except TimeoutError:
                asked = False
            self._due.clear()
            seen = await asyncio.to_thread(self._look)
            if asked or seen != self._seen:
                await self._read_again(seen)

    async def _read_again(self, seen: Seen) -> None:
        self._seen = seen  # Before they are read: a change meanwhile is one more.
        try:
            read = await asyncio.to_thread(self._read)
        except (ClusterError, OSError, ValueError) as error:  # ssl and its parsers have more than one kind.
            self._refusal = f"{error}; what was read before stays in force"
            log.warning("certificates or tokens were not read again", why=str(error))
        else:
            self._take(*read)
            self._refusal = None
            self._unequal.clear()
            log.info("certificates and tokens were read again")
        for changed in self._changed:
            changed()

    def _read(self) -> tuple[Tls | None, TokenFile | None]:
        files = self._files
        tls = None if files.tls is None else load_tls(files.tls, self._node_id)
        if (
            tls is not None
            and self.tls is not None
            and (tls.cluster, tls.node_id) != (self.tls.cluster, self.tls.node_id)
        ):
            raise TlsRefused(
                f"the new certificate is of {tls.node_id} of the cluster {tls.cluster}, and this is {self.tls.node_id} "
                f"of the cluster {self.tls.cluster}; stop this process before it becomes another"
            )
        return tls, None if files.tokens is None else read_tokens(files.tokens)

    def _take(self, tls: Tls | None, tokens: TokenFile | None) -> None:
        old, self.tls, self.tokens = self.tls, tls, tokens
        if old is not None and tls is not None and not old.ca_digests <= tls.ca_digests:
            for distrusted in self._distrusted:
                distrusted(tls)

    def _look(self) -> Seen:
        return tuple(_fingerprint_of(path) for path in self._files.paths)

    # Certificates

    @property
    def certificates(self) -> "Credentials | None":
        """These, if there are certificates."""
        return None if self.tls is None else self

    def dialled_by(self, node_id: str) -> tuple[str, SSLContext | bool, str | None]:
        """How this node dials another: the scheme, and aiohttp's `ssl` and `server_hostname`."""
        return dialling(self.certificates, node_id)

    def dialling(self, node_id: str) -> tuple[SSLContext, str]:
        """The context for dialling that node, and the name that it must prove. Only with certificates."""
        if self.tls is None:
            raise TlsRefused("this node has no certificates")
        return self.tls.dialling, name_of_node(node_id, self.tls.cluster)

    def node_of(self, request: web.Request) -> str | None:
        """The node that the caller's certificate was issued to; None if it showed none of this cluster."""
        if self.tls is None or request.transport is None:
            return None
        return node_in(request.transport.get_extra_info("peercert"), self.tls.cluster)

    # Alarms

    def answered(self, node_id: str, *, refuses: bool) -> None:
        """Note whether another node refuses a token that this node accepts: then their token files differ."""
        if refuses:
            if node_id not in self._unequal:
                self._unequal[node_id] = (
                    f"{node_id} refuses a token that this node accepts: their token files differ; give every node the "
                    "same file, and use a new token only then"
                )
                self._tell()
        elif self._unequal and self._unequal.pop(node_id, None) is not None:
            self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    def alarms(self) -> list[str]:
        """What an operator must do about the certificates and the tokens."""
        found = [] if self._refusal is None else [self._refusal]
        if self.tokens is not None and self.tokens.alarm is not None:
            found.append(self.tokens.alarm)
        if self.tls is not None:
            renew = f"run `quire certs node DIR {self.tls.node_id}` and copy"
            found += _expiry("this server's certificate", self.tls.expires_at, renew)
            found += _expiry("a CA's certificate", self.tls.ca_expires_at, "renew the CA (deploy/runbook.md) and copy")
        return [*found, *self._unequal.values()]


def _fingerprint_of(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _expiry(what: str, expires_at: float, advice: str) -> list[str]:
    left_s = expires_at - time.time()
    if left_s > EXPIRY_ALARM_S:
        return []
    when = f"expires in {math.ceil(left_s / 86_400)} days" if left_s > 0 else "has expired"
    return [f"{what} {when}; {advice} the files: they are read while the node runs"]
