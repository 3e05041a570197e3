"""What a server proves and asks for: its certificates and its tokens, as they are in their files now.

The files are read again when one of them changes, and on SIGHUP. The certificates are made anew together, or not at
all, and so are the tokens: if a file is half written, or does not belong to the others, what was read before stays in
force, and an alarm says so until a later reading succeeds.
"""

import asyncio
import math
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from ssl import SSLContext

import structlog
from aiohttp import web

from quire.replication.address import host_and_port
from quire.replication.names import Dial, Names
from quire.replication.net.trust import dialling

from ..errors import ClusterError
from .tls import Tls, TlsFiles, TlsRefused, load_tls, name_of_cluster, name_of_node, node_in
from .tokens import TokenFile, read_tokens

LOOK_S = 0.5
"""How often the files' times and sizes are looked at: a revoked token ends its streams within a second."""
READ_TIMEOUT_S = 10.0
NODE_AT_PATIENCE_S = 1.0
"""For a lookup, if another address of that name is remembered."""
EXPIRY_ALARM_S = 30 * 86_400.0
STAYS = "what was read before stays in force"
UNEQUAL = (
    "{} refuses a token that this node accepts: their token files differ; give every node the same file, and use a new "
    "token only then"
)

TLS, TOKENS, READING = "tls", "tokens", "reading"
"""What a refusal is of; the last one is of both."""

Fingerprint = tuple[int, int, int, int]

log = structlog.get_logger(__name__)


class CredentialsRefused(ClusterError):
    """The certificates or the tokens cannot be used; the text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where they are; without `tls`, connections are plain, and without `tokens`, every caller may do everything."""

    tls: TlsFiles | None = None
    tokens: Path | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """How the files were when they were looked at."""

    tls: tuple[Fingerprint, ...]
    tokens: Fingerprint | None


@dataclass(frozen=True, slots=True)
class _Read:
    """What is in force after a reading: what was read, or what was before; and why some of it was not read."""

    tls: Tls | None
    tokens: TokenFile | None
    refusals: dict[str, str]
    seen: _Seen


class Credentials:
    """A server's certificates and tokens. One event loop. Implements `quire.replication.net.trust.Certificates`."""

    def __init__(
        self, files: CredentialFiles | None = None, node_id: str | None = None, names: Names | None = None
    ) -> None:
        """Read the files. `node_id` is the node that the certificate must be issued to; `names` are those of its dials.

        Raises:
            CredentialsRefused: they cannot be used.
        """
        self._files = files or CredentialFiles()
        self._node_id = node_id
        self._names = names or Names()
        self._seen = self._look()
        self.tls: Tls | None = None
        self.tokens: TokenFile | None = None
        self._refusals: dict[str, str] = {}
        self._unequal: dict[str, set[str]] = {}
        self._looking: asyncio.Future[_Read | None] | None = None
        self._changed: list[Callable[[], None]] = []
        self._distrusted: list[Callable[[Tls], None]] = []
        self._due = asyncio.Event()
        self.distrusts = 0
        """How many times a CA was trusted no more."""
        read = self._read()
        if read.refusals:
            raise CredentialsRefused("; ".join(read.refusals.values()))
        self._take(read)

    @property
    def has_files(self) -> bool:
        """Whether there is anything to read again."""
        return self._files.tls is not None or self._files.tokens is not None

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
        """Read the files again when they change, until cancelled. Nothing that is wrong with them ends it."""
        while self.has_files:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self._read_if_due()
            except TimeoutError:
                self._refuse({READING: f"certificates and tokens cannot be read within {READ_TIMEOUT_S:g} s; {STAYS}"})
            except Exception as error:
                log.exception("certificates or tokens were not read again")
                self._refuse({READING: f"certificates or tokens were not read again: {error!r}; {STAYS}"})

    async def _read_if_due(self) -> None:
        """Read again what has changed, was refused, or is asked for. One thread reads at a time, even if it hangs."""
        asked = self._due.is_set()
        if self._looking is None:
            self._due.clear()
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._look_and_read, asked=asked))
        try:
            found = await asyncio.shield(self._looking)
        except asyncio.CancelledError:
            raise  # It took too long: the next turn waits for the same reading.
        except BaseException:
            self._looking = None
            raise
        self._looking = None
        if found is not None:
            self._take_again(found)

    def _look_and_read(self, *, asked: bool) -> "_Read | None":
        """What is due. Certificates that did not change keep their contexts, and so their connections."""
        seen, before, refused = self._look(), self._seen, self._refusals
        all_due = asked or READING in refused
        tls_due = all_due or seen.tls != before.tls or TLS in refused
        tokens_due = all_due or seen.tokens != before.tokens or TOKENS in refused
        if not (tls_due or tokens_due):
            return None
        return replace(self._read(tls=tls_due, tokens=tokens_due), seen=seen)  # A change meanwhile is one more.

    def _take_again(self, read: "_Read") -> None:
        self._seen = read.seen
        self._take(read)
        if read.refusals:
            self._refuse({what: f"{why}; {STAYS}" for what, why in read.refusals.items()})
            return
        log.info("certificates and tokens were read again")
        self._refusals = {}
        self._unequal.clear()
        self._tell()

    def _refuse(self, refusals: dict[str, str]) -> None:
        if refusals != self._refusals:
            self._refusals = refusals
            self._tell()

    def _read(self, *, tls: bool = True, tokens: bool = True) -> "_Read":
        """Both, each by itself: a certificate that has expired must not keep a revoked token in force."""
        files, refusals = self._files, dict[str, str]()
        contexts, admitted = self.tls, self.tokens
        try:
            if tls and files.tls is not None:
                contexts = self._same_node(load_tls(files.tls, self._node_id))
        except (ClusterError, OSError, ValueError) as error:  # ssl and its parsers have more than one kind.
            refusals[TLS] = str(error)
        try:
            if tokens and files.tokens is not None:
                admitted = read_tokens(files.tokens)
        except (ClusterError, OSError, ValueError) as error:
            refusals[TOKENS] = str(error)
        return _Read(contexts, admitted, refusals, self._seen)

    def _same_node(self, tls: Tls) -> Tls:
        old = self.tls
        if old is not None and (tls.cluster, tls.node_id) != (old.cluster, old.node_id):
            raise TlsRefused(
                f"the new certificate is of {tls.node_id} of the cluster {tls.cluster}, and this is {old.node_id} of "
                f"the cluster {old.cluster}; stop this process before it becomes another"
            )
        return tls

    def _take(self, read: "_Read") -> None:
        old, self.tls, self.tokens = self.tls, read.tls, read.tokens
        if old is not None and read.tls is not None and not old.ca_digests <= read.tls.ca_digests:
            self.distrusts += 1
            for distrusted in self._distrusted:
                _call(distrusted, read.tls)

    def _look(self) -> _Seen:
        tls, tokens = self._files.tls, self._files.tokens
        of_tls = () if tls is None else tuple(map(_fingerprint_of, (tls.certificate, tls.key, tls.ca)))
        return _Seen(of_tls, None if tokens is None else _fingerprint_of(tokens))

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

    async def node_at(self, address: str) -> str:
        """The node that answers at HOST:PORT, by its certificate, which must be of this cluster. Raises OSError."""
        if self.tls is None:
            raise TlsRefused("this node has no certificates")
        host, port = host_and_port(address)
        cluster = self.tls.cluster
        ip, *_ = await self._names.addresses(host, Dial(NODE_AT_PATIENCE_S, may_recall=True))
        try:
            _, writer = await asyncio.open_connection(
                ip, port, ssl=self.tls.dialling, server_hostname=name_of_cluster(cluster)
            )
        except ssl.SSLCertVerificationError as error:
            reason = f"{address} is no node of the cluster {cluster}: {error.verify_message}; give another --join"
            raise ConnectionRefusedError(reason) from None
        try:
            node_id = node_in(writer.get_extra_info("peercert"), cluster)
            self._names.proved(host, writer)
        finally:
            writer.transport.abort()
        if node_id is None:
            raise ConnectionRefusedError(f"{address} shows the certificate of no node")
        return node_id

    def node_of(self, request: web.Request) -> str | None:
        """The node that the caller's certificate was issued to; None if it showed none of this cluster."""
        if self.tls is None or request.transport is None:
            return None
        return node_in(request.transport.get_extra_info("peercert"), self.tls.cluster)

    # Alarms

    def answered(self, node_id: str, token: str, *, refuses: bool) -> None:
        """Note whether another node refuses a token of this name, which this node accepts: then their files differ."""
        names = self._unequal.get(node_id)
        if refuses and (names is None or token not in names):
            self._unequal.setdefault(node_id, set()).add(token)
            self._tell()
        elif not refuses and names is not None and token in names:
            names.remove(token)
            if not names:
                del self._unequal[node_id]
            self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            _call(changed)

    def alarms(self) -> list[str]:
        """What an operator must do about the certificates and the tokens."""
        found = list(self._refusals.values())
        if self.tokens is not None and self.tokens.alarm is not None:
            found.append(self.tokens.alarm)
        if self.tls is not None:
            renew = f"run `quire certs node DIR {self.tls.node_id}` and copy"
            found += _expiry("this server's certificate", self.tls.expires_at, renew)
            found += _expiry("a CA's certificate", self.tls.ca_expires_at, "renew the CA (deploy/runbook.md) and copy")
        return [*found, *(UNEQUAL.format(node_id) for node_id in self._unequal)]


def _call(called: Callable[..., None], *given: Tls) -> None:
    """Call one of several, of which no error keeps the others from being called."""
    try:
        called(*given)
    except Exception:
        log.exception("what depends on certificates or tokens failed")


def _fingerprint_of(path: Path) -> Fingerprint:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return (
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )  # The last one changes with the mode.


def _expiry(what: str, expires_at: float, advice: str) -> list[str]:
    left_s = expires_at - time.time()
    if left_s > EXPIRY_ALARM_S:
        return []
    when = f"expires in {math.ceil(left_s / 86_400)} days" if left_s > 0 else "has expired"
    return [f"{what} {when}; {advice} the files: they are read while the node runs"]
