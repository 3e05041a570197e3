"""One segment of a data_dir, verified frame by frame; corruption is located, down to the bit if one bit was flipped.

The walk continues after a frame whose payload is corrupt, and after a header with one flipped bit: then the bit is
known, and so is the frame's length. After other corruption the start of the next frame is unknown, and the rest of the
segment cannot be read.

A crc locates a flipped bit because it is linear: the crc of the bytes as read, xored with the crc as written, depends
only on which bits were flipped, and differs for every single bit of a message. So stepping from the message's last bit
to its first finds the place. More than one flipped bit is mistaken for one elsewhere with a probability of
bits / 2^32; otherwise it is recognized as more than one.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from crc32c import crc32c

from quire.log import HEADER_BYTES, FrameCorrupt, FrameHeader, FrameInvalid, ReadOnlyDirectory
from quire.log.frames import decode_header
from quire.log.options import STORE_HEADER_BYTES
from quire.log.segment.index import StoredIndex
from quire.log.segment.store import SEGMENTS_FOLDER, index_name
from quire.log.segment.survey import walk_store

from ..origin.segment import SegmentFile
from .walk import Finding, WalkedPiece

POLYNOMIAL = 0x82F63B78
"""Of crc32c (Castagnoli), bits reversed."""
MAX_BYTES = 1 << 20
"""The longest message to search for a flipped bit: that takes some seconds."""
CRC_BYTES = 4
PAYLOAD_CRC_OFFSET = 60


class FlippedBit(NamedTuple):
    """A bit of a message: the byte from the message's start, the bit from the byte's lowest. Byte -1: of the crc."""

    byte: int
    bit: int


def flipped_bit(message: bytes | memoryview, written_crc: int) -> FlippedBit | None:
    """The one bit that makes the crc fail; None if there is no such bit, or the message exceeds MAX_BYTES."""
    difference = crc32c(message) ^ written_crc
    if difference == 0 or len(message) > MAX_BYTES:
        return None
    if difference.bit_count() == 1:
        return FlippedBit(-1, difference.bit_length() - 1)
    register = POLYNOMIAL  # What the last byte's highest bit leaves in the crc.
    for byte in range(len(message) - 1, -1, -1):
        for bit in range(7, -1, -1):
            if register == difference:
                return FlippedBit(byte, bit)
            register = (register >> 1) ^ (POLYNOMIAL if register & 1 else 0)
    return None


def scrub_segment(path: str, base: int, to_index: int, ends: tuple[int, ...] = ()) -> WalkedPiece:
    """Verify the frames of a segment up to the boundary `to_index`, and its index file. `ends`: see `WalkedPiece`.

    Raises:
        FileNotFoundError: the segment has expired.
        UnknownVersion: a later version of the program wrote it.
    """
    files = ReadOnlyDirectory(path).child(SEGMENTS_FOLDER)
    with closing(SegmentFile(files, base)) as segment:
        places, fault = _index_places(files, base)
        walk = _SegmentWalk(segment, to_index, places, WalkedPiece(path, ends))
        walk.run()
        if not walk.walked.findings:
            left = [position for position, (_, relative) in walk.named.items() if base + relative < to_index]
            if left:
                fault = f"{len(left)} of its {len(places)} entries name no frame, the first is for byte {left[0]}"
            if fault is not None:
                file = f"{SEGMENTS_FOLDER}/{index_name(base)}"
                walk.walked.findings.append(Finding(path, "index", fault, file, base))
        return walk.walked


class _SegmentWalk:
    """Goes from frame to frame, past corruption where possible."""

    def __init__(
        self, segment: SegmentFile, to_index: int, places: list[tuple[int, int, int]], walked: WalkedPiece
    ) -> None:
        """`places`: from `_index_places`."""
        self.walked = walked
        self.segment = segment
        self.named = {position: (crc, relative) for crc, relative, position in places}
        """The entries of the index file whose frames have not been met yet."""
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
        while self._index < self._to_index and self._walk_to_corruption():
            pass
        self.walked.is_cut = self._index < self._to_index

    @property
    def _index(self) -> int:
        return self.segment.base if self.walked.tail is None else self.walked.tail.index

    def _walk_to_corruption(self) -> bool:
        """Walk to the end or to corruption; return whether the walk can continue after it."""
        store = self.segment.store
        try:
            for header, _ in walk_store(store, self._position, store.size, self._file):
                self._take(header)
                if self._index >= self._to_index:
                    return False
        except FrameInvalid as error:
            return self._pass_corruption(error.reason)
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

    def _pass_corruption(self, reason: str) -> bool:
        raw = self.segment.store.read_at(self._position, HEADER_BYTES)
        try:
            header = decode_header(raw)
        except FrameInvalid:
            return self._pass_header(raw, reason)
        if self._position + header.size > self.segment.store.size:
            self._find(self._position, reason, header.index, self._to_index)
            return False
        # A payload too long to search is reported at the frame's position.
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

    def _pass_header(self, raw: bytes, reason: str) -> bool:
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
            self._find(self._position, "the payload's crc32c fails as well", header.index, header.next_index)
        self._take(header)
        return True

    def _find_bit(self, part: str, bit: FlippedBit, offset: int, crc_offset: int, header: FrameHeader) -> None:
        """Report a flipped bit, either of what the crc covers, which starts at `offset` of the frame, or of the crc."""
        byte = offset + bit.byte if bit.byte >= 0 else crc_offset + bit.bit // 8
        place = self._position + byte
        reason = f"bit {bit.bit % 8} of this byte was flipped ({part} of the frame at byte {self._position})"
        self._find(place, reason, header.index, header.next_index)

    def _find(self, position: int, reason: str, from_index: int, to_index: int) -> None:
        base, node = self.segment.base, self.walked.node
        found = Finding(node, "corrupt", reason, self._file, base, position, from_index, to_index)
        self.walked.findings.append(found)


def _index_places(files: ReadOnlyDirectory, base: int) -> tuple[list[tuple[int, int, int]], str | None]:
    """(crc32c, relative index, position) of each entry of the index file, and what is wrong with the file.

    The write segment has no index file.
    """
    name = index_name(base)
    try:
        storage = files.open(name)
    except FileNotFoundError:
        return [], None
    with closing(StoredIndex(storage)) as stored:
        if not stored.marker_fits(base):
            return [], "it is not this segment's index, or of another version"
        return stored.load().places(), None
