"""A backup's manifest: what it holds, and where it ends. It is written last: without it there is no backup.

    manifests/000000000042.json     one line of JSON, and its crc32c in hex

    version 1, cluster_id, name, history (the cluster's), number, writer, time, quire, features, genesis,
    machine [name, version]
    chain           how many gaps there were before: records [0, ...) of an earlier chain are in earlier manifests
    histories       [[history, index], ...]: the history of the records from this index on
    pieces          [file, from, to, bytes, crc, chain_first, chain_last, epoch, [first time, last time]]
    snapshots       [index, sha256, machine, [folder, files, bytes]]
    end             [index, epoch, crc, time] of the last frame
    applied         [index, digest]: what the source reported
    node, members   the source, and [[node, address, role], ...] as it knew them
    thinned         the numbers of the manifests that the next run deletes if it comes to the same; may be absent

Ids, digests and the genesis frame are in hex; times in microseconds since 1970, by the cluster's clock. The pieces are
frames as they are in the log, [from, to), one after the other: `chain_first` is `prev_crc32c` of a piece's first frame,
`chain_last` the crc32c of its last one. The first piece begins at index 0, or at or below the first snapshot.

    frames/<from>-<to>-<crc32c>                        a piece
    snapshots/<index>-<sha256, 16 digits>/manifest     a snapshot's own manifest
    snapshots/<index>-.../<number>-<crc32c>            its chunks
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from quire.log import MAX_FEATURE_LENGTH, MAX_FEATURES, Tail
from quire.replication.address import is_address
from quire.replication.core.members import MAX_MEMBERS, NODE_ID, Role
from quire.sm.snapshots.manifest import Manifest as SnapshotManifest

from ..errors import ClusterError, LimitExceeded, Malformed
from ..values import decode_json
from .store import TEMPORARY, Store, StoreDamaged, StoreMissing

MANIFESTS, FRAMES, SNAPSHOTS = "manifests/", "frames/", "snapshots/"
VERSION = 1
PIECE_BYTES = 32 << 20
"""No piece is larger, unless a single frame is."""
MAX_PIECE_BYTES = PIECE_BYTES + (256 << 20)
"""What the last frame of a piece may make of it: no cluster's frames are larger than 256 MiB."""
MAX_MANIFEST_BYTES = 32 << 20
"""Of some 190,000 pieces: a chain of 6 TB."""
MAX_MANIFEST_CONTAINERS = 400_000
"""The lists in a manifest: two for a piece, three for a snapshot, one for a member or history."""
NEARLY_FULL, FULL = 0.8, 0.99
"""Parts of these two limits: from which on a run warns, and copies nothing. What one copies between two manifests takes
less than the rest.
"""
MAX_TEXT = 300
ID_DIGITS = 32

_DEPTH = 4
_MANIFEST = re.compile(r"manifests/([0-9]{12})\.json")
_PIECE = re.compile(r"frames/([0-9]{20})-([0-9]{20})-([0-9a-f]{8})")
_SNAPSHOT = re.compile(r"snapshots/([0-9]{20})-([0-9a-f]{16})")
_OWN = re.compile(
    r"(manifests/[0-9]{12}\.json|frames/[0-9]{20}-[0-9]{20}-[0-9a-f]{8}"
    r"|snapshots/[0-9]{20}-[0-9a-f]{16}/(manifest|[0-9]{8}-[0-9a-f]{8}))(\.[0-9a-f]{16}\.tmp)?"
)
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


class BackupInvalid(ClusterError):
    """A file of a backup is not what was written; the text names it."""


class BackupRefused(ClusterError):
    """The backup cannot be used, or made, as it was asked for; the text says why and what to do."""


class Piece(NamedTuple):
    """A file of frames [from_index, to_index)."""

    file: str
    from_index: int
    to_index: int
    size: int
    crc: int
    chain_first: int
    chain_last: int
    epoch: int
    times: tuple[int, int]


class SnapshotRow(NamedTuple):
    """A snapshot in a backup: its folder, the number of its chunks, and their bytes."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nothing here needs.
    sha256: str
    machine: tuple[str, int]
    folder: str
    files: int
    size: int


class Manifest(NamedTuple):
    """A backup; see the head of this module."""

    cluster_id: str
    name: str
    history: str
    number: int
    writer: str
    time: int
    quire: str
    machine: tuple[str, int]
    features: tuple[str, ...]
    genesis: bytes
    chain: int
    histories: tuple[tuple[str, int], ...]
    pieces: tuple[Piece, ...]
    snapshots: tuple[SnapshotRow, ...]
    end: Tail
    applied: tuple[int, str]
    node: str
    members: tuple[tuple[str, str, str], ...]
    thinned: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Where it is kept."""
        return manifest_key(self.number)

    @property
    def base(self) -> int:
        """The lowest index that can be restored."""
        if self.pieces and not self.pieces[0].from_index:
            return 0
        return self.snapshots[0].index

    @property
    def size(self) -> int:
        """The bytes of all pieces and snapshots."""
        return sum(piece.size for piece in self.pieces) + sum(row.size for row in self.snapshots)

    @property
    def filled(self) -> float:
        """Which part of its limits it takes."""
        raw = self.encode()
        lists = raw.count(b"[") + raw.count(b"{")
        return max(len(raw) / MAX_MANIFEST_BYTES, lists / MAX_MANIFEST_CONTAINERS)

    @property
    def fullness(self) -> str:
        """What an operator must know if it is nearly full; empty if it is not."""
        filled = self.filled
        if filled < NEARLY_FULL:
            return ""
        told = f"{self.key} is {filled:.0%} full, with {len(self.pieces):,} pieces"
        return f"{told}; back up to another place, and keep this one"

    def history_at(self, end: int) -> str:
        """The history of the last record below `end`."""
        return [history for history, index in self.histories if index < max(end, 1)][-1]

    def encode(self) -> bytes:
        """The file's content."""
        rows = [[*piece[:4], f"{piece.crc:08x}", *piece[5:8], list(piece.times)] for piece in self.pieces]
        snapshots = [[row.index, row.sha256, list(row.machine), [*row[3:]]] for row in self.snapshots]
        fields: dict[str, object] = {"version": VERSION, **self._asdict()}
        fields |= {"genesis": self.genesis.hex(), "pieces": rows, "snapshots": snapshots}
        fields["end"] = [self.end.index, self.end.epoch, self.end.crc32c, self.end.timestamp]
        line = json.dumps(fields, separators=(",", ":")).encode()
        return line + b"\n" + f"{crc32c(line):08x}\n".encode()


def manifest_key(number: int) -> str:
    """Where the manifest of this number is kept."""
    return f"{MANIFESTS}{number:012d}.json"


def manifest_number(key: str) -> int | None:
    """The number of a manifest's key; None for any other key."""
    match = _MANIFEST.fullmatch(key)
    return None if match is None else int(match[1])


def piece_key(from_index: int, to_index: int, crc: int) -> str:
    """Where a piece is kept."""
    return f"{FRAMES}{from_index:020d}-{to_index:020d}-{crc:08x}"


def snapshot_row(manifest: SnapshotManifest) -> SnapshotRow:
    """The row of a snapshot."""
    sha256 = manifest.sha256.hex()
    folder = f"{SNAPSHOTS}{manifest.index:020d}-{sha256[:16]}"
    return SnapshotRow(manifest.index, sha256, manifest.machine, folder, len(manifest.chunks), manifest.size)


def snapshot_manifest_key(row: SnapshotRow) -> str:
    """Where the snapshot's own manifest is kept."""
    return f"{row.folder}/manifest"


def is_chunk_of(key: str, row: SnapshotRow) -> bool:
    """Whether this is the key of a chunk of the snapshot."""
    return key.startswith(f"{row.folder}/0") and _OWN.fullmatch(key) is not None and not key.endswith(TEMPORARY)


def is_of_backup(key: str) -> bool:
    """Whether a backup may have written this key, or left it unfinished."""
    return _OWN.fullmatch(key) is not None


def snapshot_files(row: SnapshotRow, manifest: SnapshotManifest) -> list[tuple[str, int, int]]:
    """(key, bytes, crc32c) of each chunk of a snapshot, in order."""
    return [
        (f"{row.folder}/{number:08d}-{chunk.crc32c:08x}", chunk.size, chunk.crc32c)
        for number, chunk in enumerate(manifest.chunks)
    ]


def sizes_of(manifests: Sequence[Manifest]) -> dict[str, int]:
    """The bytes of each piece, by file, and of each snapshot, by folder."""
    pieces = {piece.file: piece.size for manifest in manifests for piece in manifest.pieces}
    return pieces | {row.folder: row.size for manifest in manifests for row in manifest.snapshots}


def read_manifest(store: Store, key: str, say: Callable[[str], None]) -> Manifest | None:
    """A manifest of a backup; None, and a sentence, if it is damaged, or gone since it was listed. Blocks.

    Raises:
        BackupRefused: a later version of quire wrote it.
        StoreFailed: the store failed.
    """
    try:
        return decode_manifest(store.get(key, MAX_MANIFEST_BYTES), key)
    except StoreMissing:
        return None
    except (BackupInvalid, StoreDamaged) as error:
        say(f"{error}; it counts for nothing")
        return None


def decode_manifest(raw: bytes, key: str) -> Manifest:
    """Decode a manifest that was stored under `key`.

    Raises:
        BackupInvalid: the bytes are not those that were written.
        BackupRefused: a later version of quire wrote it.
    """
    line, _, check = raw.partition(b"\n")
    if check.strip() != f"{crc32c(line):08x}".encode():
        raise BackupInvalid(f"{key} is damaged: its crc32c differs")
    try:
        if len(raw) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has {len(raw):,} bytes, and {MAX_MANIFEST_BYTES:,} at most are read")
        fields = decode_json(line, _DEPTH, MAX_MANIFEST_CONTAINERS)
        if not isinstance(fields, dict):
            raise TypeError("it is no map")
        version = _number(fields["version"])
        if version != VERSION:
            raise BackupRefused(f"{key} has version {version}, and this program reads {VERSION}; upgrade quire")
        manifest = _decode(fields)
        _check(manifest, key)
    except (Malformed, LimitExceeded, ValueError, KeyError, TypeError) as error:
        raise BackupInvalid(f"{key} is no manifest of a backup: {type(error).__name__}: {error}") from error
    return manifest


def _decode(fields: dict[str, object]) -> Manifest:
    """Raises ValueError, KeyError, TypeError."""
    end_index, end_epoch, end_crc, end_time = map(_number, _row(fields["end"]))
    applied_index, digest = _row(fields["applied"])
    return Manifest(
        cluster_id=_hex(fields["cluster_id"], ID_DIGITS),
        name=_text(fields["name"]),
        history=_hex(fields["history"], ID_DIGITS),
        number=_number(fields["number"]),
        writer=_text(fields["writer"]),
        time=_number(fields["time"]),
        quire=_text(fields["quire"]),
        machine=_machine(fields["machine"]),
        features=_features(fields["features"]),
        genesis=bytes.fromhex(_hex(fields["genesis"], None)),
        chain=_number(fields["chain"]),
        histories=tuple(map(_history, _row(fields["histories"]))),
        pieces=tuple(map(_piece, _row(fields["pieces"]))),
        snapshots=tuple(map(_snapshot, _row(fields["snapshots"]))),
        end=Tail(end_index, end_epoch, end_time, _crc(end_crc)),
        applied=(_number(applied_index), _hex(digest, ID_DIGITS)),
        node=_text(fields["node"]),
        members=_members(fields["members"]),
        thinned=tuple(map(_number, _row(fields.get("thinned", [])))),
    )


def _piece(row: object) -> Piece:
    file, from_index, to_index, size, crc, first, last, epoch, times = _row(row)
    began, ended = map(_number, _row(times))
    match = _PIECE.fullmatch(_text(file))
    named = (_number(from_index), _number(to_index), _text(crc))
    if match is None or (int(match[1]), int(match[2]), match[3]) != named:
        raise ValueError(f"{file!r:.60} does not name the piece [{from_index}, {to_index})")
    # A record takes a byte at least.
    if not named[0] < named[1] <= named[0] + _number(size) <= named[0] + MAX_PIECE_BYTES or began > ended:
        raise ValueError(f"{file} with {size} bytes is empty or too large, or ends before it begins")
    return Piece(
        file=match[0],
        from_index=named[0],
        to_index=named[1],
        size=_number(size),
        crc=int(match[3], 16),
        chain_first=_crc(first),
        chain_last=_crc(last),
        epoch=_number(epoch),
        times=(began, ended),
    )


def _snapshot(row: object) -> SnapshotRow:
    index, sha256, machine, stored = _row(row)
    folder, files, size = _row(stored)
    match = _SNAPSHOT.fullmatch(_text(folder))
    if match is None or int(match[1]) != _number(index) or match[2] != _hex(sha256, 64)[:16]:
        raise ValueError(f"{folder!r:.60} does not name the snapshot at {index}")
    return SnapshotRow(int(match[1]), _text(sha256), _machine(machine), match[0], _number(files), _number(size))


def _check(manifest: Manifest, key: str) -> None:
    """Raises ValueError: the pieces do not join, or end elsewhere."""
    if manifest.key != key or any(number >= manifest.number for number in manifest.thinned):
        raise ValueError(f"its number is {manifest.number}")
    for before, after in pairwise(manifest.pieces):
        if (before.to_index, before.chain_last) != (after.from_index, after.chain_first):
            raise ValueError(f"{after.file} does not follow {before.file}")
        if before.epoch > after.epoch or before.times[1] > after.times[0]:
            raise ValueError(f"{after.file} is older than {before.file}")
    if manifest.pieces:
        last, end = manifest.pieces[-1], manifest.end
        if (last.to_index, last.epoch, last.chain_last) != (end.index, end.epoch, end.crc32c):
            raise ValueError("its end is not that of its last piece")
    if not manifest.end.index:
        raise ValueError("it has no record")
    indices = [row.index for row in manifest.snapshots]
    begin = manifest.pieces[0].from_index if manifest.pieces else manifest.end.index
    if indices != sorted(set(indices)) or any(not begin <= index <= manifest.end.index for index in indices):
        raise ValueError("its snapshots are not in order, or outside its pieces")
    if begin and not indices:
        raise ValueError(f"its pieces begin at {begin}, and there is no snapshot")
    begun = [index for _, index in manifest.histories]
    if not begun or begun != sorted(set(begun)) or begun[0] >= max(begin, 1):
        raise ValueError("its histories do not begin with its records, or are not in order")


def _row(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} is no list")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _crc(value: object) -> int:
    number = _number(value)
    if number >= 1 << 32:
        raise ValueError(f"{number} is no crc32c")
    return number


def _text(value: object, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise TypeError(f"{value!r:.40} is no text of at most {most} characters")
    return value


def _hex(value: object, digits: int | None) -> str:
    text = _text(value, digits or MAX_MANIFEST_BYTES)
    if digits not in (None, len(text)) or not _HEX.fullmatch(text):
        raise ValueError(f"{text!r:.40} is no id of {digits} digits")
    return text


def _history(value: object) -> tuple[str, int]:
    history, index = _row(value)
    return _hex(history, ID_DIGITS), _number(index)


def _features(value: object) -> tuple[str, ...]:
    names = _row(value)
    if len(names) > MAX_FEATURES:
        raise ValueError(f"it has {len(names)} features, and there are {MAX_FEATURES} at most")
    return tuple(_text(name, MAX_FEATURE_LENGTH) for name in names)


def _members(value: object) -> tuple[tuple[str, str, str], ...]:
    members = tuple(map(_member, _row(value)))
    nodes = {node for node, _, _ in members}
    if not len(members) == len(nodes) <= MAX_MEMBERS or Role.VOTER not in {role for _, _, role in members}:
        raise ValueError(f"its {len(members)} members are too many, not different, or none is a voter")
    return members


def _member(value: object) -> tuple[str, str, str]:
    node, address, role = map(_text, _row(value))
    if not NODE_ID.fullmatch(node) or not is_address(address):
        raise ValueError(f"{node!r:.40} at {address!r:.60} is no member")
    return node, address, Role(role)


def _machine(value: object) -> tuple[str, int]:
    name, version = _row(value)
    return _text(name), _number(version)
