"""A read that goes from one node to another, page by page, against servers that are told what to say."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.log.packing import Skimmer
from quire.pipeline.cluster import Cluster
from quire.pipeline.errors import ClusterUnavailable
from quire.pipeline.origin import Stretch
from tests.pipeline.logs import CLUSTER, append_and_flush, writing
from tests.pipeline.servers import answers_of, pages, serving

FRAMES, RECORDS_A_FRAME = 20, 5
HIGHEST = FRAMES * RECORDS_A_FRAME
PAGE_BYTES = 200
"""Two frames, about."""


def raw_frames(path: Path, value: int = 0) -> bytes:
    """A log's frames as a node sends them; each frame holds a few records, all of one value."""
    with writing(path) as log:
        append_and_flush(log, *[[value + number] * RECORDS_A_FRAME for number in range(FRAMES)])
        raw, index = b"", 0
        while index < HIGHEST:
            page, index = log.read_frames(index, 1 << 20)
            raw += page
    return raw


def read(servers: list[str], timeout_s: float = 30.0) -> list[int]:
    """The indices that a task gets of them."""
    log = Cluster(servers, timeout_s, known=CLUSTER.hex(), page_bytes=PAGE_BYTES)
    try:
        return [index for rows in log.rows(Stretch(3, 97, None), Skimmer()) for index in rows.index.tolist()]
    finally:
        log.close()


def test_a_read_goes_on_at_another_node_behind_the_last_row_that_it_has(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    for answers in (0, 1, 2, 7):
        with ExitStack() as stack:
            dying = stack.enter_context(serving(answers_of(records=pages(raw, answers=answers))))
            other = stack.enter_context(serving(answers_of(records=pages(raw))))
            assert read([dying, other]) == list(range(3, 97))


def test_a_node_whose_log_does_not_follow_what_was_read_is_passed_over(tmp_path: Path) -> None:
    raw, foreign = raw_frames(tmp_path / "log"), raw_frames(tmp_path / "foreign", value=50)
    with ExitStack() as stack:
        dying = stack.enter_context(serving(answers_of(records=pages(raw, answers=2))))
        liar = stack.enter_context(serving(answers_of(records=pages(foreign))))
        with pytest.raises(ClusterUnavailable, match=f"{liar}: it sent what is no part of the log"):
            read([dying, liar], timeout_s=0.3)
        good = stack.enter_context(serving(answers_of(records=pages(raw))))
        again = stack.enter_context(serving(answers_of(records=pages(raw, answers=2))))
        assert read([again, liar, good]) == list(range(3, 97))
