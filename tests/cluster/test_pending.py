"""Which callers are answered by which event, with what: the writes of one frame, and of several."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.errors import ClusterError, OutcomeUnknown
from quire.cluster.node.writing import FutureWaiter, Pending, WriteCounts, WriteReply
from quire.replication import Placed, Write
from quire.replication.disk import Share
from quire.sm import Applied
from tests.cluster.running import running_cluster

EPOCH = 3


class Frame:
    """A frame of writes at `index`: for each, how many records it has and whether it waits to be applied."""

    def __init__(self, index: int, *writes: tuple[int, bool]) -> None:
        self.waiters = [FutureWaiter(applied=applied) for _, applied in writes]
        shares, offset = list[Share[Any]](), 0
        for (count, _), waiter in zip(writes, self.waiters, strict=True):
            shares.append(Share(Write(b"", count, owner=waiter), offset))
            offset += count
        self.placed = Placed(index, index + offset, EPOCH, shares)

    def applied(self, results: list[Any], refused: list[list[Any]], answered: Sequence[int] = ()) -> Applied:
        return Applied(self.placed.index, self.placed.next_index, EPOCH, results, refused, answered=answered)

    @property
    def answers(self) -> list[WriteReply | str | None]:
        """Of each write: its reply, the reason of its error, or None while it waits."""
        return [_answer(waiter.reply) for waiter in self.waiters]


def _answer(reply: "asyncio.Future[WriteReply]") -> WriteReply | str | None:
    if not reply.done():
        return None
    error = reply.exception()
    return reply.result() if error is None else str(error)


def unknown(reason: str) -> str:
    return str(OutcomeUnknown(reason))


@pytest.mark.asyncio
async def test_a_write_that_waits_for_the_commit_is_answered_when_its_whole_frame_is_committed() -> None:
    pending, frame = Pending(WriteCounts(), lambda: None, lambda: 0, str), Frame(10, (2, False), (1, True), (1, False))
    pending.placed(frame.placed)
    for commit_index in (10, 11, 13):
        pending.committed(commit_index)
        assert frame.answers == [None, None, None]
    pending.committed(14)
    assert frame.answers == [WriteReply(10, EPOCH, 2, [], []), None, WriteReply(13, EPOCH, 1, [], [])]


@pytest.mark.asyncio
async def test_each_write_gets_the_results_and_refusals_of_its_own_records() -> None:
    pending, frame = Pending(WriteCounts(), lambda: None, lambda: 0, str), Frame(10, (2, True), (1, False), (3, True))
    pending.placed(frame.placed)
    pending.committed(16)
    pending.applied(frame.applied(["a", None, "c", None, "e", "f"], [[1, "NO", "b"], [3, "NO", "d"]]))
    assert frame.answers == [
        WriteReply(10, EPOCH, 2, ["a", None], [[1, "NO", "b"]]),
        WriteReply(12, EPOCH, 1, [], []),
        WriteReply(13, EPOCH, 3, [None, "e", "f"], [[0, "NO", "d"]]),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answered", "repeated"),
    [([], []), ([0], [0]), ([1], [0]), ([2], [1]), ([4], []), ([1, 4, 5], [0, 2]), ([3], []), ([2, 3], [1])],
)
async def test_a_write_is_repeated_if_its_session_gave_a_recorded_reply_and_not_if_it_refused_a_record(
    answered: list[int], repeated: list[int]
) -> None:
    pending, frame = Pending(WriteCounts(), lambda: None, lambda: 0, str), Frame(10, (2, True), (1, True), (3, True))
    pending.placed(frame.placed)
    refused = [[2, "NO", "by the machine"], [3, "SEQUENCE_GAP", ""], [4, "REPLY_GONE", ""]]
    pending.applied(frame.applied(["a", "b", None, None, None, "f"], refused, answered))
    assert [position for position, reply in enumerate(frame.answers) if getattr(reply, "repeated", None)] == repeated


@pytest.mark.asyncio
async def test_a_write_alone_in_its_frame_is_repeated_if_its_session_gave_a_recorded_reply() -> None:
    pending = Pending(WriteCounts(), lambda: None, lambda: 0, str)
    for index, answered in ((10, [1]), (12, [])):
        frame = Frame(index, (2, True))
        pending.placed(frame.placed)
        pending.applied(frame.applied(["a", "b"], [], answered))
        assert frame.answers == [WriteReply(index, EPOCH, 2, ["a", "b"], [], 0, bool(answered))]


@pytest.mark.asyncio
async def test_results_of_code_that_is_not_a_majority_s_are_answered_to_nobody() -> None:
    why = [""]
    pending = Pending(WriteCounts(), lambda: None, lambda: 0, lambda: why[0])
    before, after = Frame(10, (1, True)), Frame(11, (1, True), (1, False))
    for frame in (before, after):
        pending.placed(frame.placed)
    pending.committed(13)
    pending.applied(before.applied(["a"], []))
    why[0] = "other code"
    pending.applied(after.applied(["b", "c"], []))

    assert before.answers == [WriteReply(10, EPOCH, 1, ["a"], [])]
    assert after.answers == [unknown("other code"), WriteReply(12, EPOCH, 1, [], [])]


@pytest.mark.asyncio
async def test_a_lost_leadership_leaves_what_is_committed_to_be_applied_and_the_rest_unknown() -> None:
    pending = Pending(WriteCounts(), lambda: None, lambda: 0, str)
    committed, partly, not_committed = Frame(10, (1, True)), Frame(11, (2, True)), Frame(13, (1, True))
    for frame in (committed, partly, not_committed):
        pending.placed(frame.placed)
    pending.committed(12)
    pending.lost(12, "it leads no longer")
    assert committed.answers == [None]
    assert partly.answers == not_committed.answers == [unknown("it leads no longer")]
    pending.applied(committed.applied(["a"], []))
    assert committed.answers == [WriteReply(10, EPOCH, 1, ["a"], [])]
    assert len(pending) == 0


class Counting:
    """The waiter of a write that is not applied: how often it was answered, and how often it failed."""

    applied = False

    def __init__(self) -> None:
        self.answers = self.failures = 0

    def answer(self, reply: WriteReply) -> None:
        self.answers += 1

    def fail(self, error: ClusterError) -> None:
        self.failures += 1


@pytest.mark.asyncio
async def test_a_frame_that_ends_at_commit_index_is_committed_and_each_of_its_writes_is_answered_once() -> None:
    pending, waiter, after = Pending(WriteCounts(), lambda: None, lambda: 0, str), Counting(), Frame(13, (1, True))
    pending.placed(Placed(10, 12, EPOCH, [Share(Write(b"", 2, owner=waiter), 0)]))
    applied = Frame(12, (1, True))
    pending.placed(applied.placed)
    pending.committed(12)
    pending.placed(after.placed)
    pending.committed(13)

    pending.lost(13, "it leads no longer")

    assert (waiter.answers, waiter.failures) == (1, 0)
    assert applied.answers == [None]
    assert after.answers == [unknown("it leads no longer")]


@pytest.mark.asyncio
async def test_after_the_end_of_applying_whatever_is_appended_is_unknown_until_it_resumes() -> None:
    pending = Pending(WriteCounts(), lambda: None, lambda: 0, str)
    before, after, resumed = Frame(10, (1, True)), Frame(11, (1, True), (1, False)), Frame(13, (1, True))
    pending.placed(before.placed)
    pending.end("the machine failed")
    pending.placed(after.placed)
    assert before.answers == [unknown("the machine failed")]
    assert after.answers == [unknown("the machine failed")] * 2
    pending.resume()
    pending.placed(resumed.placed)
    assert resumed.answers == [None]
    pending.applied(resumed.applied(["a"], []))
    assert resumed.answers == [WriteReply(13, EPOCH, 1, ["a"], [])]


@pytest.mark.asyncio
async def test_a_reader_waits_until_every_record_below_its_index_is_applied_and_no_longer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        applying = cluster.nodes["n1"].node.components.applying
        begin = applying.applier.applied_index
        readers = [asyncio.ensure_future(applying.reached(begin + count)) for count in range(4)]
        await asyncio.sleep(0)
        assert [reader.done() for reader in readers] == [True, False, False, False]
        await cluster.commands("n1", ["add", 1])
        assert [reader.done() for reader in readers] == [True, True, False, False]
        await cluster.commands("n1", ["add", 1], ["add", 1])
        assert [reader.done() for reader in readers] == [True] * 4
