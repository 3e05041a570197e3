"""Frames as a log would hold them, one after the other, for the tests of this folder."""

from collections.abc import Sequence
from typing import Any

from quire.log import (
    Frame,
    Kind,
    Run,
    Tail,
    encode_blob,
    encode_frame,
    encode_records,
    encode_runs,
    encode_system,
    walk_frames,
)
from quire.sm import EMPTY_DIGEST, LOG_START, Boundary

TIMESTAMP = 1_700_000_000_000_000


def boundary_at(index: int, digest: bytes = EMPTY_DIGEST) -> Boundary:
    """The boundary of an applier that continues at `index`."""
    return LOG_START._replace(tail=Tail(index, 1, TIMESTAMP, 0), digest=digest)


class Frames:
    """Makes the frames of a log that starts at `index`, chained by their crcs."""

    def __init__(self, index: int = 0, epoch: int = 1, prev_crc32c: int = 0) -> None:
        self.index = index
        self.epoch = epoch
        self.prev_crc32c = prev_crc32c
        self.timestamp = TIMESTAMP
        """Of the next frames, in microseconds."""

    def records(self, commands: Sequence[Any], session: int = 0, sequence: int = 0) -> Frame:
        payload = encode_records(commands)
        return self.payload(payload, len(commands), session=session, sequence=sequence)

    def system(self, record: dict[str, Any]) -> Frame:
        return self.payload(encode_system(record), 1, Kind.SYSTEM)

    def blob(self, value: bytes, session: int = 0, sequence: int = 0) -> Frame:
        return self.payload(encode_blob(value), 1, Kind.BLOB, session, sequence)

    def runs(self, runs: Sequence[Run], commands: Sequence[Any]) -> Frame:
        return self.payload(encode_runs(runs, commands), len(commands), Kind.RUNS)

    def payload(
        self, payload: bytes, count: int, kind: Kind = Kind.RECORDS, session: int = 0, sequence: int = 0
    ) -> Frame:
        raw = encode_frame(
            index=self.index,
            epoch=self.epoch,
            timestamp=self.timestamp,
            count=count,
            prev_crc32c=self.prev_crc32c,
            kind=kind,
            payload=payload,
            session=session,
            sequence=sequence,
        )
        [frame] = walk_frames(raw)
        self.index += count
        self.prev_crc32c = frame.header.crc32c
        return frame


def batches(commands: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """The commands cut into batches of `size`; the last one may be shorter."""
    return [commands[start : start + size] for start in range(0, len(commands), size)]
