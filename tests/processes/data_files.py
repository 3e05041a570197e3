"""Reads and damages the files of a data_dir, by the format in `log/DESIGN.md` and not with the program's own code."""

from __future__ import annotations

import struct
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

STORE_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 64
MARK_SLOTS = (0, 4096)
SLOT = struct.Struct("<II QQQQQQIB3x")


class Mark(NamedTuple):
    """The winning slot of a `mark` file."""

    generation: int
    durable_index: int
    segment_base: int
    position: int
    epoch: int
    commit_index: int
    crc32c: int
    clean: int


def read_mark(data_dir: Path) -> Mark:
    """The mark of a data_dir that nobody uses now."""
    raw = (data_dir / "mark").read_bytes()
    found: list[Mark] = []
    for position in MARK_SLOTS:
        slot = raw[position : position + SLOT.size]
        if len(slot) == SLOT.size and struct.unpack_from("<I", slot)[0] == crc32c(slot[4:]):
            version, *numbers = SLOT.unpack(slot)[1:]
            assert version == 1
            found.append(Mark(*numbers))
    assert found, "no slot of the mark is valid"
    return max(found)


class Promise(NamedTuple):
    """What a `promise` file says that its node promised."""

    epoch: int
    candidate: str


def promise_of(data_dir: Path) -> Promise:
    """The higher valid slot of a data_dir's promise, which its node may be writing now."""
    raw = (data_dir / "promise").read_bytes()
    found = [Promise(0, "")]
    for position in MARK_SLOTS:
        slot = raw[position : position + 64]
        if len(slot) == 64 and struct.unpack_from("<I", slot)[0] == crc32c(slot[4:]):
            epoch, candidate = struct.unpack_from("<Q24s", slot, 8)
            found.append(Promise(epoch, candidate.rstrip(b"\0").decode()))
    return max(found)


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with the digest of its content; {} if there is none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def stores(data_dir: Path) -> list[Path]:
    """The store files, the write segment last."""
    return sorted((data_dir / "log").glob("*.store"))


class FrameAt(NamedTuple):
    """Where a frame stands in its store file: [position, end)."""

    position: int
    end: int


def frames_in(store: Path) -> list[FrameAt]:
    """Every frame of a store file, up to what is preallocated."""
    raw = store.read_bytes()
    found: list[FrameAt] = []
    position = STORE_HEADER_BYTES
    while position + FRAME_HEADER_BYTES <= len(raw):
        length, _, _, _, count = struct.unpack_from("<IQQQI", raw, position + 4)
        if not count:
            break
        found.append(FrameAt(position, position + FRAME_HEADER_BYTES + length))
        position = found[-1].end
    return found


def flip(file: Path, position: int) -> None:
    """Change one bit of the byte at `position`."""
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ 0x10]))
