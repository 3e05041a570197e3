"""A frame boundary as an applier knows it: where it is in the log, and the facts derived from the log below it."""

from collections.abc import Sequence
from typing import NamedTuple

from quire.log import Tail

DIGEST_BYTES = 16
EMPTY_DIGEST = bytes(DIGEST_BYTES)
MAX_EPOCHS = 10_000
HISTORY_BYTES = 16


class Boundary(NamedTuple):
    """The end of an applied frame, with the members, the epochs and the digest of the log below it.

    `members` are the rows [node_id, disk_id, address, role] of the last `genesis` or `members` record below, which is
    at `members_index`. `epochs` are the newest MAX_EPOCHS pairs (epoch, index of its first record). `features` are the
    names of all features in use, ascending. `removed` are the rows [node_id, disk_id, index] of the same record.
    `history` is the id in the last `history` record below, which is at `history_index`. Without one it is empty: the
    log is in its first history, whose id is the cluster's.
    """

    tail: Tail = Tail(0, 0, 0, 0)
    members_index: int | None = None
    members: Sequence[Sequence[object]] = []
    epochs: tuple[tuple[int, int], ...] = ()
    digest: bytes = EMPTY_DIGEST
    features: tuple[str, ...] = ()
    removed: Sequence[Sequence[object]] = []
    history: bytes = b""
    history_index: int = 0

    @property
    def members_record(self) -> dict[str, object]:
        """The fields of the last record of members: `members`, and `removed` if it has any."""
        return {"members": self.members, **({"removed": self.removed} if self.removed else {})}


LOG_START = Boundary()
"""The boundary before the log's first frame."""
