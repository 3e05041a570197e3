"""What a client says of a command that it had to send again, if the session answers it again or a server refuses it."""

import asyncio
from typing import Any

import pytest

from quire.cluster.client import (
    CommandRefused,
    Halted,
    OutcomeUnknown,
    ReplyGone,
    ResultsCut,
    connect,
    connect_sync,
)
from quire.cluster.client.message import Message
from quire.cluster.http.problems import TYPE_PREFIX
from tests.cluster.streaming import DEADLINE_S, Fault, answers_of, streaming


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.attempts.BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr("quire.cluster.client.attempts.BACKOFF_LONGEST_S", 0.01)
    monkeypatch.setattr("quire.cluster.client.pipeline.GATHERING_S", DEADLINE_S)  # Groups as the calls make them.


async def test_a_batch_that_was_answered_again_has_no_index_of_its_copy() -> None:
    async with streaming([None, Fault.NOT_ANSWERED]) as server, connect(server.address) as cluster:
        first = await cluster.apply_batch(["a", "over"])
        again = await cluster.apply_batch(["b", "over"])
        after = await cluster.apply_batch(["c"])

    assert [(reply.index, reply.repeated) for reply in (first, again, after)] == [(2, False), (None, True), (5, False)]
    assert (again.results, again.refused) == ([3, None], [[1, "OVER", "too much"]])


async def test_a_refusal_that_was_answered_again_is_repeated_and_no_refusal_by_check() -> None:
    async with streaming([Fault.NOT_ANSWERED]) as server, connect(server.address) as cluster:
        for repeated in (True, False):
            with pytest.raises(CommandRefused) as refused:
                await cluster.apply("over")
            assert (refused.value.index is None, refused.value.repeated) == (repeated, repeated)


def test_results_that_were_cut_from_a_repeated_answer_have_no_index() -> None:
    async def cut() -> list[Any]:
        message = Message(0.0)
        answers: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
        for answer in answers:
            message.add(b"x", 1, answer, None)
        message.answer(None, 1, ["result"], [], 1)
        return await answers_of(*answers)

    first, *others = asyncio.run(cut())
    assert first == "result"
    assert [(type(error), error.index) for error in others] == [(ResultsCut, None)] * 2


CHANGES = [
    {"type": TYPE_PREFIX + "commands-refused", "status": 422, "detail": "the new code refuses it"},
    {"type": TYPE_PREFIX + "malformed", "status": 400, "detail": "the new code cannot read it"},
    {"type": TYPE_PREFIX + "limit-exceeded", "status": 413, "detail": "the new limit is lower"},
    {"type": TYPE_PREFIX + "check-failed", "status": 500, "detail": "the new check fails"},
    {"type": TYPE_PREFIX + "machine-failed", "status": 500, "detail": "the new machine fails"},
]


@pytest.mark.parametrize("problem", CHANGES, ids=[str(problem["type"]).rpartition(":")[2] for problem in CHANGES])
@pytest.mark.parametrize("name", [None, "billing"])
async def test_a_message_in_doubt_that_a_later_server_refuses_is_unknown_and_what_follows_goes_under_a_new_session(
    problem: dict[str, Any], name: str | None
) -> None:
    async with streaming([None, Fault.CHANGED], problem=problem) as server:
        async with connect(server.address, session=name) as cluster:
            assert await cluster.apply("first") == 1
            doubtful = [await cluster.submit(command) for command in ("executed", "refused later")]
            batch = await cluster.submit_batch(["in", "doubt"])
            await server.heard(3)  # The copy on the second stream, which is not answered yet.
            later = [await cluster.submit("later"), await cluster.submit("bad")]
            await cluster.ready(server.address)  # Meanwhile the later ones are sent.
            server.answering.set()

            answers = await answers_of(*doubtful, batch, *later)
            assert await cluster.apply("last") == 7

        assert [type(answer) for answer in answers[:3]] == [OutcomeUnknown] * 3
        assert str(problem["detail"]) in str(answers[0])
        assert answers[3] == 6
        assert isinstance(answers[4], CommandRefused)
        assert server.executed == ["first", "executed", "refused later", "in", "doubt", "later", "last"]
        # The old session executes nothing more: its name was taken over, or it was closed before the next one began.
        calls = [method for method, _ in server.calls if method != "GET"]
        assert calls == (["POST", "DELETE"] * 2 if name is None else ["POST"] * 2)


async def test_with_halt_on_failure_nothing_is_sent_after_a_message_in_doubt_was_refused() -> None:
    async with (
        streaming([Fault.CHANGED], problem=CHANGES[0]) as server,
        connect(server.address, halt_on_failure=True) as cluster,
    ):
        doubtful = await cluster.submit("refused later")
        await server.heard(2)
        later = await cluster.submit("later")
        await cluster.ready(server.address)
        server.answering.set()
        answers = await answers_of(doubtful, later)
        with pytest.raises(Halted):
            await cluster.submit("more")

    assert [type(answer) for answer in answers] == [OutcomeUnknown, Halted]
    assert server.executed == ["refused later"]


async def test_the_blocking_client_says_of_a_message_in_doubt_that_was_refused_that_it_is_unknown() -> None:
    async with streaming([Fault.CHANGED], problem=CHANGES[0]) as server:

        def write() -> Any:
            with connect_sync(server.address) as cluster:
                doubtful = cluster.submit("refused later")
                with pytest.raises(OutcomeUnknown):
                    doubtful.result(DEADLINE_S)
                return cluster.apply("next")

        writing = asyncio.create_task(asyncio.to_thread(write))
        await server.heard(2)
        server.answering.set()
        assert await writing == 2


async def test_what_was_sent_after_a_message_whose_reply_is_gone_may_be_executed_and_is_unknown() -> None:
    async with streaming(gone_below=3) as server:
        async with connect(server.address, session="sink") as cluster:
            assert (await cluster.apply_batch(["a", "b"])).results == [1, 2]
        async with connect(server.address, session="sink") as cluster:
            await cluster.resume_at(1)
            server.answering.clear()
            gone = await cluster.submit_batch(["a", "b"])
            await server.heard(2)
            later = await cluster.submit_batch(["c"])
            await cluster.ready(server.address)  # Meanwhile it is sent.
            server.answering.set()
            answers = await answers_of(gone, later)

    assert [type(answer) for answer in answers] == [ReplyGone, OutcomeUnknown]


async def test_a_command_in_an_answered_message_whose_reply_is_gone_fails_as_that() -> None:
    async with streaming(gone_below=2) as server:
        async with connect(server.address, session="sink") as cluster:
            await cluster.apply_batch(["a", "b"])
        async with connect(server.address, session="sink") as cluster:
            await cluster.resume_at(1)
            answers = await answers_of(*[await cluster.submit(command) for command in ("a", "b", "c")])
            assert await cluster.apply("d") == 4

    assert isinstance(answers[0], ReplyGone)
    assert answers[1:] == [2, 3]


async def test_a_client_that_resumed_sends_nothing_after_a_message_in_doubt_that_was_refused() -> None:
    too_long = next(problem for problem in CHANGES if problem["status"] == 413)
    async with streaming([], problem=too_long) as server:
        async with connect(server.address, session="sink") as cluster:
            for command in ("a", "b"):
                await cluster.apply_batch([command])
        server.faults = [Fault.CHANGED]
        async with connect(server.address, session="sink") as cluster:
            await cluster.resume_at(1)
            answers = [await cluster.submit_batch(["a"])]
            await server.heard(4)
            answers.append(await cluster.submit_batch(["b"]))
            server.answering.set()
            errors = [type(error) for error in await answers_of(*answers)]
            assert errors == [OutcomeUnknown, Halted]
        assert server.executed == ["a", "b"]  # Under another sequence than it had, b would be executed again.
