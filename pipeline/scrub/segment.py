"""One segment of a data_dir, verified frame by frame; corruption is located, down to the bit if one bit was flipped.

The walk continues after a frame whose payload is corrupt, and after a header with one flipped bit: then the bit is
known, and so is the frame's length. After other corruption the start of the next frame is unknown, and the rest of the
segment cannot be read.

A crc locates a flipped bit because it is linear: the crc of the bytes as read, xored with the crc as written, depends
only on which bits were flipped, and differs for every single bit of a message. So stepping from the message's last bit
to its first finds the position. More than one flipped bit is mistaken for one elsewhere with a probability of
bits / 2^32; otherwise it is recognized as more than one.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from crc32c import crc32c

from quire.log import (
    HEADER_BYTES,
    SEGMENTS_FOLDER,
    STORE_HEADER_BYTES,
    FrameCorrupt,
    FrameHeader,
    FrameInvalid,
    ReadOnlyDirectory,
    SegmentFile,
    decode_header,
)

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
    with closing(SegmentFile(ReadOnlyDirectory(path).child(SEGMENTS_FOLDER), base)) as segment:
        walk = _SegmentWalk(segment, to_index, WalkedPiece(path, ends))
        walk.run()
        return walk.walked


class _SegmentWalk:
    """Goes from frame to frame, past corruption where possible."""

    def __init__(self, segment: SegmentFile, to_index: int, walked: WalkedPiece) -> None:
        self.walked = walked
        self.segment = segment
        self._index_check = segment.index_check()
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
        if self._index_check is not None and not self.walked.findings:
            fault = self._index_check.fault(self._to_index)
            if fault is not None:
                file = f"{SEGMENTS_FOLDER}/{self.segment.index_file}"
                self.walked.findings.append(Finding(self.walked.node, "index", fault, file, self.segment.base))

    @property
    def _index(self) -> int:
        return self.segment.base if self.walked.tail is None else self.walked.tail.index

    def _walk_to_corruption(self) -> bool:
        """Walk to the end or to corruption; return whether the walk can continue after it."""
        try:
            for header, _ in self.segment.frames(self._position):
                self._take(header)
                if self._index >= self._to_index:
                    return False
        except FrameCorrupt as error:
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
        if self._index_check is not None:
            self._index_check.take(self._position, header)
        self._position += header.size

    def _pass_corruption(self, reason: str) -> bool:
        raw = self.segment.store.read_at(self._position, HEADER_BYTES)
        try:
            header = decode_header(raw)
        except FrameInvalid:
            return self._pass_header(raw, reason)
        if self._position + header.size > self.segment.end:
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
