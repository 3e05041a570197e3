"""Scrubbing nodes by HTTP: servers that tell what they have, something else, what is no log, or nothing."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from quire.log.frames import walk_headers
from quire.pipeline.errors import ClusterUnavailable, ForeignLog
from quire.pipeline.jobs import ScrubSummary, scrub
from tests.pipeline.logs import append_and_flush, writing
from tests.pipeline.servers import SILENT, Answers, answers_of, pages, serving
from tests.pipeline.test_nodes import FRAMES, HIGHEST, RECORDS_A_FRAME, raw_frames

PIECE = 25


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are of PIECE records, in frames of 70 bytes."""
    monkeypatch.setattr("quire.pipeline.origin.cluster.STRETCH_BYTES", PIECE // RECORDS_A_FRAME * 70)


def give_up_within(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give who is silent up so soon; but who answers may be slow."""
    monkeypatch.setattr(import_module("quire.pipeline.scrub.comparison"), "NODE_TIMEOUT_S", seconds)


def scrubbed(*nodes: Answers, paths: tuple[Path, ...] = ()) -> tuple[ScrubSummary, list[str]]:
    """A scrub of servers that answer so, and their addresses."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(node)) for node in nodes]
        return scrub([str(path) for path in paths], servers), servers


def split_at(path: Path, parted: int, length: int = RECORDS_A_FRAME) -> bytes:
    """The same log with another history from a frame on, of frames of another length."""
    with writing(path) as log:
        append_and_flush(log, *[[number] * RECORDS_A_FRAME for number in range(parted // RECORDS_A_FRAME)])
        append_and_flush(log, *[["other"] * length] * ((HIGHEST - parted) // length))
        return log.read_frames(0, 1 << 20)[0]


def test_nodes_that_have_the_same_log_are_the_same(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path / "n1")

    summary, servers = scrubbed(*[answers_of(records=pages(raw))] * 2, paths=(tmp_path / "n1",))

    assert summary.findings == []
    assert summary.is_same
    told = [summary.nodes[server] for server in servers]
    assert [(node.records, node.frames, node.log_bytes) for node in told] == [(HIGHEST, FRAMES, len(raw))] * 2
    assert [node.compared_to for node in told] == [HIGHEST] * 2


@pytest.mark.parametrize("length", [RECORDS_A_FRAME, 7])
@pytest.mark.parametrize("parted", [0, 50])
def test_a_node_that_has_another_log_is_found_at_the_first_frame(tmp_path: Path, parted: int, length: int) -> None:
    raw, other = raw_frames(tmp_path / "n1"), split_at(tmp_path / "n2", parted, length)
    equal, highest = answers_of(records=pages(raw)), [header.next_index for _, header in walk_headers(other)][-1]

    summary, servers = scrubbed(equal, equal, answers_of(records=pages(other), highest=highest))

    [finding] = summary.findings
    assert (finding.kind, finding.node) == ("differs", servers[2])
    assert (finding.from_index, finding.to_index) == (parted, parted + length)
    assert not summary.is_whole


@pytest.mark.parametrize("harmed", [pytest.param(20, marks=pytest.mark.full), 100])
def test_a_node_that_sends_what_is_no_log_is_unreadable_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harmed: int
) -> None:
    give_up_within(1.0, monkeypatch)
    raw = raw_frames(tmp_path / "n1")
    lie = bytearray(raw)
    offset, header = list(walk_headers(raw))[9]
    lie[offset + harmed % header.size] ^= 4

    summary, servers = scrubbed(answers_of(records=pages(raw)), answers_of(records=pages(bytes(lie))))

    assert not summary.is_whole
    assert {finding.node for finding in summary.findings} == {servers[1]}
    assert {finding.kind for finding in summary.findings} == {"unreadable"}
    assert any((each.from_index or 0) <= header.index < (each.to_index or 0) for each in summary.findings)
    assert summary.nodes[servers[0]].records == HIGHEST


@pytest.mark.parametrize("answers", [pytest.param(0, marks=pytest.mark.full), 3])
def test_a_node_that_goes_silent_is_unreadable_from_there_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    give_up_within(2.0, monkeypatch)
    raw = raw_frames(tmp_path / "n1")

    summary, servers = scrubbed(answers_of(records=pages(raw)), answers_of(records=pages(raw, answers=answers)))

    read = max(0, answers - 1) * PIECE  # The first answer says where frames end; without it, there is one piece.
    starts = list(range(read, HIGHEST, PIECE)) if answers else [0]
    assert not summary.is_whole
    assert [(each.node, each.kind, each.from_index, each.to_index) for each in summary.findings] == [
        (servers[1], "unreadable", start, following) for start, following in pairwise([*starts, HIGHEST])
    ]
    whole, silent = (summary.nodes[server] for server in servers)
    assert (whole.records, silent.records) == (HIGHEST, read)
    assert (whole.compared_to, silent.compared_to) == (None, None)


def test_a_node_that_says_nothing_at_all_cannot_be_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_within(0.2, monkeypatch)
    raw_frames(tmp_path / "n1")

    with pytest.raises(ClusterUnavailable):
        scrubbed({"/status": SILENT}, paths=(tmp_path / "n1",))


def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path / "n1")

    with pytest.raises(ForeignLog):
        scrubbed(answers_of(records=pages(raw)), answers_of(b"x" * 16, records=pages(raw)))
