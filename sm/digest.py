"""The digest: a hash chain over what was applied and what it answered, equal on equal replicas.

    digest' = blake2b-16( digest 16 | index u64 | the frame's crc32c u32 | msgpack([results, refused]) )

little-endian, index that of the frame's first record, the crc32c that of the frame header (which covers the
payload's). 16 zero bytes at first; system frames leave it as it is.
"""

from hashlib import blake2b
from struct import Struct

DIGEST_BYTES = 16
EMPTY_DIGEST = bytes(DIGEST_BYTES)

_PREFIX = Struct(f"<{DIGEST_BYTES}sQI")


def next_digest(digest: bytes, index: int, crc32c: int, packed_reply: bytes) -> bytes:
    """The digest after the frame at `index`; `packed_reply` is its msgpack([results, refused])."""
    return blake2b(_PREFIX.pack(digest, index, crc32c) + packed_reply, digest_size=DIGEST_BYTES).digest()
