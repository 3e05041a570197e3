"""The snapshots of a node in the tests' world."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Snapshots:
    """The indices of a node's snapshots; in this world none is written."""

    indices: list[int] = field(default_factory=list)
    fetching: int = 0
    members: dict[int, list[list[Any]]] = field(default_factory=dict)

    def members_of(self, members_index: int) -> list[list[Any]] | None:
        """The rows that a test put there."""
        return self.members.get(members_index)
