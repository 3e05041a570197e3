"""One segment of a data_dir, every frame of it looked at; rot gets its place, down to the bit where it is one.

The walk goes on behind a frame whose payload is rotten, and behind a header in which one bit is: the bit is known then,
and so is the frame's length. Behind other rot nobody knows where the next frame begins, and the rest of the segment
cannot be read.
"""

from __future__ import annotations

from contextlib import closing

from crc32c import crc32c

from quire.log import HEADER_BYTES, FrameCorrupt, FrameHeader, FrameInvalid, ReadOnlyDirectory
from quire.log.frames import decode_header
from quire.log.options import STORE_HEADER_BYTES
from quire.log.segment.index import StoredIndex
from quire.log.segment.store import SEGMENTS_FOLDER, index_name
from quire.log.segment.survey import walk_store

from ..origin.segment import SegmentFile
from .finding import Finding
from .flipped_bit import MAX_BYTES, FlippedBit, flipped_bit
from .walked import Walked

CRC_BYTES = 4
PAYLOAD_CRC_OFFSET = 60


def scrub_segment(path: str, base: int, to_index: int, ends: tuple[int, ...] = ()) -> Walked:
    """Look at the frames of a segment up to the boundary `to_index`, and at its index file. `ends`: as `Walked` says.

    Raises:
        FileNotFoundError: it has expired.
        UnknownVersion: a later program wrote it.
    """
    files = ReadOnlyDirectory(path).child(SEGMENTS_FOLDER)
    with closing(SegmentFile(files, base)) as segment:
        places, fault = _index_places(files, base)
        walk = _SegmentWalk(segment, to_index, places, Walked(path, ends))
        walk.run()
        if not walk.walked.findings:
            left = [position for position, (_, relative) in walk.named.items() if base + relative < to_index]
            if left:
                fault = f"{len(left)} of its {len(places)} places name no frame, first that at byte {left[0]}"
            if fault is not None:
                file = f"{SEGMENTS_FOLDER}/{index_name(base)}"
                walk.walked.findings.append(Finding(path, "index", fault, file, base))
        return walk.walked


class _SegmentWalk:
    """Goes from frame to frame, over rot where it can."""

    def __init__(self, segment: SegmentFile, to_index: int, places: list[tuple[int, int, int]], walked: Walked) -> None:
        """`places`: as `_index_places` gives them."""
        self.walked = walked
        self.segment = segment
        self.named = {position: (crc, relative) for crc, relative, position in places}
        """What the index file names and was not met yet."""
        self._to_index = to_index
        self._file = f"{SEGMENTS_FOLDER}/{segment.file}"
        self._position = STORE_HEADER_BYTES

    def run(self) -> None:
        """Walk to the end."""
        try:
            origin = self.segment.header().origin
        except FrameCorrupt as error:
            self._find(0, f"the store's header: {error.reason}", self.segment.base, self._to_index)
            origin = None
        self.walked.before = self.walked.tail = origin
        while self._index < self._to_index and self._walk_to_rot():
            pass
        self.walked.is_cut = self._index < self._to_index

    @property
    def _index(self) -> int:
        return self.segment.base if self.walked.tail is None else self.walked.tail.index

    def _walk_to_rot(self) -> bool:
        """Walk on to the end or to rot; whether there is a way on behind that."""
        store = self.segment.store
        try:
            for header, _ in walk_store(store, self._position, store.size, self._file):
                self._take(header)
                if self._index >= self._to_index:
                    return False
        except FrameInvalid as error:
            return self._over_rot(error.reason)
        self._find(self._position, "the store ends here", self._index, self._to_index)
        return False

    def _take(self, header: FrameHeader) -> None:
        broken = self.walked.add(header)
        if broken is not None:
            finding = Finding(
                self.walked.node, "chain", broken, self._file, self.segment.base, self._position,
                header.index, header.next_index,
            )  # fmt: skip
            self.walked.findings.append(finding)
        if self.named.get(self._position) == (header.crc32c, header.index - self.segment.base):
            del self.named[self._position]
        self._position += header.size

    def _over_rot(self, reason: str) -> bool:
        raw = self.segment.store.read_at(self._position, HEADER_BYTES)
        try:
            header = decode_header(raw)
        except FrameInvalid:
            return self._over_header(raw, reason)
        if self._position + header.size > self.segment.store.size:
            self._find(self._position, reason, header.index, self._to_index)
            return False
        # A payload too long to be stepped through has the frame's place.
        bit = None
        if header.length <= MAX_BYTES:
            payload = self.segment.store.read_at(self._position + HEADER_BYTES, header.length)
            bit = flipped_bit(payload, header.payload_crc32c)
        if bit is None:
            self._find(self._position, reason, header.index, header.next_index)
        else:
            self._find_bit("payload", bit, HEADER_BYTES, PAYLOAD_CRC_OFFSET, header)
        self._take(header)
        return True

    def _over_header(self, raw: bytes, reason: str) -> bool:
        bit = None
        if len(raw) == HEADER_BYTES:
            bit = flipped_bit(raw[CRC_BYTES:], int.from_bytes(raw[:CRC_BYTES], "little"))
        if bit is None:
            self._find(self._position, reason, self._index, self._to_index)
            return False
        repaired = bytearray(raw)
        place = CRC_BYTES + bit.byte if bit.byte >= 0 else bit.bit // 8
        repaired[place] ^= 1 << bit.bit % 8
        header = decode_header(repaired)
        self._find_bit("header", bit, CRC_BYTES, 0, header)
        payload = self.segment.store.read_at(self._position + HEADER_BYTES, header.length)
        if crc32c(payload) != header.payload_crc32c:
            self._find(self._position, "the payload's crc32c differs, too", header.index, header.next_index)
        self._take(header)
        return True

    def _find_bit(self, part: str, bit: FlippedBit, offset: int, crc_offset: int, header: FrameHeader) -> None:
        """A flipped bit: in what the crc covers, which begins at `offset` of the frame, or in the crc itself."""
        byte = offset + bit.byte if bit.byte >= 0 else crc_offset + bit.bit // 8
        place = self._position + byte
        reason = f"bit {bit.bit % 8} of this byte was flipped ({part} of the frame at byte {self._position})"
        self._find(place, reason, header.index, header.next_index)

    def _find(self, position: int, reason: str, from_index: int, to_index: int) -> None:
        base, node = self.segment.base, self.walked.node
        found = Finding(node, "corrupt", reason, self._file, base, position, from_index, to_index)
        self.walked.findings.append(found)


def _index_places(files: ReadOnlyDirectory, base: int) -> tuple[list[tuple[int, int, int]], str | None]:
    """(crc32c, relative index, position) of the frames that the index file names, and what is wrong with the file.

    The write segment has none.
    """
    name = index_name(base)
    try:
        storage = files.open(name)
    except FileNotFoundError:
        return [], None
    with closing(StoredIndex(storage)) as stored:
        if not stored.marker_fits(base, name):
            return [], "it is not this segment's index"
        return stored.load().places(), None
