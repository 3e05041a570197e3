"""The `kv` machine's snapshot: blocks of a few pairs each, and the number of pairs at the end.

    block:  length u32 | msgpack [key, value, key, value, ...]         1 to BLOCK_PAIRS pairs
    end:    0 u32      | number of pairs u64                           little-endian

Pairs are in the order in which their keys were added. That order follows from the log and survives a restore, so equal
logs give equal bytes. The snapshot is written chunk by chunk without a copy of the state; chunk boundaries have no
meaning, so a reader takes the bytes in pieces of any size.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from struct import Struct
from typing import Any

from quire.log import PayloadInvalid, pack
from quire.log.packing import unpack

from ..errors import SnapshotInvalid
from ..machine import Refused

BLOCK_PAIRS = 64
CHUNK_BYTES = 256 << 10  # A chunk ends with the block that reaches this size.
BLOCK_BYTES_LIMIT = 8 << 20  # Above 64 pairs of the longest keys and values; bounds a reader's memory.

_LENGTH = Struct("<I")
_END = Struct("<IQ")


def write_pairs(values: dict[str, object]) -> Iterator[bytes]:
    """The snapshot of `values` in chunks of bounded size; `values` must not change meanwhile."""
    pairs = iter(values.items())
    parts: list[bytes] = []
    size = 0
    while block := list(chain.from_iterable(islice(pairs, BLOCK_PAIRS))):
        payload = pack(block)
        parts += (_LENGTH.pack(len(payload)), payload)
        size += _LENGTH.size + len(payload)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(_END.pack(0, len(values)))
    yield b"".join(parts)


def read_pairs(chunks: Iterable[bytes], check: Callable[[object, object], None], pairs_limit: int) -> dict[str, object]:
    """The pairs of a snapshot, each passed to `check`.

    Raises:
        SnapshotInvalid: it is truncated, or no kv machine can have written it.
    """
    reader = _Reader(chunks)
    values: dict[str, object] = {}
    count = 0
    while length := _LENGTH.unpack(reader.take(_LENGTH.size))[0]:
        if length > BLOCK_BYTES_LIMIT:
            raise _invalid(f"a block of {length} bytes, above the limit of {BLOCK_BYTES_LIMIT}")
        pairs = _pairs_of(reader.take(length))
        keys = pairs[::2]
        for key, value in zip(keys, pairs[1::2], strict=True):
            try:
                check(key, value)
            except Refused as refusal:
                raise _invalid(str(refusal)) from refusal
            values[key] = value
        count += len(keys)
        if len(values) != count:
            raise _invalid("a key is in it twice")
        if count > pairs_limit:
            raise _invalid(f"more than {pairs_limit} keys")
    [stated] = Struct("<Q").unpack(reader.take(_END.size - _LENGTH.size))
    if stated != count:
        raise _invalid(f"it states {stated} keys and holds {count}")
    if reader.has_more():
        raise _invalid("bytes follow its end")
    return values


def _pairs_of(payload: bytes) -> list[Any]:
    try:
        pairs = unpack(payload, ext=True)
    except PayloadInvalid as error:
        raise _invalid(f"a block {error.reason}") from error
    if not isinstance(pairs, list) or not pairs or len(pairs) % 2 or len(pairs) > 2 * BLOCK_PAIRS:
        raise _invalid(f"a block is not an array of 1 to {BLOCK_PAIRS} pairs")
    return pairs


class _Reader:
    """Reads exact numbers of bytes from chunks of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""
        self._taken = 0  # Of the chunk.

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises SnapshotInvalid."""
        start, self._taken = self._taken, self._taken + size
        if self._taken > len(self._chunk):
            parts, have = [self._chunk[start:]], len(self._chunk) - start
            while have < size:
                chunk = next(self._chunks, None)
                if chunk is None:
                    raise _invalid(f"it ends {size - have} bytes early")
                parts.append(chunk)
                have += len(chunk)
            self._chunk, start, self._taken = b"".join(parts), 0, size
        return self._chunk[start : self._taken]

    def has_more(self) -> bool:
        """Whether any byte is left."""
        return self._taken < len(self._chunk) or any(self._chunks)


def _invalid(reason: str) -> SnapshotInvalid:
    return SnapshotInvalid(machine="kv", reason=reason)
