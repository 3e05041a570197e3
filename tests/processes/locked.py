"""The certificates and tokens of a cluster with TLS, and what its callers show. Without them a cluster is plain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.cluster.access.certificates import make_ca, make_node
from quire.cluster.access.client_credentials import ClientCredentials, Shown
from quire.cluster.access.roles import Role
from quire.cluster.access.tls import Tls, TlsFiles, load_tls
from quire.cluster.access.tokens import add_token
from quire.cluster.client import Client, connect

CLUSTER = "tested"


@dataclass(frozen=True, slots=True)
class CallerFiles:
    """What callers of a cluster need. Without them they speak plain HTTP."""

    token: Path | None = None
    ca: Path | None = None

    def connect(self, servers: str | Sequence[str], *, timeout_s: float) -> Client:
        """A client of these servers."""
        return connect(servers, timeout_s=timeout_s, token=self.token, ca=self.ca)

    def shown(self) -> Shown:
        """What a request shows, and what it demands of the server."""
        return ClientCredentials(self.token, self.ca).shown()


PLAIN = CallerFiles()


@dataclass(frozen=True, slots=True)
class LockedFiles:
    """The files of a cluster that only its own members and callers with a token enter; made by `locked_files`."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The CA's certificate."""
        return self.folder / "ca.crt"

    def tls(self, node_id: str) -> TlsFiles:
        """The files of a node."""
        return TlsFiles(self.folder / f"{node_id}.crt", self.folder / f"{node_id}.key", self.ca)

    def contexts(self, node_id: str) -> Tls:
        """A node's contexts, with which a proxy can stand in for it."""
        return load_tls(self.tls(node_id), node_id)

    def flags(self, node_id: str) -> list[str]:
        """The flags of a node."""
        return [*tls_flags(self.tls(node_id)), "--tokens", str(self.folder / "tokens")]

    def caller(self, role: Role = Role.ADMIN) -> CallerFiles:
        """What a caller of this role needs."""
        return CallerFiles(self.folder / f"{role.name.lower()}.token", self.ca)


def tls_flags(files: TlsFiles) -> list[str]:
    """The flags of a node with these files."""
    return ["--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--tls-ca", str(files.ca)]


def locked_files(folder: Path, node_ids: Iterable[str], cluster: str = CLUSTER) -> LockedFiles:
    """Make a CA, a certificate for each node, and a token of each role."""
    make_ca(folder, cluster)
    for node_id in node_ids:
        make_node(folder, node_id)
    for role in (Role.READ, Role.WRITE, Role.ADMIN):
        word = role.name.lower()
        text = add_token(folder / "tokens", word, role, None)
        (folder / f"{word}.token").write_text(f"{text}\n")
    return LockedFiles(folder)
