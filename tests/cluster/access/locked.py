"""A cluster in this process whose nodes have certificates and tokens, and callers of all kinds."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.access import credentials
from quire.cluster.access.roles import Role
from quire.cluster.access.tls import load_client_tls
from quire.cluster.access.tokens import add_token, revoke_token
from tests.cluster.access.issued import CLUSTER, Authority
from tests.cluster.running import Reply, RunningCluster, read, running_cluster

ROLES = (Role.READ, Role.WRITE, Role.ADMIN)


@dataclass
class Locked:
    """The cluster, its files, and its callers' tokens: one of each role, under the role's name."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority(CLUSTER))
    tokens: dict[str, str] = field(default_factory=dict)
    cluster: RunningCluster = field(init=False)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def token_file(self) -> Path:
        return self.folder / "tokens"

    def make(self) -> None:
        """The CA's certificate, and a token of each role."""
        self.authority.write(self.ca)
        for role in ROLES:
            self.add(role.word, role)

    def add(self, name: str, role: Role, expires_at: float | None = None) -> str:
        self.tokens[name] = add_token(self.token_file, name, role, expires_at)
        return self.tokens[name]

    def revoke(self, name: str) -> None:
        revoke_token(self.token_file, name)

    def settings_of(self, node_id: str) -> dict[str, Any]:
        certificate, key = self.authority.issue(self.folder, node_id)
        files = {"tls_cert": certificate, "tls_key": key, "tls_ca": self.ca}
        return {**files, "tokens": self.token_file}

    def header(self, name: str) -> dict[str, str]:
        """What the caller with this token sends."""
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    def context_of(self, authority: Authority, node_id: str, to_day: float = 5) -> ssl.SSLContext:
        """The context of a peer with a certificate of that CA; it believes the cluster's nodes."""
        context = load_client_tls(self.ca).context
        folder = self.folder / "peers"
        folder.mkdir(exist_ok=True)
        context.load_cert_chain(*authority.issue(folder, node_id, to_day=to_day))
        return context

    async def ask(self, node_id: str, method: str, path: str, caller: str | None, **more: Any) -> Reply:
        """What a node answers to the caller with this token; None is a caller without one."""
        headers = {} if caller is None else self.header(caller)
        return await self.cluster.ask(node_id, method, path, headers=headers | more.pop("headers", {}), **more)

    async def ask_as_peer(
        self, node_id: str, method: str, path: str, context: ssl.SSLContext, headers: dict[str, str] | None = None
    ) -> Reply:
        """What a node answers to a caller that dials its own name, with a certificate."""
        url, name = f"{self.cluster.url(node_id)}{path}", f"{node_id}.{CLUSTER}.quire"
        request = self.cluster.session.request(method, url, ssl=context, server_hostname=name, headers=headers)
        async with request as answer:
            return await read(answer)


@asynccontextmanager
async def locked_cluster(folder: Path, count: int = 1, **settings: Any) -> AsyncGenerator[Locked]:
    """A formed cluster of nodes that are all ready, and see soon that a file has changed."""
    locked = Locked(folder)
    locked.make()
    tls = load_client_tls(locked.ca)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials, "LOOK_S", 0.05)
        async with running_cluster(
            folder / "data", count, tls=tls, own=locked.settings_of, **settings
        ) as locked.cluster:
            yield locked
