"""Manifests for tests: of a chain whose frames have ten records each."""

from quire.cluster.backup.manifest import Manifest, Piece, SnapshotRow, piece_key
from quire.log import Tail

CLUSTER = "c1" * 16
SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def piece(from_index: int, to_index: int, *, time: int = 0) -> Piece:
    """A piece whose chain is made of its indices."""
    crc = from_index * 31 + to_index & 0xFFFFFFFF
    file = piece_key(from_index, to_index, crc)
    return Piece(file, from_index, to_index, to_index - from_index, crc, from_index, to_index, 1, (time, time))


def snapshot(index: int) -> SnapshotRow:
    return SnapshotRow(index, f"{index:064x}", ("kv", 1), f"snapshots/{index:020d}-{0:016x}", 1, 10)


def manifest(
    number: int,
    time: int,
    pieces: list[Piece],
    snapshots: list[SnapshotRow] | None = None,
    *,
    chain: int = 0,
    history: str = CLUSTER,
) -> Manifest:
    end = pieces[-1].to_index
    return Manifest(
        cluster_id=CLUSTER,
        name="lab",
        history=history,
        number=number,
        writer="w",
        time=time,
        quire="1.0",
        machine=("kv", 1),
        features=("history", "membership"),
        genesis=b"genesis",
        chain=chain,
        histories=((history, 0),),
        pieces=tuple(pieces),
        snapshots=tuple(snapshots or []),
        end=Tail(end, 1, pieces[-1].times[1], pieces[-1].chain_last),
        applied=(end, "00" * 16),
        node="n2",
        members=(("n1", "10.0.0.1:7001", "voter"),),
    )
