"""A chain of pieces with its snapshots, as a run extends it and a manifest states it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire import __version__
from quire.log import Tail

from ..client import Status
from .manifest import Manifest, Piece, SnapshotRow

LOG_START = Tail(0, 0, 0, 0)


@dataclass(slots=True)
class Chain:
    """Frames without a gap: pieces one after the other, and snapshots at boundaries between their frames."""

    number: int
    genesis: bytes
    histories: list[tuple[str, int]]
    """From which index on the records are of which history."""
    end: Tail = LOG_START
    pieces: list[Piece] = field(default_factory=list)
    snapshots: list[SnapshotRow] = field(default_factory=list)

    @classmethod
    def of(cls, manifest: Manifest) -> "Chain":
        """The chain that a manifest states."""
        return cls(
            manifest.chain,
            manifest.genesis,
            list(manifest.histories),
            manifest.end,
            list(manifest.pieces),
            list(manifest.snapshots),
        )

    @property
    def begin(self) -> int:
        """The index of its first record."""
        return self.pieces[0].from_index if self.pieces else self.end.index

    def is_stated_by(self, manifest: Manifest) -> bool:
        """Whether a manifest states just this."""
        return Chain.of(manifest) == self

    def add(self, piece: Piece, end: Tail, histories: Sequence[tuple[str, int]] = ()) -> None:
        """Add a piece, which replaces those that it begins before."""
        self.pieces = [before for before in self.pieces if before.to_index <= piece.from_index]
        self.pieces.append(piece)
        self.histories += histories
        self.end = end

    def cut_lost(self, is_lost: Callable[[str], bool]) -> list[str]:
        """End before the first lost piece, and forget lost snapshots; return what is lost. Nothing may be left."""
        lost = [row.folder for row in self.snapshots if is_lost(row.folder)]
        self.snapshots = [row for row in self.snapshots if row.folder not in lost]
        for place, piece in enumerate(self.pieces):
            if is_lost(piece.file):
                lost.append(piece.file)
                self._cut(place)
                break
        return lost

    def _cut(self, place: int) -> None:
        """Keep the pieces before a place."""
        self.pieces = before = self.pieces[:place]
        self.end = LOG_START
        if before:
            last = before[-1]
            self.end = Tail(last.to_index, last.epoch, last.times[1], last.chain_last)
        self.snapshots = [row for row in self.snapshots if row.index <= self.end.index]
        self.histories = [row for row in self.histories if row[1] < max(self.end.index, 1)]

    @property
    def can_restore(self) -> bool:
        """Whether it begins at index 0 or has a snapshot."""
        return not self.begin or bool(self.snapshots)

    def trim(self, base: int) -> None:
        """Forget what is only needed to restore an index below `base`, which is 0 or that of a snapshot."""
        self.snapshots = [row for row in self.snapshots if row.index >= base]
        self.pieces = [piece for piece in self.pieces if piece.to_index > base]
        first = max(self.begin, 1)
        before = [row for row in self.histories if row[1] < first]
        self.histories = [*before[-1:], *(row for row in self.histories if row[1] >= first)]

    def stated(self, status: Status, number: int, writer: str, time: int, applied: tuple[int, str]) -> Manifest:
        """The manifest of it, for a source with this status."""
        certificate = status["certificate"]
        return Manifest(
            cluster_id=status["cluster_id"],
            name="" if certificate is None else certificate["cluster"],
            history=status["history"],
            number=number,
            writer=writer,
            time=time,
            quire=__version__,
            machine=(status["machine"]["name"], status["machine"]["version"]),
            features=tuple(status["features"]),
            genesis=self.genesis,
            chain=self.number,
            histories=tuple(self.histories),
            pieces=tuple(self.pieces),
            snapshots=tuple(self.snapshots),
            end=self.end,
            applied=applied,
            node=status["node_id"],
            members=tuple((row["node_id"], row["address"], row["role"]) for row in status["members"]),
        )
