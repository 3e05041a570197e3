"""An append of a value that arrives in chunks, as a server makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.log import Log


def append_stream(
    log: Log,
    chunks: Iterable[bytes],
    threshold: int | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    expected_index: int | None = None,
    epoch: int = 0,
) -> int:
    """Append the chunks as one blob; return its index. Nothing is left if `chunks` raises."""
    with log.spools.begin(threshold, metadata=metadata) as spool:
        for chunk in chunks:
            spool.write(chunk)
        return log.spools.append(spool, expected_index=expected_index, epoch=epoch)
