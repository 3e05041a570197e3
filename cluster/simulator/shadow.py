"""The frames, promise and mark on a simulated disk, read from its bytes without the log engine's code (msgpack aside).

The offsets are those of `log/DESIGN.md`, implemented a second time so that the checks do not repeat a mistake of the
engine's reader.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from quire.log import unpack
from quire.log.simulated import faulty

STORE_HEADER_BYTES = 64
HEADER_BYTES = 64
SLOTS = (0, 4096)
SYSTEM = 2
SLOT_BYTES = 64
DISCARDING_BASE = (1 << 64) - 1

_FRAME = struct.Struct("<IIQQQIIQQB3xI")
_PROMISE = struct.Struct("<IIQ24sQ16s")
_MARK = struct.Struct("<IIQQQQQQIB3x")


class Held(NamedTuple):
    """A frame on a disk."""

    first: int
    end: int
    epoch: int
    crc32c: int


class Named(NamedTuple):
    """A record of members: its voters, all rows and the removed, each as (node id, disk id)."""

    first: int
    end: int
    epoch: int
    crc32c: int
    voters: frozenset[tuple[str, bytes]]
    rows: frozenset[tuple[str, bytes]]
    removed: frozenset[tuple[str, bytes]]


class HeldPromise(NamedTuple):
    """A promise on a disk."""

    epoch: int
    candidate: str
    incarnation: int


class HeldMark(NamedTuple):
    """A mark on a disk."""

    generation: int
    durable_index: int
    commit_index: int
    discards: bool
    """It says that all segments are to be removed; the log then begins at its durable_index."""


class _Segment:
    def __init__(self, name: str, first_place: int) -> None:
        self.name = name
        self.first_place = first_place
        self.end = STORE_HEADER_BYTES
        self.count = 0


class Shadow:
    """The frames in a disk's store files as the page cache has them, updated as the files change."""

    def __init__(self, disk: faulty.Disk, named: dict[int, Named] | None = None) -> None:
        self._disk = disk
        self.named = {} if named is None else named
        """The records of members on any disk of this history, by their crc32c."""
        self.frames: list[Held] = []
        self.ends: list[int] = []
        self.truncated: tuple[int, Held] | None = None
        """The number of the lowest frame that was removed or replaced, and that frame. The checks reset it."""
        self.base_place = 0
        """The number of the log's first frame; frames below it are in a snapshot, or have expired."""
        self.below: Callable[[int, int], list[Held]] = _nothing
        """Takes a log's first index, if not 0, and the crc32c before it; returns all frames below."""
        self._segments: list[_Segment] = []

    @property
    def end(self) -> int:
        """The index after the last frame."""
        return self.ends[-1] if self.ends else 0

    def place_of_end(self, index: int) -> int | None:
        """The number of the frame that ends at `index`: -1 for 0, None if there is none."""
        if index == 0:
            return -1
        place = bisect_left(self.ends, index)
        return place if place < len(self.ends) and self.ends[place] == index else None

    def look(self) -> bool:
        """Follow the changes of the files since the last call. Returns whether frames may have changed."""
        journal, self._disk.journal = self._disk.journal, []
        appended: set[str] = set()
        changed: set[str] = set()
        for operation, name in journal:
            if ".store" in name:
                if operation == "write" and not name.endswith(".new"):
                    appended.add(name)
                elif operation not in ("write", "sync", "allocate"):
                    changed.add(name.removesuffix(".new"))
        if changed:
            self._read_again(changed)
        for segment in self._segments:
            if segment.name in appended and segment.name not in changed:
                self._read_on(segment)
        return bool(appended or changed)

    def read_all(self) -> None:
        """Read everything again, as a node does after a crash."""
        self._disk.journal.clear()
        kept = self.frames
        self.frames, self.ends, self._segments = [], [], []
        self._begin()
        for name in self._names():
            self._add(name)
        same = next((at for at, (a, b) in enumerate(zip(kept, self.frames, strict=False)) if a != b), len(self.frames))
        if same < len(kept):
            self._note_truncated(same, kept[same])

    def unsynced_below(self, index: int) -> str | None:
        """Which of the frames below `index` a power loss would take; None: none."""
        for segment in self._segments:
            if segment.first_place >= len(self.frames) or self.frames[segment.first_place].first >= index:
                continue
            unsynced = self._disk.unsynced_from(f"log/{segment.name}")
            if unsynced is not None and unsynced < self._position_of(segment, index):
                return f"{segment.name} is not synced from byte {unsynced}"
        return None

    def _position_of(self, segment: _Segment, index: int) -> int:
        content = self._disk.content(f"log/{segment.name}")
        position = STORE_HEADER_BYTES
        for held in self.frames[segment.first_place : segment.first_place + segment.count]:
            if held.first >= index:
                break
            position += HEADER_BYTES + _FRAME.unpack_from(content, position)[1]
        return position

    def _names(self) -> list[str]:
        return [name for name in self._disk.names("log") if name.endswith(".store")]

    def _read_again(self, changed: set[str]) -> None:
        names = self._names()
        while len(names) > 0 and self._segments and self._segments[0].name < names[0]:
            # The oldest segment expired: its frames are remembered, and were not truncated.
            gone = self._segments.pop(0)
            self.base_place = gone.first_place + gone.count
        keep = 0
        while (
            keep < min(len(self._segments), len(names))
            and self._segments[keep].name == names[keep]
            and names[keep] not in changed
        ):
            keep += 1
        first_place = self._segments[keep].first_place if keep < len(self._segments) else len(self.frames)
        before = self.frames[first_place:]
        del self._segments[keep:], self.frames[first_place:], self.ends[first_place:]
        if not self._segments and names and int(names[0].removesuffix(".store")) != self.end:
            self._begin()
            first_place = min(first_place, self.base_place)
        for name in names[keep:]:
            self._add(name)
        after = self.frames[first_place:]
        same = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        if same < len(before):
            self._note_truncated(first_place + same, before[same])

    def _begin(self) -> None:
        """A log that does not begin at 0 begins after frames that are known from elsewhere."""
        names = self._names()
        self.frames, self.ends, self.base_place = [], [], 0
        first = int(names[0].removesuffix(".store")) if names else 0
        if first:
            header = self._disk.content(f"log/{names[0]}")[:STORE_HEADER_BYTES]
            self.frames = self.below(first, int.from_bytes(header[32:36], "little"))
            self.ends = [held.end for held in self.frames]
            self.base_place = len(self.frames)

    def _note_truncated(self, place: int, held: Held) -> None:
        if self.truncated is None or place < self.truncated[0]:
            self.truncated = place, held

    def _add(self, name: str) -> None:
        if int(name.removesuffix(".store")) != self.end:
            return  # After a gap, left by an interrupted truncation: the next start removes it.
        segment = _Segment(name, len(self.frames))
        self._segments.append(segment)
        self._read_on(segment)

    def _read_on(self, segment: _Segment) -> None:
        content = self._disk.content(f"log/{segment.name}")
        position = segment.end
        while len(content) - position >= HEADER_BYTES:
            crc, length, first, epoch, _, count, chained, _, _, kind, payload = _FRAME.unpack_from(content, position)
            body = position + HEADER_BYTES
            before = self.frames[-1].crc32c if self.frames else 0
            if not count or first != self.end or chained != before or body + length > len(content):
                break
            if crc32c(content[position + 4 : body]) != crc or crc32c(content[body : body + length]) != payload:
                break
            self.frames.append(Held(first, first + count, epoch, crc))
            if kind == SYSTEM:
                self._note_members(self.frames[-1], content[body : body + length])
            self.ends.append(first + count)
            segment.count += 1
            position = body + length
        segment.end = position

    def _note_members(self, held: Held, payload: bytes) -> None:
        value: Any = unpack(payload)
        if value["type"] in ("genesis", "members", "history"):
            rows = value["members"]
            voters = frozenset((node_id, disk_id) for node_id, disk_id, _, role in rows if role == "voter")
            named = frozenset((node_id, disk_id) for node_id, disk_id, _, _ in rows)
            removed = frozenset((node_id, disk_id) for node_id, disk_id, _ in value.get("removed", []))
            self.named[held.crc32c] = Named(*held, voters, named, removed)

    def members_below(self, index: int) -> Named:
        """The last record of members that ends at or below `index`."""
        for named in sorted(self.named.values(), reverse=True):
            place = self.place_of_end(named.end)
            if named.end <= index and place is not None and self.frames[place].crc32c == named.crc32c:
                return named
        raise AssertionError(f"no genesis below {index}")


def _nothing(first: int, crc: int) -> list[Held]:
    raise AssertionError(f"a log that begins at {first} after {crc:#x}")


def _slots(content: bytes, version: int) -> Sequence[bytes]:
    slots = [content[position : position + SLOT_BYTES] for position in SLOTS]
    return [
        slot
        for slot in slots
        if len(slot) == SLOT_BYTES
        and int.from_bytes(slot[:4], "little") == crc32c(slot[4:])
        and int.from_bytes(slot[4:8], "little") == version
    ]


def promise_in(content: bytes) -> HeldPromise | None:
    """The promise in a file: the valid slot with the highest epoch, the first of two equal ones."""
    found: HeldPromise | None = None
    for slot in _slots(content, 1):
        _, _, epoch, candidate, incarnation, _ = _PROMISE.unpack(slot)
        if found is None or epoch > found.epoch:
            found = HeldPromise(epoch, candidate.rstrip(b"\0").decode(), incarnation)
    return found


def marks_in(content: bytes) -> list[HeldMark]:
    """The valid marks in a file."""
    unpacked = (_MARK.unpack(slot) for slot in _slots(content, 1))
    return [
        HeldMark(generation, durable, commit, base == DISCARDING_BASE)
        for _, _, generation, durable, base, _, _, commit, _, _ in unpacked
    ]


def mark_in(content: bytes) -> HeldMark | None:
    """The mark in a file: the valid one with the highest generation."""
    return max(marks_in(content), key=lambda mark: mark.generation, default=None)
