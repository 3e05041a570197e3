"""Thinning keeps few manifests, and keeps every index restorable."""

from random import Random

import pytest

from quire.cluster.backup.chain import Chain
from quire.cluster.backup.keeping import base_of, thinned
from quire.cluster.backup.manifest import Manifest
from tests.backup.manifests import DAY, HOUR, SECOND, manifest, piece, snapshot

MINUTE = 60 * SECOND


def test_the_last_manifest_of_each_minute_hour_and_day_is_kept() -> None:
    times = [number * 20 * SECOND for number in range(3 * 24 * 180)]  # Three days, three a minute.
    manifests = [manifest(number, time, [piece(0, number + 1)]) for number, time in enumerate(times)]

    gone = {each.number for each in thinned(manifests, times[-1], None)}

    kept = [each.time for each in manifests if each.number not in gone]
    newest = times[-1]
    assert kept[-1] == newest
    assert len([time for time in kept if newest - time <= HOUR]) in (60, 61, 62)
    assert len([time for time in kept if HOUR < newest - time <= 2 * DAY]) in (47, 48, 49)
    assert len([time for time in kept if newest - time > 2 * DAY]) in (1, 2)


def test_what_is_older_than_keep_goes_but_never_the_newest() -> None:
    manifests = [manifest(number, number * DAY, [piece(0, number + 1)]) for number in range(40)]

    gone = thinned(manifests, 39 * DAY, 30 * DAY)

    assert [each.number for each in gone] == list(range(9))
    assert thinned(manifests[:1], 39 * DAY, 1) == []


def test_the_last_manifest_of_a_chain_that_ended_is_kept() -> None:
    first = manifest(0, 0, [piece(0, 10)])
    second = manifest(1, 10 * SECOND, [piece(20, 30)], [snapshot(20)], chain=1)

    assert thinned([first, second], 10 * SECOND, None) == []


def test_a_manifest_of_a_time_that_is_not_reached_is_as_old_as_its_last_frame() -> None:
    ahead = manifest(0, 500 * DAY, [piece(0, 10, time=DAY)])
    others = [manifest(number, number * DAY, [piece(0, 10 + number)]) for number in range(2, 10)]

    assert thinned([ahead, *others], 10 * DAY, 30 * DAY) == []
    assert thinned([ahead, *others], 32 * DAY, 30 * DAY) == [ahead]


def test_a_manifest_of_a_clock_that_was_behind_is_no_older_than_its_last_frame() -> None:
    behind = manifest(0, 0, [piece(0, 10, time=400 * DAY)])
    newest = manifest(1, 401 * DAY, [piece(0, 20, time=401 * DAY)])

    assert thinned([behind, newest], 401 * DAY, 30 * DAY) == []


def test_a_manifest_stays_if_those_beside_it_do_not_join_without_it() -> None:
    first = manifest(0, 10 * DAY, [piece(0, 100)])
    last = manifest(1, 10 * DAY + HOUR, [piece(0, 100), piece(100, 200)])
    pieces = [piece(100, 200), piece(200, 300, time=10 * DAY + 2 * HOUR)]
    ahead = manifest(2, 410 * DAY, pieces, [snapshot(150)])  # By its clock, the others were older than two days.

    assert thinned([first, last, ahead], 20 * DAY, None) == [first]
    assert thinned([first, last, ahead], 20 * DAY, DAY) == [first, last]


class History:
    """A backup over days: manifests at random times, thinned after each, as a run does."""

    def __init__(self, seed: int, keep: int | None) -> None:
        self.random = Random(seed)
        self.keep = keep
        self.chain = Chain(0, b"genesis", [("h", 0)])
        self.kept: list[Manifest] = []
        self.time = 0
        self.number = 0

    def step(self) -> None:
        self.time += self.random.choice((20 * SECOND, MINUTE, MINUTE, 10 * MINUTE, 5 * HOUR, 30 * HOUR))
        end = self.chain.end.index
        after = end + self.random.randint(1, 50)
        grown = manifest(0, 0, [piece(end, after, time=self.time)], [])
        self.chain.add(grown.pieces[0], grown.end)
        if self.random.random() < 0.3:
            self.chain.snapshots.append(snapshot(after))
        indices = [row.index for row in self.chain.snapshots]
        self.chain.trim(base_of(self.kept, 0, self.time, indices))
        self.kept.append(manifest(self.number, self.time, self.chain.pieces, self.chain.snapshots))
        self.number += 1
        gone = thinned(self.kept, self.time, self.keep)
        self.kept = [each for each in self.kept if each not in gone]

    def covered(self) -> list[tuple[int, int]]:
        """What can be restored, as ranges that do not touch."""
        ranges: list[tuple[int, int]] = []
        for base, end in sorted((each.base, each.end.index) for each in self.kept):
            if ranges and base <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
            else:
                ranges.append((base, end))
        return ranges


@pytest.mark.parametrize("seed", range(20))
def test_no_index_becomes_impossible_to_restore(seed: int) -> None:
    history = History(seed, None)

    for _ in range(300):
        history.step()
        assert history.covered() == [(0, history.chain.end.index)]


@pytest.mark.parametrize("seed", range(20))
def test_with_keep_only_what_is_older_becomes_impossible(seed: int) -> None:
    history, ends = History(seed, 10 * DAY), list[tuple[int, int]]()

    for _ in range(300):
        history.step()
        ends.append((history.time, history.chain.end.index))
        ((first, last),) = history.covered()
        within = [end for time, end in ends if history.time - time <= 10 * DAY]
        assert first <= within[0]
        assert last == within[-1]


def test_the_manifests_of_a_year_reach_back_a_few_days_each() -> None:
    history = History(7, None)

    for _ in range(400):
        history.step()

    newest = history.kept[-1]
    days = (newest.time - newest.pieces[0].times[0]) / DAY
    assert 2 <= days <= 20
    assert newest.base > 0
