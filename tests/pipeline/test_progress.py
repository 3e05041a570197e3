"""What each job tells of how far it is: how much there is at first, then more and more, and all of it at the end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire.pipeline.jobs import archive, replay, report, scrub
from quire.pipeline.source.options import SourceOptions
from quire.sm import KvMachine
from tests.pipeline.test_replay import KV_GENESIS, put, run_cluster

RECORDS, SNAPSHOTS, PARTS = 1000, 3, 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECORDS in several segments, with SNAPSHOTS."""
    path = tmp_path_factory.mktemp("log") / "n1"
    run_cluster(path, KvMachine(), genesis=KV_GENESIS, command=put, snapshots=SNAPSHOTS, records=RECORDS)
    return path


@pytest.mark.parametrize(
    "job",
    [
        lambda log, top, told: archive(SourceOptions(path=log), f"{top}/archive", progress=told),
        lambda log, top, told: scrub([log], progress=told),
        lambda log, top, told: replay(SourceOptions(path=log), progress=told),
        lambda log, top, told: report(SourceOptions(path=log), f"{top}/report", progress=told),
    ],
    ids=["archive", "scrub", "replay", "report"],
)
def test_a_job_tells_how_far_it_is_to_its_end(
    log: Path, tmp_path: Path, job: Callable[[str, str, Callable[[int, int], None]], Any]
) -> None:
    told: list[tuple[int, int]] = []

    job(str(log), str(tmp_path), lambda done, of: told.append((done, of)))

    check(told, RECORDS)


def check(told: list[tuple[int, int]], total: int) -> None:
    assert (told[0], told[-1]) == ((0, total), (total, total))
    assert len(told) > 3
    assert {of for _, of in told} == {total}
    assert all(before < after for (before, _), (after, _) in pairwise(told))


def test_a_replay_by_keys_counts_each_part_of_a_stretch(log: Path) -> None:
    told: list[tuple[int, int]] = []

    summary = replay(SourceOptions(path=str(log)), key_parts=PARTS, progress=lambda done, of: told.append((done, of)))

    last = RECORDS - summary.compared_to  # Behind the last snapshot, and so not by keys.
    check(told, PARTS * (RECORDS - last) + last)


def test_a_job_that_has_nothing_to_do_tells_that(log: Path, tmp_path: Path) -> None:
    archive(SourceOptions(path=str(log)), str(tmp_path / "archive"))
    told: list[tuple[int, int]] = []

    archive(SourceOptions(path=str(log)), str(tmp_path / "archive"), progress=lambda *each: told.append(each))

    assert told == [(0, 0)]
