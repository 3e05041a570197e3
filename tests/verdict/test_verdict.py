"""The verdict can fail: it finds each violation planted in a log, in clients' answers, or in nodes' reports."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from quire.log import Kind, Run, encode_frame, encode_records, encode_runs, encode_system, walk_frames
from tests.verdict.verdict import (
    Answered,
    History,
    Replay,
    Seen,
    Sum,
    Values,
    Wrong,
    check_counted,
    check_logs,
    check_progress,
    system_records,
)

BEFORE = 100
EPOCH = 3
SESSION = 7
A, B, C, D = ([["add", 10 * batch], ["add", 10 * batch + 1]] for batch in range(1, 5))
RESULTS = {50: ["110", "121"], 52: ["141", "162"], 54: ["192", "223"], 56: ["263", "304"]}


class Stretch:
    """Raw frames from index 50 on."""

    def __init__(self) -> None:
        self.raw = b""
        self.index, self._crc32c = 50, 0

    def add(self, *operands: int, sequence: int = 0, epoch: int = EPOCH) -> "Stretch":
        """A frame of consecutive commands; of a session's, if they have a sequence."""
        return self.batch([["add", operand] for operand in operands], sequence, epoch)

    def batch(self, commands: Sequence[Any], sequence: int = 0, epoch: int = EPOCH) -> "Stretch":
        """A frame of these."""
        payload = encode_records(commands)
        return self._frame(payload, len(commands), Kind.RECORDS, SESSION if sequence else 0, sequence, epoch)

    def runs(self, *runs: tuple[int, int, int], operands: Sequence[int]) -> "Stretch":
        """A frame of several sessions' commands."""
        payload = encode_runs([Run(*run) for run in runs], [["add", operand] for operand in operands])
        return self._frame(payload, len(operands), Kind.RUNS, 0, 0, EPOCH)

    def system(self, node_id: str, epoch: int) -> "Stretch":
        """The record with which a leader begins its epoch."""
        return self._frame(encode_system({"type": "epoch_start", "node_id": node_id}), 1, Kind.SYSTEM, 0, 0, epoch)

    def _frame(self, payload: bytes, count: int, kind: Kind, session: int, sequence: int, epoch: int) -> "Stretch":
        raw = encode_frame(
            index=self.index,
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
        self.raw, self.index, self._crc32c = self.raw + raw, self.index + count, frame.header.crc32c
        return self


def log_of(*batches: Sequence[Any], epoch: int = EPOCH) -> Stretch:
    """A log of one frame a batch, without sessions."""
    stretch = Stretch()
    for batch in batches:
        stretch.batch(batch, epoch=epoch)
    return stretch


def added(index: int | None, operand: int, result: int, epoch: int = EPOCH) -> Answered:
    return Answered([["add", operand]], [str(result)], index, epoch)


def told() -> History:
    """Client 0 was told of A and C, client 1 of D; of B nobody knows."""
    return History(
        [
            Answered(A, RESULTS[50], 50, EPOCH, 0),
            Answered(C, RESULTS[54], 54, EPOCH, 0),
            Answered(D, RESULTS[56], 56, EPOCH, 1),
        ],
        [B],
    )


def judge(stretch: Stretch, history: History, state: int | None = None) -> Replay:
    logs = {"n1": stretch.raw, "n2": stretch.raw}
    return check_logs(logs, history, Sum(BEFORE), {} if state is None else {"n1": str(state), "n2": str(state)})


def sent(*operands: int) -> list[list[Any]]:
    """Batches of unknown outcome."""
    return [[["add", operand]] for operand in operands]


# What is right


def test_what_is_as_it_must_be_is_judged_good() -> None:
    stretch = Stretch().add(1, 2, sequence=1).system("n1", 4).runs((7, 3, 1), (9, 1, 2), operands=[3, 4, 5])
    history = History([added(50, 1, 101), added(51, 2, 103), added(55, 5, 115)], sent(3, 4))

    judge(stretch, history, state=115)

    assert system_records(stretch.raw, "epoch_start") == [(4, {"type": "epoch_start", "node_id": "n1"})]


def test_a_log_with_all_that_was_acknowledged_is_good_with_an_unknown_batch_or_without() -> None:
    judge(log_of(A, B, C, D), told())
    history = told()
    history.answered[1:] = [Answered(C, [], 52, EPOCH, 0), Answered(D, [], 54, EPOCH, 1)]
    judge(log_of(A, C, D), history)


def test_what_came_late_of_what_was_sent_before_is_good() -> None:
    stretch = Stretch().add(1).add(2)

    check_logs({"n1": stretch.raw}, History([added(51, 2, 103)]), Sum(BEFORE), {}, late=sent(1))

    with pytest.raises(Wrong, match="nobody sent this"):
        judge(stretch, History([added(51, 2, 103)]))


# Retries


def test_a_retry_stands_twice_and_counts_once_and_is_answered_as_before() -> None:
    stretch = Stretch().add(1, sequence=1).add(2, sequence=2).add(1, sequence=1)

    replay = judge(stretch, History([added(52, 1, 101), added(51, 2, 103)]), state=103)

    assert replay.retries == 1


def test_a_repeated_answer_is_judged_by_what_is_anywhere_in_the_log() -> None:
    stretch = Stretch().add(1, sequence=1).add(1, sequence=1)
    repeated = added(None, 1, 101, EPOCH + 1)

    judge(stretch, History([repeated]), state=101)
    for wrong in (replace(repeated, results=["102"]), replace(repeated, commands=[["add", 2]])):
        with pytest.raises(Wrong, match=r"acknowledged and lost: .*, whose answer was repeated"):
            judge(stretch, History([wrong], sent(1)), state=101)


def test_two_repeated_answers_need_two_executions() -> None:
    twice = History([added(None, 1, 101), replace(added(None, 1, 101), results=[])])

    judge(Stretch().add(1, sequence=1).add(1, sequence=2), twice, state=102)

    with pytest.raises(Wrong, match="acknowledged and lost"):
        judge(Stretch().add(1, sequence=1).add(1, sequence=1), twice, state=101)


def test_an_answer_under_a_session_is_judged_by_its_sequence() -> None:
    stretch = Stretch().add(1, sequence=1).add(1, sequence=2).add(1, sequence=1)
    first, second = (replace(added(None, 1, 100 + it), session=SESSION, sequence=it) for it in (1, 2))

    judge(stretch, History([second, first]), state=102)

    with pytest.raises(Wrong, match=r"acknowledged and lost: .*, session 7, sequence 3"):
        judge(stretch, History([first, second, replace(second, sequence=3)]))
    with pytest.raises(Wrong, match=r"index 51 was answered \['101'\], and comes to \['102'\]"):
        judge(stretch, History([first, replace(second, results=["101"])]))


def test_a_node_that_executed_a_retry_again_is_found() -> None:
    stretch = Stretch().add(1, sequence=1).add(1, sequence=1)

    with pytest.raises(Wrong, match="answers 102, and what is in the log, each once, comes to 101"):
        judge(stretch, History([], sent(1)), state=102)


def test_an_answer_that_counts_a_retry_again_is_found() -> None:
    stretch = Stretch().add(1, sequence=1).add(1, sequence=1)

    with pytest.raises(Wrong, match=r"index 51 was answered \['102'\], and comes to \['101'\]"):
        judge(stretch, History([added(51, 1, 102)]), state=101)


def test_a_sequence_with_two_commands_is_found() -> None:
    with pytest.raises(Wrong, match=r"index 51 repeats \(7, 1\)"):
        judge(Stretch().add(1, sequence=1).add(2, sequence=1), History([], sent(1, 2)))


# What clients were told


def test_what_was_acknowledged_and_is_not_in_the_log_is_found() -> None:
    with pytest.raises(Wrong, match="acknowledged and lost"):
        judge(Stretch().add(1, sequence=1), History([added(51, 2, 103)], sent(1)), state=101)


@pytest.mark.parametrize(
    ("stretch", "words"),
    [
        (log_of(A, B, C), "acknowledged and lost: .* of client 1, told index 56, 2 of 2"),
        (log_of(A, B, C, [D[0]]), "acknowledged and lost: .* of client 1, told index 56, 1 of 2"),
        (log_of(A, B, D, C), "other commands are at index 54"),
        (log_of(A, B, C[::-1], D), "other commands are at index 54"),
        (log_of(A, B, C, D, epoch=2), "index 50 is of epoch 2, acknowledged as of 3"),
        (log_of(A, B, C, D, D), "nobody sent this so, or it was executed twice"),
        (log_of(A, B, C, D, B), "nobody sent this so, or it was executed twice"),
        (log_of(A, B[::-1], C, D), "nobody sent this so, or it was executed twice"),
        (log_of(A, B, C, D, [["add", 99]]), "nobody sent this so, or it was executed twice"),
        (log_of(A, B, C, D, [["sub", 1]]), "nobody asked for sub"),
    ],
    ids=[
        *("lost", "cut", "swapped", "reversed", "epoch", "twice", "unknown twice", "unknown reversed", "invented"),
        "another operation",
    ],
)
def test_a_log_that_is_not_what_clients_were_told_is_found(stretch: Stretch, words: str) -> None:
    history = told()
    history.answered = [replace(each, results=[]) for each in history.answered]
    with pytest.raises(Wrong, match=words):
        judge(stretch, history)


def test_half_of_a_batch_of_unknown_outcome_is_found() -> None:
    history = told()
    del history.answered[1:]
    with pytest.raises(Wrong, match="nobody sent this so"):
        judge(log_of(A, B[:1]), history)


def test_a_client_whose_batches_are_in_another_order_is_found() -> None:
    history = told()
    history.answered[:2] = history.answered[1::-1]
    with pytest.raises(Wrong, match="client 0 was reordered at index 50"):
        judge(log_of(A, B, C, D), history)


def test_one_index_told_to_two_clients_is_found() -> None:
    history = told()
    history.answered.append(Answered(A, RESULTS[50], 50, EPOCH, 2))
    with pytest.raises(Wrong, match="two batches were told index 50"):
        judge(log_of(A, B, C, D), history)


def test_a_result_that_the_log_does_not_give_is_found() -> None:
    history = told()
    judge(log_of(A, B, C, D), history)
    history.answered[1] = Answered(C, ["192", "224"], 54, EPOCH, 0)
    with pytest.raises(Wrong, match="index 54 was answered"):
        judge(log_of(A, B, C, D), history)


# Logs and nodes


def test_logs_that_differ_are_found() -> None:
    one, other = Stretch().add(1, sequence=1), Stretch().add(2, sequence=1)

    with pytest.raises(Wrong, match="the logs of n1"):
        check_logs({"n1": one.raw, "n2": other.raw}, History([], sent(1)), Sum(BEFORE), {})


def test_a_log_whose_beginning_expired_is_compared_with_the_whole_one_and_only_where_logs_may_expire() -> None:
    whole = Stretch().add(1, sequence=1).add(2, sequence=2)
    boundary = len(Stretch().add(1, sequence=1).raw)
    first, last = whole.raw[:boundary], whole.raw[boundary:]
    history, states = History([], sent(1, 2)), {"archive": "103", "n1": "103"}

    check_logs({"archive": whole.raw, "n1": last}, history, Sum(BEFORE), states, may_lack=["n1"])

    for lacking, may_lack in ((last, []), (first, ["n1"]), (b"", ["n1"])):
        with pytest.raises(Wrong, match="the logs of archive"):
            check_logs({"archive": whole.raw, "n1": lacking}, history, Sum(BEFORE), states, may_lack=may_lack)


def test_a_counter_must_have_counted_each_answer_once_and_nothing_else() -> None:
    check_counted([1, 3], unknown=1, counted=3)
    check_counted([1, 3], unknown=2, counted=4)

    for answers, unknown, counted in (([1, 2], 5, 1), ([1, 3], 1, 4), ([1, 1], 1, 3), ([1, 4], 1, 3), ([0, 1], 0, 2)):
        with pytest.raises(Wrong, match="counted"):
            check_counted(answers, unknown, counted)


def test_a_model_of_kv_counts_by_key_and_knows_a_new_one() -> None:
    values = Values()

    commands = [["incr", "a"], ["incr", "b"], ["incr", "a"], ["put", "c", [1, "x"]], ["put", "c", 2]]
    assert [values.apply(command) for command in commands] == [1, 1, 2, True, False]
    assert values.state == {"a": 2, "b": 1, "c": 2}
    with pytest.raises(Wrong, match="nobody asked for"):
        values.apply(["delete", "a"])


@pytest.mark.parametrize("name", ["epoch", "commit_index", "applied_index"])
def test_a_process_that_takes_back_what_it_said_is_found_and_one_that_was_started_again_is_not(name: str) -> None:
    first = Seen("n1", 11, epoch=4, serving=False, commit_index=60, applied_index=60)
    less = {"epoch": 4, "commit_index": 60, "applied_index": 60} | {name: 3}
    check_progress([first, Seen("n1", 12, serving=False, **less), Seen("n2", 13, serving=False, **less)])

    with pytest.raises(Wrong, match=f"n1: {name} went from"):
        check_progress([first, Seen("n1", 11, serving=False, **less)])


def test_two_leaders_of_one_epoch_are_found_and_of_two_epochs_are_not() -> None:
    def serving(node_id: str, epoch: int) -> Seen:
        return Seen(node_id, 1, epoch, serving=True, commit_index=1, applied_index=1)

    check_progress([serving("n1", 4), serving("n2", 5)])

    with pytest.raises(Wrong, match="n1 and n2 both led epoch 4"):
        check_progress([serving("n1", 4), serving("n2", 4)])
