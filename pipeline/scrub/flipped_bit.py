"""Which bit was flipped, told by a crc32c that fails: of one bit in a message, the crc's difference is its place.

A crc is linear: the crc of the bytes that are there, xored with the one that was written, depends on what was flipped
alone, and differs for every single bit of a message. So stepping from its last bit to its first finds the place. (More
than one bit flipped is taken for one elsewhere with a chance of bits / 2^32, and otherwise known as more.)
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

POLYNOMIAL = 0x82F63B78
"""Of crc32c (Castagnoli), bits reversed."""
MAX_BYTES = 1 << 20
"""Of a message: some seconds of stepping."""


class FlippedBit(NamedTuple):
    """A bit in a message, counted from its first byte and from a byte's lowest bit; byte -1: one of the crc itself."""

    byte: int
    bit: int


def flipped_bit(message: bytes | memoryview, written_crc: int) -> FlippedBit | None:
    """The one bit that makes the crc fail; None if it is not one, or the message is above MAX_BYTES."""
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
