"""Whom a node accepts as a peer (rule 10). This is decided before anything else in a hello counts.

    with a peer secret    any caller that proves one of the secrets
    without               an id of `--members` or of the log's members record, from a loopback address;
                          with `--insecure` from any address

A disk id proves nothing: `/status` shows it, and a member returns with another one after it lost its disk. So without a
secret any process on this machine can claim a member's id.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..address import is_loopback


@dataclass(frozen=True, slots=True)
class Trust:
    """A node's peer secrets and its members. It proves the first secret and accepts all of them."""

    secrets: tuple[bytes, ...]
    is_member: Callable[[str], bool]
    """Whether a node id is in `--members` or in the log's members record. A peer's claim to it proves nothing."""
    insecure: bool = False

    @property
    def secret(self) -> bytes | None:
        """The secret that this node proves to the peers that it dials; None without one."""
        return self.secrets[0] if self.secrets else None

    def doubt_of_caller(self, host: str | None) -> str | None:
        """Why no caller from this IP address is trusted; None if one may be."""
        if self.secrets or self.insecure or (host is not None and is_loopback(host)):
            return None
        return "this node has no peer secret, so its peers must be on its own machine"

    def doubt_of_peer(self, node_id: str) -> str | None:
        """Why a peer that proved a secret, if there is one, is not trusted; None if it is."""
        if self.secrets or self.is_member(node_id):
            return None
        return f"{node_id} is not a member, and this node has no peer secret"
