"""The verdict can fail: it finds each violation planted in a log, a history or a report."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from quire.log import Kind, Run, encode_frame, encode_records, encode_runs, walk_frames
from tests.faults.distribution import percentile
from tests.faults.judging import (
    COMMITS_WITHIN_TIMEOUTS,
    HEALED_WITHIN_S,
    MEMORY_GROWTH_BYTES,
    Seen,
    judge_commits,
    judge_history,
    judge_logs,
    judge_memory,
    judge_progress,
    judge_recovery,
    longest_without,
)
from tests.faults.traffic import NO_BULK, Traffic, Written
from tests.faults.wrong import Wrong
from tests.linear.checker import NotLinearizable, Operation

BEFORE = 100
EPOCH = 3
SESSION = 7


class Stretch:
    """Raw frames from index 50 on."""

    def __init__(self) -> None:
        self.raw = b""
        self._index, self._crc32c = 50, 0

    def records(self, *operands: int, sequence: int, epoch: int = EPOCH) -> "Stretch":
        """A frame of one session's consecutive commands."""
        payload = encode_records([["add", operand] for operand in operands])
        return self._frame(payload, len(operands), Kind.RECORDS, SESSION, sequence, epoch)

    def runs(self, *runs: tuple[int, int, int], operands: Sequence[int]) -> "Stretch":
        """A frame of several sessions' commands."""
        payload = encode_runs([Run(*run) for run in runs], [["add", operand] for operand in operands])
        return self._frame(payload, len(operands), Kind.RUNS, 0, 0, EPOCH)

    def _frame(self, payload: bytes, count: int, kind: Kind, session: int, sequence: int, epoch: int) -> "Stretch":
        raw = encode_frame(
            index=self._index,
            epoch=epoch,
            timestamp=1,
            count=count,
            prev_crc32c=self._crc32c,
            kind=kind,
            payload=payload,
            session=session,
            sequence=sequence,
        )
        [frame] = walk_frames(raw)
        self.raw, self._index, self._crc32c = self.raw + raw, self._index + count, frame.header.crc32c
        return self


def told(*written: Written) -> Traffic:
    traffic = Traffic([], bulk=NO_BULK)
    traffic.written = list(written)
    return traffic


def added(index: int, operand: int, result: int, epoch: int = EPOCH) -> Written:
    return Written(index, epoch, [["add", operand]], [str(result)], 0.0)


def judge(stretch: Stretch, *written: Written, state: int) -> Any:
    logs = {"n1": stretch.raw, "n2": stretch.raw}
    return judge_logs(logs, told(*written), BEFORE, {"n1": str(state), "n2": str(state)})


def test_what_is_as_it_must_be_is_judged_good() -> None:
    stretch = Stretch().records(1, 2, sequence=1).runs((7, 3, 1), (9, 1, 2), operands=[3, 4, 5])

    judge(stretch, added(50, 1, 101), added(51, 2, 103), added(54, 5, 115), state=115)


def test_a_retry_stands_twice_and_counts_once_and_is_answered_as_before() -> None:
    stretch = Stretch().records(1, sequence=1).records(2, sequence=2).records(1, sequence=1)

    replay = judge(stretch, added(52, 1, 101), state=103)

    assert replay.retries == 1


def test_a_repeated_answer_is_judged_by_what_is_anywhere_in_the_log() -> None:
    stretch = Stretch().records(1, sequence=1).records(1, sequence=1)
    repeated = Written(None, EPOCH + 1, [["add", 1]], ["101"], 0.0)

    judge(stretch, repeated, state=101)
    for wrong in (replace(repeated, results=["102"]), replace(repeated, commands=[["add", 2]])):
        with pytest.raises(Wrong, match=r"acknowledged and lost: .*, whose answer was repeated"):
            judge(stretch, wrong, state=101)


def test_a_node_that_executed_a_retry_again_is_found() -> None:
    stretch = Stretch().records(1, sequence=1).records(1, sequence=1)

    with pytest.raises(Wrong, match="answers 102, and what stands in the log, each once, comes to 101"):
        judge(stretch, state=102)


def test_an_answer_that_counts_a_retry_again_is_found() -> None:
    stretch = Stretch().records(1, sequence=1).records(1, sequence=1)

    with pytest.raises(Wrong, match="index 51 was answered 102, and comes to 101"):
        judge(stretch, added(51, 1, 102), state=101)


def test_a_sequence_with_two_commands_is_found() -> None:
    with pytest.raises(Wrong, match=r"index 51 repeats \(7, 1\)"):
        judge(Stretch().records(1, sequence=1).records(2, sequence=1), state=101)


def test_what_was_acknowledged_and_does_not_stand_in_the_log_is_found() -> None:
    with pytest.raises(Wrong, match="acknowledged and lost"):
        judge(Stretch().records(1, sequence=1), added(51, 2, 103), state=101)


def test_another_command_where_one_was_acknowledged_is_found() -> None:
    with pytest.raises(Wrong, match=r"at 50 stands \['add', 1\], where \['add', 2\] was acknowledged"):
        judge(Stretch().records(1, sequence=1), added(50, 2, 102), state=101)


def test_another_epoch_than_was_acknowledged_is_found() -> None:
    with pytest.raises(Wrong, match="50 is of epoch 3, acknowledged as of 2"):
        judge(Stretch().records(1, sequence=1), added(50, 1, 101, epoch=2), state=101)


def test_logs_that_differ_are_found() -> None:
    one, other = Stretch().records(1, sequence=1), Stretch().records(2, sequence=1)

    with pytest.raises(Wrong, match="the logs of n1"):
        judge_logs({"n1": one.raw, "n2": other.raw}, told(), BEFORE, {})


def test_a_log_whose_beginning_expired_is_held_against_the_whole_one_and_only_where_logs_may_expire() -> None:
    whole = Stretch().records(1, sequence=1).records(2, sequence=2)
    boundary = len(Stretch().records(1, sequence=1).raw)
    first, last = whole.raw[:boundary], whole.raw[boundary:]
    states = {"archive": "103", "n1": "103"}

    judge_logs({"archive": whole.raw, "n1": last}, told(), BEFORE, states, may_lack=["n1"])

    for lacking, may_lack in ((last, []), (first, ["n1"]), (b"", ["n1"])):
        with pytest.raises(Wrong, match="the logs of archive"):
            judge_logs({"archive": whole.raw, "n1": lacking}, told(), BEFORE, states, may_lack=may_lack)


def test_a_command_that_nobody_asked_for_is_found() -> None:
    payload = encode_records([["sub", 1]])
    raw = encode_frame(index=50, epoch=1, timestamp=1, count=1, prev_crc32c=0, kind=Kind.RECORDS, payload=payload)

    with pytest.raises(Wrong, match="nobody asked for sub"):
        judge_logs({"n1": raw}, told(), BEFORE, {})


def test_a_read_from_the_past_is_found() -> None:
    traffic = told()
    traffic.history = [Operation(0, ["add", 1], "101", 1.0, 2.0), Operation(1, None, "100", 3.0, 4.0)]

    with pytest.raises(NotLinearizable):
        judge_history(traffic, BEFORE)


def test_the_first_acknowledgement_may_take_so_long_and_no_longer() -> None:
    judge_recovery(HEALED_WITHIN_S)

    with pytest.raises(Wrong, match="after healing"):
        judge_recovery(HEALED_WITHIN_S + 0.01)


def test_memory_may_grow_by_so_much_and_no_more() -> None:
    judge_memory({"n1": MEMORY_GROWTH_BYTES})

    with pytest.raises(Wrong, match="the memory of n2"):
        judge_memory({"n1": 0, "n2": MEMORY_GROWTH_BYTES + 1})


@pytest.mark.parametrize("name", ["epoch", "commit_index", "applied_index"])
def test_a_process_that_takes_back_what_it_said_is_found_and_one_that_was_started_again_is_not(name: str) -> None:
    first = Seen("n1", 11, epoch=4, serving=False, commit_index=60, applied_index=60)
    less = {"epoch": 4, "commit_index": 60, "applied_index": 60} | {name: 3}
    judge_progress([first, Seen("n1", 12, serving=False, **less), Seen("n2", 13, serving=False, **less)])

    with pytest.raises(Wrong, match=f"n1: {name} went from"):
        judge_progress([first, Seen("n1", 11, serving=False, **less)])


def test_two_leaders_of_one_epoch_are_found_and_of_two_epochs_are_not() -> None:
    def serving(node_id: str, epoch: int) -> Seen:
        return Seen(node_id, 1, epoch, serving=True, commit_index=1, applied_index=1)

    judge_progress([serving("n1", 4), serving("n2", 5)])

    with pytest.raises(Wrong, match="n1 and n2 both led epoch 4"):
        judge_progress([serving("n1", 4), serving("n2", 4)])


def test_a_majority_may_commit_nothing_for_so_long_and_no_longer() -> None:
    judge_commits(COMMITS_WITHIN_TIMEOUTS)

    with pytest.raises(Wrong, match=r"nothing was committed for 10\.1 election timeouts"):
        judge_commits(COMMITS_WITHIN_TIMEOUTS + 0.1)


@pytest.mark.parametrize(
    ("ends", "longest"),
    [
        ([1.0, 9.0, 12.0, 14.5, 21.0], 6.5),
        ([9.0, 21.0], 12.0),
        ([1.0, 2.0, 30.0, 40.0], 28.0),
        ([15.0], 5.0),
        ([], 10.0),
    ],
    ids=["inside", "before and after", "nothing inside", "neither before nor after", "nothing at all"],
)
def test_the_longest_time_without_a_commit_includes_what_reaches_into_the_illness(
    ends: list[float], longest: float
) -> None:
    assert longest_without(ends, began=10.0, ended=20.0) == longest


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(200, 0, -1)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [100.0, 180.0, 198.0, 200.0]
    assert percentile([3.0], 0.5) == 3.0
