"""A frame boundary as an applier knows it: where it is in the log, and the facts derived from the log below it.

The digest is a hash chain over the applied frames and their replies, equal on equal replicas:

    digest' = blake2b-16( digest 16 | index u64 | crc32c u32 | msgpack([results, refused]) )      little-endian

`index` is the index of the frame's first record. `crc32c` is the frame header's own field, which covers the payload
and, through `prev_crc32c`, all earlier frames. The digest starts as 16 zero bytes; system frames do not change it.
"""

from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from quire.log import Tail

DIGEST_BYTES = 16
EMPTY_DIGEST = bytes(DIGEST_BYTES)
MAX_EPOCHS = 10_000

_PREFIX = Struct(f"<{DIGEST_BYTES}sQI")


class Boundary(NamedTuple):
    """The end of an applied frame, with the members, the epochs and the digest of the log below it.

    `members` are the rows [node_id, disk_id, address, role] of the last `genesis` or `members` record below, which is
    at `members_index`. `epochs` are the newest MAX_EPOCHS pairs (epoch, index of its first record). `features` are the
    names of all features in use, ascending.
    """

    tail: Tail = Tail(0, 0, 0, 0)
    members_index: int | None = None
    members: list[list[Any]] = []  # noqa: RUF012  # A tuple's default is never changed.
    epochs: tuple[tuple[int, int], ...] = ()
    digest: bytes = EMPTY_DIGEST
    features: tuple[str, ...] = ()


LOG_START = Boundary()
"""The boundary before the log's first frame."""


def next_digest(digest: bytes, index: int, crc32c: int, packed_reply: bytes) -> bytes:
    """The digest after the frame at `index`; `packed_reply` is its msgpack([results, refused])."""
    chain = blake2b(_PREFIX.pack(digest, index, crc32c), digest_size=DIGEST_BYTES)
    chain.update(packed_reply)  # Not joined before: it may have megabytes.
    return chain.digest()
