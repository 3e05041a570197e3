"""Whom a node accepts as a peer (rule 10). This is decided before anything else in a hello counts.

    with certificates     a caller whose certificate was issued to the node that it says it is
    with a peer secret    any caller that proves one of the secrets
    with both             a caller that does both
    with neither          an id of `--members` or of the log's members record, from a loopback address

A disk id proves nothing: `/status` shows it, and a member returns with another one after it lost its disk. So with
neither, any process on this machine can claim a member's id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Protocol

from aiohttp import web

from ..address import is_loopback


class Certificates(Protocol):
    """The certificates by which nodes prove who they are, as they are now: they are renewed while a node runs."""

    def dialling(self, node_id: str) -> tuple[SSLContext, str]:
        """The context for dialling that node, and the name that it must prove."""
        ...

    async def node_at(self, address: str) -> str:
        """The node that answers at HOST:PORT, by its certificate, which must be of this cluster. Raises OSError."""
        ...

    def node_of(self, request: web.Request) -> str | None:
        """The node that the caller's certificate was issued to; None if it showed none of this cluster."""
        ...


def dialling(certificates: Certificates | None, node_id: str) -> tuple[str, SSLContext | bool, str | None]:
    """How to dial a node: the scheme, and aiohttp's `ssl` and `server_hostname`. Plain without certificates."""
    return ("http", True, None) if certificates is None else ("https", *certificates.dialling(node_id))


@dataclass(frozen=True, slots=True)
class Trust:
    """What a node's peers must prove, and its members. It proves the first secret and accepts all of them."""

    secrets: tuple[bytes, ...]
    is_member: Callable[[str], bool]
    """Whether a node id is that of a member or of a removed one: in the log, in `--members`, at an address of `--join`,
    or in a peer's directory. A peer's claim to it proves nothing."""
    certificates: Certificates | None = None

    @property
    def secret(self) -> bytes | None:
        """The secret that this node proves to the peers that it dials; None without one."""
        return self.secrets[0] if self.secrets else None

    @property
    def proves(self) -> bool:
        """Whether a peer proves anything: otherwise only its address speaks for it."""
        return bool(self.secrets) or self.certificates is not None

    def dialling(self, node_id: str) -> tuple[str, SSLContext | bool, str | None]:
        """How to dial a node: the scheme, and aiohttp's `ssl` and `server_hostname`."""
        return dialling(self.certificates, node_id)

    def shown_by(self, request: web.Request) -> str | None:
        """The node that the caller's certificate was issued to; None without certificates."""
        return None if self.certificates is None else self.certificates.node_of(request)

    def doubt_of_caller(self, host: str | None, shown: str | None) -> str | None:
        """Why no caller from this IP address that showed this node's certificate is trusted; None if one may be."""
        if self.certificates is not None:
            if shown is None:
                return "this node's peers must show a certificate that its CA issued to a node of its cluster"
            return None
        if self.secrets or (host is not None and is_loopback(host)):
            return None
        return "this node has neither certificates nor a peer secret, so its peers must be on its own machine"

    def doubt_of_peer(self, node_id: str, shown: str | None) -> str | None:
        """Why a peer that proved a secret, if there is one, is not trusted; None if it is."""
        if self.certificates is not None:
            return None if shown == node_id else f"it says that it is {node_id} and shows the certificate of {shown}"
        if self.secrets or self.is_member(node_id):
            return None
        return f"{node_id} is not a member, and this node has neither certificates nor a peer secret"
