"""The first differing result, told by the replies that are kept: exactly, or as a range where some are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.log import Run
from quire.pipeline.cli import document_of
from quire.pipeline.replay.difference import Difference, first_difference
from quire.sm import Applier, ArithmeticMachine
from tests.pipeline.logs import Frames, writing
from tests.pipeline.test_replay import GENESIS, Astray, Nearly, replayed, run_cluster, snapshot_indices

ADD = ["add", 1]
Write = Callable[[Frames], None]


def told(path: Path, write: Write, wrong_at: int) -> Difference:
    """What is reported about a stretch whose result at an index is wrong. The written records begin at index 1."""
    machine = Nearly(42)
    machine.wrong_at = wrong_at
    with writing(path) as log:
        frames = Frames(log)
        frames.system(type="epoch_start", node_id="n1")
        write(frames)
        log.flush()
        boundary = log.tail.index
        stretch = list(log.reader.stream(0, boundary))
    own, recorded = Applier(ArithmeticMachine(42)), Applier(machine)
    for frame in stretch:
        own.apply(frame)
        recorded.apply(frame)
    difference = Difference(boundary, "n1", own.digest.hex(), recorded.digest.hex(), "")
    return first_difference(difference, own.sessions, recorded.sessions, stretch)


def one_session(frames: Frames) -> None:
    """Its records are 2 to 26."""
    frames.system(type="open_session", name="one")
    frames.records(*[ADD] * 10, session=1, sequence=1)
    frames.runs([Run(1, 11, 5)], *[ADD] * 5)
    frames.records(*[ADD] * 10, session=1, sequence=16)


@pytest.mark.parametrize("wrong_at", [2, 11, 12, 16, 17, 26])
def test_where_every_reply_is_kept_the_index_is_exact(tmp_path: Path, wrong_at: int) -> None:
    difference = told(tmp_path, one_session, wrong_at)

    assert difference.first_index == wrong_at
    assert difference.sentence() == (
        f'the first differing result is at index {wrong_at}: "wrong" in n1, "{41 + wrong_at}" in the replay'
    )


def test_a_digest_that_differs_where_no_result_does_is_told_as_that(tmp_path: Path) -> None:
    assert told(tmp_path, one_session, -1).reason == "every reply of the stretch is kept and equal"


def under_a_name_that_is_opened_again(frames: Frames) -> None:
    """Session 1 has records 2 to 6; its heirs are session 7 with 8 to 12, and session 13 with 14 to 18."""
    for session in (1, 7, 13):
        frames.system(type="open_session", name="one")
        frames.records(*[ADD] * 5, session=session, sequence=1 + (session - 1) // 6 * 5)


@pytest.mark.parametrize("wrong_at", [3, 12, 14])
def test_a_name_that_was_opened_again_keeps_the_replies_of_those_before(tmp_path: Path, wrong_at: int) -> None:
    assert told(tmp_path, under_a_name_that_is_opened_again, wrong_at).first_index == wrong_at


def without_a_session(frames: Frames) -> None:
    """Session 1 has records 2 to 11 and 14 to 23; 12 and 13 have none."""
    frames.system(type="open_session", name="one")
    frames.records(*[ADD] * 10, session=1, sequence=1)
    frames.records(ADD, ADD)
    frames.records(*[ADD] * 10, session=1, sequence=11)


def a_closed_one(frames: Frames) -> None:
    """Session 1 has records 3 to 11 and 14 to 23; session 2, which is closed at the end, 12 and 13."""
    frames.system(type="open_session", name="one")
    frames.system(type="open_session", name="two")
    frames.records(["add", 2], *[ADD] * 8, session=1, sequence=1)
    frames.runs([Run(2, 1, 2)], ADD, ADD)
    frames.records(*[ADD] * 10, session=1, sequence=10)
    frames.system(type="close_session", session=2)


@pytest.mark.parametrize("write", [without_a_session, a_closed_one])
def test_a_reply_behind_one_that_is_not_kept_is_not_called_the_first(tmp_path: Path, write: Write) -> None:
    assert told(tmp_path / "before", write, 11).first_index == 11

    behind = told(tmp_path / "behind", write, 14)
    assert behind.first_index is None
    assert behind.reason == (
        'the first differing result is in [12, 15): at index 14 it is "wrong" there and "55" in the replay, '
        "and some replies before that are not kept"
    )
    assert f"at index {behind.boundary}, n1 has digest" in behind.sentence()

    its_own = told(tmp_path / "its own", write, 13)
    assert its_own.first_index is None
    assert its_own.reason == (
        f"the first differing result is in [12, {its_own.boundary}): no reply that the snapshot keeps differs, "
        "so it is older than those, or of a session that is not open there"
    )


def test_the_first_reply_that_a_full_window_keeps_is_not_called_the_first(tmp_path: Path) -> None:
    machine = Astray(42)
    machine.wrong_at = 300
    genesis = GENESIS | {"limits": {"session_window": 10}}
    run_cluster(tmp_path / "n1", machine, genesis=genesis, snapshots=1, sessions=1)
    [boundary] = snapshot_indices(tmp_path / "n1")

    difference = replayed(tmp_path / "n1").difference

    assert difference is not None
    assert difference.first_index is None
    assert difference.boundary == boundary
    found = re.match(r"the first differing result is in \[3, (\d+)\): at index (\d+) it is ", difference.reason)
    assert found is not None
    assert 301 < int(found[2]) < int(found[1]) <= boundary


def test_a_difference_as_json_has_the_keys_that_programs_read() -> None:
    difference = Difference(10, "n1", "aa", "bb", "one reason")
    assert list(document_of(difference)) == [
        "border",
        "source",
        "found",
        "expected",
        "reason",
        "first_index",
        "found_result",
        "expected_result",
    ]
    assert document_of(difference)["border"] == 10
