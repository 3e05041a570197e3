"""An archive made from nodes of which some are silent, and whose leader changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from quire.log.packing import Skimmer
from quire.pipeline.archive.appender import open_archive
from quire.pipeline.archive.log import ArchiveLog
from quire.pipeline.archive.writer import write_stretch
from quire.pipeline.errors import ClusterUnavailable, FrameCut
from quire.pipeline.jobs import archive
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.origin.origin import Stretch
from quire.pipeline.source.options import SourceOptions
from tests.pipeline.logs import append_and_flush, writing
from tests.pipeline.servers import SILENT, Told, answers_of, members, pages, serving
from tests.pipeline.test_nodes import HIGHEST, RECORDS_A_FRAME, raw_frames

Records = Callable[[dict[str, int]], Told]
PIECE = 25


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of PIECE records, in frames of 70 bytes."""
    monkeypatch.setattr("quire.pipeline.origin.cluster.STRETCH_BYTES", PIECE // RECORDS_A_FRAME * 70)


def archived(path: Path, *nodes: Records, fetch_timeout_ms: int = 30_000) -> bytes:
    """The frames of an archive of nodes, of which the last but one, and then the last leads."""
    addresses: list[str] = []
    asked = 0

    def status(_asked: dict[str, int]) -> Told:
        nonlocal asked
        asked += 1
        return members(*addresses, leader=min(asked, 2))  # It changes once somebody has asked who it is.

    with ExitStack() as stack:
        answers = [answers_of(records=records) | {"/status": status} for records in nodes]
        addresses += [stack.enter_context(serving(each)) for each in answers]
        options = SourceOptions(bootstrap=tuple(addresses), fetchTimeoutMs=fetch_timeout_ms)
        summary = archive(options, str(path))
    assert (summary.from_index, summary.to_index) == (0, HIGHEST)
    assert summary.files == HIGHEST // PIECE
    with closing(ArchiveLog(str(path))) as origin:
        raw = b""
        for stretch in origin.stretches(0, HIGHEST):
            for rows in origin.rows(stretch, Skimmer()):
                raw += b"".join(bytes(rows.raw[at : at + header.size]) for header, at in rows.frames)
        return raw


def silent(_asked: dict[str, int]) -> Told:
    return SILENT


@pytest.mark.parametrize("answers", [1, 2, 3, 5])
def test_an_archive_of_nodes_that_fall_silent_is_the_log_to_the_byte(tmp_path: Path, answers: int) -> None:
    raw = raw_frames(tmp_path / "n1")

    assert archived(tmp_path / "archive", silent, pages(raw, answers=answers), pages(raw)) == raw


def test_an_archive_of_which_the_nodes_fell_silent_goes_on_where_it_ended(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path / "n1")

    with pytest.raises(ClusterUnavailable):  # One of the answers is for the pieces' ends.
        archived(tmp_path / "archive", silent, silent, pages(raw, answers=3), fetch_timeout_ms=2000)
    with serving(answers_of(records=pages(raw))) as server:
        rest = archive(SourceOptions(bootstrap=(server,)), str(tmp_path / "archive"))
    assert (rest.from_index, rest.to_index) == (2 * PIECE, HIGHEST)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 4), (2, 3), (3, 4), (1, 5)])
def test_a_piece_that_cuts_a_frame_is_refused(tmp_path: Path, first: int, last: int) -> None:
    with writing(tmp_path / "log") as log:
        append_and_flush(log, ["a", "b"], ["c", "d"], ["e", "f"])
    path = str(tmp_path / "archive")

    with open_archive(path), closing(DataDirLog(str(tmp_path / "log"))) as origin:
        with pytest.raises(FrameCut, match=rf"records \[{first}, {last}\)"):
            write_stretch(origin, path, Stretch(first, last, 0))
        [written] = write_stretch(origin, path, Stretch(2, 4, 0))
    assert (written.held.from_index, written.held.to_index) == (2, 4)
