"""A snapshot's manifest: its cluster and machine, its boundary in the log, and its chunks.

    manifest    0 4 crc32c of the rest    4 .. one msgpack map, keys in this order:

    version 1 to 3       cluster_id bin 16      machine [name, version]
    index, epoch, crc32c, timestamp             the next index, and the fields of the frame that ends there
    members_index        index of the last `members` or `genesis` record below `index`
    members              its rows [node_id, disk_id, address, role]
    epochs               [[epoch, first index], ...] below `index`, the newest MAX_EPOCHS
    digest bin 16        chunks [[bytes, crc32c], ...]        sha256 bin 32: of the joined chunks
    features             versions 2 and 3: the names of the features in use, ascending; in version 2 at least one
    removed              version 3: rows [node_id, disk_id, index] of the record of members
    history bin          version 3: the id in the last `history` record below `index`; empty if there is none
    history_index        version 3: the index of that record, or 0

The version is the lowest that holds what there is. A program that does not know it refuses the snapshot.

All of it depends on the log alone, so the snapshots of two nodes at one index have the same sha256.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from crc32c import crc32c

from quire.log import (
    MAX_FEATURE_LENGTH,
    MAX_FEATURES,
    PayloadInvalid,
    Tail,
    UnknownVersion,
    check_containers,
    pack,
    unpack,
)

from ..boundary import DIGEST_BYTES, HISTORY_BYTES, MAX_EPOCHS, Boundary
from ..errors import SnapshotDamaged
from ..numbers import number_of

MANIFEST_NAME = "manifest"
MANIFEST_VERSION = 1
MANIFEST_VERSION_FEATURES = 2
MANIFEST_VERSION_HISTORY = 3
MAX_MANIFEST_BYTES = 16 << 20
MAX_MANIFEST_CONTAINERS = 1 << 20
"""The arrays in a manifest: of chunks of 4 MiB, enough for 4 TiB."""
MAX_CHUNK_BYTES = 64 << 20
"""What a reader takes into memory; writers make chunks of 4 MiB (`store.py`)."""
CLUSTER_ID_BYTES = 16
SHA256_BYTES = 32
MAX_U32, MAX_U64 = 2**32 - 1, 2**64 - 1

_CRC_BYTES = 4


class Chunk(NamedTuple):
    """A chunk file: its length, and the crc32c of its bytes."""

    size: int
    crc32c: int


class Manifest(NamedTuple):
    """A snapshot: its cluster and machine, its boundary in the log, and its chunks."""

    cluster_id: bytes
    machine: tuple[str, int]
    boundary: Boundary
    chunks: tuple[Chunk, ...]
    sha256: bytes

    @property
    def index(self) -> int:  # type: ignore[override]  # Hides tuple.index, which is unused.
        """Where the snapshot ends: all records below it are included."""
        return self.boundary.tail.index

    @property
    def history(self) -> bytes:
        """The id of the history that it belongs to: the cluster's until a `history` record names another."""
        return self.boundary.history or self.cluster_id

    @property
    def size(self) -> int:
        """The bytes of all chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def encode(self) -> bytes:
        """The bytes of the manifest file."""
        tail, boundary = self.boundary.tail, self.boundary
        version, later = MANIFEST_VERSION, dict[str, object]()
        if boundary.features:
            version, later["features"] = MANIFEST_VERSION_FEATURES, list(boundary.features)
        if boundary.removed or boundary.history:
            version = MANIFEST_VERSION_HISTORY
            later = {
                "features": list(boundary.features),
                "removed": boundary.removed,
                "history": boundary.history,
                "history_index": boundary.history_index,
            }
        body = pack(
            {
                "version": version,
                "cluster_id": self.cluster_id,
                "machine": list(self.machine),
                "index": tail.index,
                "epoch": tail.epoch,
                "crc32c": tail.crc32c,
                "timestamp": tail.timestamp,
                "members_index": boundary.members_index,
                "members": boundary.members,
                "epochs": [list(pair) for pair in boundary.epochs[-MAX_EPOCHS:]],
                "digest": boundary.digest,
                "chunks": [list(chunk) for chunk in self.chunks],
                "sha256": self.sha256,
            }
            | later
        )
        return crc32c(body).to_bytes(_CRC_BYTES, "little") + body


def decode_manifest(raw: bytes, name: str) -> Manifest:
    """Decode a manifest file; `name` is the snapshot's, for messages.

    Raises:
        SnapshotDamaged: the bytes are not those that were written.
        UnknownVersion: it has another format version.
    """
    body = raw[_CRC_BYTES:]
    if len(raw) <= _CRC_BYTES or crc32c(body) != int.from_bytes(raw[:_CRC_BYTES], "little"):
        raise SnapshotDamaged(snapshot=name, reason="its manifest fails its crc32c")
    try:
        check_containers(body, MAX_MANIFEST_CONTAINERS)
        fields = unpack(body)
        if not isinstance(fields, dict):
            raise TypeError("it is not a map")
        version = fields["version"]
        if type(version) is not int:
            raise TypeError("its version is not a number")
    except (PayloadInvalid, TypeError, KeyError) as error:
        raise SnapshotDamaged(snapshot=name, reason=f"its manifest cannot be read ({error})") from error
    if version not in (MANIFEST_VERSION, MANIFEST_VERSION_FEATURES, MANIFEST_VERSION_HISTORY):
        raise UnknownVersion(f"snapshot {name}", version)
    try:
        return _manifest(fields)
    except (TypeError, KeyError, ValueError) as error:
        raise SnapshotDamaged(snapshot=name, reason=f"its manifest lacks a field ({error!r})") from error


def _manifest(fields: Mapping[str, object]) -> Manifest:
    """Raises TypeError, KeyError, ValueError."""
    machine_name, machine_version = _row(fields["machine"])
    tail = Tail(*(number_of(fields[name]) for name in ("index", "epoch", "timestamp", "crc32c")))
    members_index, version = fields["members_index"], fields["version"]
    boundary = Boundary(
        tail,
        None if members_index is None else number_of(members_index),
        _row(fields["members"]),
        tuple(_pairs(fields["epochs"])),
        _octets(fields["digest"], DIGEST_BYTES),
        () if version == MANIFEST_VERSION else _features(fields["features"], int(version == MANIFEST_VERSION_FEATURES)),
    )
    if version == MANIFEST_VERSION_HISTORY:
        boundary = boundary._replace(
            removed=_row(fields["removed"]),
            history=_octets(fields["history"], HISTORY_BYTES) if fields["history"] != b"" else b"",
            history_index=number_of(fields["history_index"]),
        )
    _check_position(boundary)
    chunks = tuple(Chunk(size, crc) for size, crc in _pairs(fields["chunks"]))
    if any(not 0 < chunk.size <= MAX_CHUNK_BYTES or chunk.crc32c > MAX_U32 for chunk in chunks):
        raise ValueError("a chunk has an impossible size or crc32c")
    if type(machine_name) is not str:
        raise TypeError("its machine's name is not text")
    cluster_id = _octets(fields["cluster_id"], CLUSTER_ID_BYTES)
    sha256 = _octets(fields["sha256"], SHA256_BYTES)
    return Manifest(cluster_id, (machine_name, number_of(machine_version)), boundary, chunks, sha256)


def _features(names: object, fewest: int) -> tuple[str, ...]:
    if type(names) is not list or not fewest <= len(names) <= MAX_FEATURES or names != sorted(set(names)):
        raise ValueError(f"{names!r:.40} are not the names of features, ascending")
    if not all(type(name) is str and 0 < len(name) <= MAX_FEATURE_LENGTH for name in names):
        raise ValueError(f"{names!r:.40} are not the names of features")
    return tuple(names)


def _check_position(boundary: Boundary) -> None:
    """Raises ValueError: a log could not continue from there."""
    tail, epochs = boundary.tail, boundary.epochs
    if tail.crc32c > MAX_U32 or max(tail) > MAX_U64 or not (boundary.members_index or 0) < tail.index:
        raise ValueError("its boundary is not possible in a log")
    if bool(boundary.history) != bool(boundary.history_index) or boundary.history_index > (boundary.members_index or 0):
        raise ValueError("its history is not possible in a log")
    for sooner, later in pairwise((*epochs, (tail.epoch + 1, tail.index))):
        if sooner[0] >= later[0] or sooner[1] >= later[1]:
            raise ValueError("its epochs do not ascend to its boundary")


def _pairs(rows: object) -> Iterable[tuple[int, int]]:
    for first, second in map(_row, _row(rows)):
        yield number_of(first), number_of(second)


def _row(value: object) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{value!r:.40} is not an array")
    return value


def _octets(value: object, length: int) -> bytes:
    if type(value) is not bytes or len(value) != length:
        raise ValueError(f"{length} bytes were expected")
    return value
