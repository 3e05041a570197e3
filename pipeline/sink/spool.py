"""The spool: the commands of one partition, which a task has checked and made durable for the driver to send.

    0 4 "QSPL" | 4 1 version=1 | 5 3 zero                                                       (little-endian)
    block:  0 4 crc32c of 4.. and the previous crc (first: 0) | 4 4 count | 8 4 length | msgpack of count commands

The driver sends one block at a time. The number of commands, the size and the last crc are in the task's message and
then in the batch's plan, so any change, omission or addition is detected.

The digest of a spool tells whether a batch that comes again has the same commands. It is a sum of the commands'
digests, so it is the same however a rerun orders and divides them. It is good for accidents: a checkpoint that went
back, a query that is not deterministic. It is no good against somebody who chooses commands so that two sums are equal,
and it cannot tell equal commands of different records apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from quire.cluster.values import CONTAINERS_LIMIT, has_more_containers
from quire.log import Directory, Storage, pack
from quire.log.packing import ExtType, array_head, unpack_trusted

from .errors import SpoolDamaged

BLOCK_COMMANDS = 1000
"""The maximum number of commands in a block, and so in a frame of the log."""
BLOCK_BYTES = 256 << 10
"""The size at which a block is full. A single command may be larger."""
COMMAND_CONTAINERS = CONTAINERS_LIMIT - 2
"""The maximum number of lists, maps and ext types in a command: a message that sends it alone has two more."""

_HEAD = b"QSPL\x01\x00\x00\x00"
_CRC = struct.Struct("<I")
_SHAPE = struct.Struct("<II")
_BLOCK_HEAD = _CRC.size + _SHAPE.size
_DIGEST = blake2b(digest_size=16)
"""Copied for each command, which takes half as long as a new one."""


class Spool(NamedTuple):
    """A file with the commands of one partition."""

    name: str
    partition: int
    commands: int
    size: int
    crc32c: int
    digest: str | None = None
    """Of its commands, in any order; None: an older program wrote the spool."""


def digest_of(spools: Sequence[Spool]) -> str | None:
    """The digest of all commands of these spools, the same for any order and division; None: of one it is unknown."""
    known = [spool.digest for spool in spools if spool.digest is not None]
    return _sum_of(map(bytes.fromhex, known)).hex() if len(known) == len(spools) else None


def _sum_of(digests: Iterable[bytes]) -> bytes:
    """The sum of 16-byte digests: each half modulo 2^64."""
    halves = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    return bytes(halves.sum(axis=0, dtype="<u8"))


class SpoolWriter:
    """Writes a spool; `finished` makes it durable. The file is created with the first block."""

    def __init__(self, directory: Directory, name: str, partition: int) -> None:
        self._directory = directory
        self._name = name
        self._partition = partition
        self._storage: Storage | None = None
        self._packed: list[bytes] = []
        self._packed_bytes = 0
        self._commands = 0
        self._size = 0
        self._crc = 0
        self._digest = _sum_of([])

    def add(self, packed: bytes) -> None:
        """Append a command, packed as msgpack."""
        if len(self._packed) == BLOCK_COMMANDS or (self._packed and self._packed_bytes + len(packed) > BLOCK_BYTES):
            self._write_block()
        self._packed.append(packed)
        self._packed_bytes += len(packed)

    def finished(self) -> Spool | None:
        """Make the spool durable and return it; None if there was no command."""
        if self._packed:
            self._write_block()
        if self._storage is None:
            return None
        self._storage.sync()
        self.close()
        self._directory.sync()
        return Spool(self._name, self._partition, self._commands, self._size, self._crc, self._digest.hex())

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._storage is not None:
            self._storage.close()

    def _write_block(self) -> None:
        if self._storage is None:
            self._storage = self._directory.create(self._name)
            self._append(self._storage, _HEAD)
        payload = b"".join(self._packed)
        shape = _SHAPE.pack(len(self._packed), len(payload))
        self._crc = crc32c(payload, crc32c(shape, self._crc))
        self._append(self._storage, _CRC.pack(self._crc) + shape + payload)
        digests = [self._digest]
        for packed in self._packed:
            digest = _DIGEST.copy()
            digest.update(packed)
            digests.append(digest.digest())
        self._digest = _sum_of(digests)
        self._commands += len(self._packed)
        self._packed, self._packed_bytes = [], 0

    def _append(self, storage: Storage, data: bytes) -> None:
        storage.write_at(self._size, data)
        self._size += len(data)


def check_spool(directory: Directory, spool: Spool) -> None:
    """Read and verify the whole spool. Raises SpoolDamaged."""
    for _ in _blocks(directory, spool):
        pass


def commands_of(directory: Directory, spools: Sequence[Spool], skip: int = 0) -> Iterator[list[object]]:
    """The commands of all spools, in order, without the first `skip` commands: as many at a time as a node decodes.

    That is a block, or a part of one whose commands have more lists and maps together than a message may.

    Raises:
        SpoolDamaged: with path and position.
    """
    for spool in spools:
        if skip >= spool.commands:
            skip -= spool.commands
            continue
        for count, payload in _blocks(directory, spool):
            if skip >= count:
                skip -= count
                continue
            packed = array_head(count) + payload
            commands = unpack_trusted(packed, ExtType)
            if not isinstance(commands, list):
                raise TypeError(f"an array was unpacked as {type(commands).__name__}")
            yield from _decodable(commands[skip:], packed)
            skip = 0


def _decodable(commands: list[object], packed: bytes) -> Iterator[list[object]]:
    """The commands, halved until a node decodes each part; `packed` is the array of them, or of more."""
    if len(commands) == 1 or not has_more_containers(packed, COMMAND_CONTAINERS + 1):
        yield commands
        return
    middle = len(commands) // 2
    for part in (commands[:middle], commands[middle:]):
        yield from _decodable(part, pack(part))


def _blocks(directory: Directory, spool: Spool) -> Iterator[tuple[int, bytes]]:
    path = f"{directory.path}/{spool.name}"
    try:
        storage = directory.open(spool.name)
    except FileNotFoundError:
        raise SpoolDamaged(path, "a spool of the batch is missing") from None
    with closing(storage):
        if storage.size != spool.size:
            raise SpoolDamaged(path, f"has {storage.size} bytes, but {spool.size} were written")
        if storage.read_at(0, len(_HEAD)) != _HEAD:
            raise SpoolDamaged(path, "does not start with the header of a spool of this version")
        position, crc, commands = len(_HEAD), 0, 0
        while position < spool.size:
            head = storage.read_at(position, _BLOCK_HEAD)
            count, length = _SHAPE.unpack_from(head, _CRC.size) if len(head) == _BLOCK_HEAD else (0, 0)
            payload = storage.read_at(position + _BLOCK_HEAD, min(length, spool.size))
            crc = crc32c(payload, crc32c(head[_CRC.size :], crc))
            if len(payload) != length or not count or _CRC.pack(crc) != head[: _CRC.size]:
                raise SpoolDamaged(path, f"the block at position {position} fails its crc32c")
            yield count, payload
            position += _BLOCK_HEAD + length
            commands += count
        if (crc, commands) != (spool.crc32c, spool.commands):
            raise SpoolDamaged(path, "is not the spool in the batch's plan")
