"""Offsets: a stream's position, and the values of startingOffsets and endingOffsets.

A stream's offset is {"cluster": id in hex, "index": next index}. Spark keeps it as JSON text in the checkpoint and
compares the text, so it has one canonical form: keys sorted, no spaces.

The checkpoint does not hold where a query began: Spark asks for the initial offset again when it repeats the first
batch, perhaps days later, when the log or the cursor is elsewhere. So the initial offset has no index, the starting
place is looked up once, when the end of the first batch is planned, and that end carries it as "began".

A log may go back, as one does whose disks are restored from a copy, and grow again past the offset. So an offset also
carries the "crc32c" of the frame that holds the last record read: crcs chain the frames, so another history has
another one.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple, TypeGuard

from quire.sm import CURSOR_NAME_BYTES

from ..errors import OptionRefused, PipelineError

MAX_INDEX = 2**63 - 1
MAX_U32 = 2**32 - 1


class CursorPlace(NamedTuple):
    """Where a cursor of the cluster is when the read begins."""

    name: str


Place = int | Literal["earliest", "latest"]
StartingPlace = Place | CursorPlace
EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

_CLUSTER = re.compile("[0-9a-f]{32}")
_CURSOR = re.compile(rf"cursor:([A-Za-z0-9._:@~/-]{{1,{CURSOR_NAME_BYTES}}})")


class Offset(NamedTuple):
    """The next index to read in the log of a cluster; Spark's offset."""

    cluster: str
    index: int | None  # type: ignore[assignment]
    """None in the initial offset: the place that the options name."""
    began: int | None = None
    """The first index of the query, in the end of its first batch."""
    crc32c: int | None = None
    """Of the frame that holds the record before `index`; None if the stream has not read that record."""

    def to_document(self) -> dict[str, object]:
        """The offset as Spark's Python runner takes it, with keys in canonical order."""
        optional = {"began": self.began, "crc32c": self.crc32c}
        held = {name: value for name, value in optional.items() if value is not None}
        return dict(sorted({"cluster": self.cluster, "index": self.index, **held}.items()))

    def to_text(self) -> str:
        """The offset as canonical JSON text."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_document(cls, document: object) -> Offset:
        """The offset in a checkpoint's document.

        Raises:
            OffsetInvalid: the document is not an offset of this source.
        """
        match document:
            case {"cluster": str(cluster), "index": None, **rest}:
                offset = cls(cluster, None)
            case {"cluster": str(cluster), "index": int(index), **rest} if _is_index(index):
                began, crc = rest.pop("began", None), rest.pop("crc32c", None)
                if not (began is None or _is_index(began, index)) or not (crc is None or _is_index(crc, MAX_U32)):
                    raise OffsetInvalid(document)
                offset = cls(cluster, index, began, crc)
            case _:
                raise OffsetInvalid(document)
        if rest or not _CLUSTER.fullmatch(offset.cluster):
            raise OffsetInvalid(document)
        return offset


class OffsetInvalid(PipelineError):
    """A checkpoint holds an offset that is not of this source."""

    def __init__(self, document: object) -> None:
        super().__init__(f"the checkpoint holds {str(document)[:200]}, which is not an offset of a quire log")
        self.document = document


def parse_place(option: str, text: str) -> Place:
    """The value of startingOffsets or endingOffsets: earliest, latest, {"index": n} or n.

    Raises:
        OptionRefused: it is anything else.
    """
    if text.lower() == EARLIEST:
        return EARLIEST
    if text.lower() == LATEST:
        return LATEST
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"index": int(index), **rest} if _is_index(index) and not set(rest) - {"cluster"}:
            return index
        case int(index) if _is_index(index):
            return index
        case _:
            raise OptionRefused(option, f'must be earliest, latest or {{"index": n}}, not {text[:48]!r}')


def parse_starting_place(option: str, text: str) -> StartingPlace:
    """The value of startingOffsets: as `parse_place`, or cursor:NAME.

    Raises:
        OptionRefused: it is anything else.
    """
    if not text.startswith("cursor:"):
        return parse_place(option, text)
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise OptionRefused(option, f"{text[:48]!r} names no cursor; it is cursor:NAME, as in cursor:mail")
    return CursorPlace(match[1])


def _is_index(value: object, most: int = MAX_INDEX) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
