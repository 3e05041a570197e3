"""What a caller may do. The roles are ordered: each may do what the ones below it may."""

from enum import IntEnum


class Role(IntEnum):
    """The role that a route asks for, and the one that a caller has. `PEER` is proved by a certificate, not a token."""

    OPEN = 0
    READ = 1
    WRITE = 2
    ADMIN = 3
    PEER = 4

    @property
    def word(self) -> str:
        """The role as it is written in a token file and in messages."""
        return self.name.lower()
