"""Offsets: where a stream stands, and what startingOffsets and endingOffsets say.

A stream's offset is {"cluster": id in hex, "index": next index}. Spark keeps it as JSON text in the checkpoint and
compares that text, so there is one way to write it: keys sorted, no spaces.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from ..errors import OptionRefused, PipelineError

MAX_INDEX = 2**63 - 1

Place = int | Literal["earliest", "latest"]
EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

_CLUSTER = re.compile("[0-9a-f]{32}")


class Offset(NamedTuple):
    """The index that comes next, in the log of a cluster; what Spark calls an offset."""

    cluster: str
    index: int  # type: ignore[assignment]

    def to_document(self) -> dict[str, Any]:
        """As Spark's Python runner takes it; keys in their canonical order."""
        return {"cluster": self.cluster, "index": self.index}

    def to_text(self) -> str:
        """As JSON text, canonically."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_document(cls, document: Any) -> Offset:
        """The offset in what a checkpoint holds.

        Raises:
            OffsetInvalid: it is none of this source's.
        """
        match document:
            case {"cluster": str(cluster), "index": int(index), **rest}:
                if not rest and _CLUSTER.fullmatch(cluster) and _is_index(index):
                    return cls(cluster, index)
            case _:
                pass
        raise OffsetInvalid(document)


class OffsetInvalid(PipelineError):
    """A checkpoint holds an offset that is none of this source's."""

    def __init__(self, document: Any) -> None:
        super().__init__(f"the checkpoint holds {str(document)[:200]}, which is no offset of a quire log")
        self.document = document


def parse_place(option: str, text: str) -> Place:
    """What startingOffsets or endingOffsets says: earliest, latest, {"index": n} or n.

    Raises:
        OptionRefused: anything else.
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


def _is_index(value: int) -> bool:
    return not isinstance(value, bool) and 0 <= value <= MAX_INDEX
