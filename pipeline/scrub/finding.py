"""What a scrub finds wrong, each with its place."""

from __future__ import annotations

from typing import Literal, NamedTuple

FindingKind = Literal["corrupt", "chain", "index", "unreadable", "differs"]


class Finding(NamedTuple):
    """One thing that is wrong.

    - `corrupt`: bytes of a store or an archive are not what was written.
    - `chain`: frames are whole, and one does not follow the one before.
    - `index`: an index file does not fit its store; the node rebuilds it when it needs it.
    - `unreadable`: a node did not give these records.
    - `differs`: at this record, nodes that verify have different frames.
    """

    node: str
    """A data_dir or archive by its path, a node by its address."""
    kind: FindingKind
    reason: str
    file: str = ""
    segment: int | None = None
    position: int | None = None
    """Byte in the file: of the flipped bit, where it is one, otherwise of the frame."""
    from_index: int | None = None
    """The records [from_index, to_index) are concerned."""
    to_index: int | None = None

    def sentence(self) -> str:
        """For people."""
        place = "" if self.position is None else f" at byte {self.position}"
        where = f"{self.node}: {self.file}{place}: " if self.file else f"{self.node}: "
        records = "" if self.from_index is None else f"; records [{self.from_index}, {self.to_index})"
        return f"{self.kind}: {where}{self.reason}{records}"
