"""The client's pipeline by itself: what is in doubt, what is requeued and in which order, the window, the halt.

Nothing here goes through a connection, so each test says itself what the streams brought.
"""

import asyncio
from typing import Any

import pytest

from quire.cluster.client.errors import BadRequest, CommandRefused, Halted, OutcomeUnknown
from quire.cluster.client.message import Message
from quire.cluster.client.pipeline import Pipeline
from quire.log import Value, pack

TIMEOUT_S = 60.0
SOON_S = 0.01
REFUSED: dict[str, Any] = {"status": 400, "detail": "no", "refused": [[0, "NO", "no"]]}
UNNAMED: dict[str, Any] = {"status": 400, "detail": "one of them, and nobody says which"}


async def sent(pipeline: Pipeline, count: int) -> tuple[list[Message], list["asyncio.Future[Any]"]]:
    """Messages of one command each, in flight, with the future of each."""
    messages, answers = [], []
    for number in range(count):
        answer = pipeline.submit(pack(["add", number]))
        assert answer is not None
        answers.append(answer)
        messages.append(await pipeline.next_message())
    return messages, answers


def opened(*, halt_on_failure: bool = False, window: int = 100, timeout_s: float = TIMEOUT_S) -> Pipeline:
    pipeline = Pipeline(timeout_s, halt_on_failure=halt_on_failure)
    pipeline.open(1, window, 1 << 20)
    return pipeline


async def together(pipeline: Pipeline, *commands: str) -> tuple[Message, list["asyncio.Future[Any]"]]:
    """One message of these commands, in flight, with the future of each."""
    answers = [pipeline.submit(pack(command)) for command in commands]
    return await pipeline.next_message(), [answer for answer in answers if answer is not None]


async def test_everything_in_flight_is_in_doubt_when_a_stream_ends() -> None:
    pipeline = opened()
    messages, _ = await sent(pipeline, 3)

    pipeline.interrupted()

    assert [message.in_doubt for message in messages] == [True, True, True]
    assert pipeline.unanswered() == messages


async def test_when_a_head_in_doubt_is_refused_all_in_doubt_is_unknown_and_the_rest_waits_for_a_session() -> None:
    pipeline = opened()
    doubtful, unknown = await sent(pipeline, 2)
    pipeline.interrupted()
    [later], [waiting] = await sent(pipeline, 1)
    queued = pipeline.submit(pack(["add", 9]))

    assert not pipeline.refused(doubtful[0].sequence, REFUSED)

    assert [type(answer.exception()) for answer in unknown] == [OutcomeUnknown] * 2
    assert not waiting.done()
    assert pipeline.unanswered() == []
    # The window is shut: nothing more is submitted before the next session says how wide its own is.
    assert pipeline.submit(pack(["add", 10])) is None

    pipeline.open(1, 100, 1 << 20)
    again, after = await pipeline.next_message(), await pipeline.next_message()
    assert again is later
    assert (again.sequence, again.in_doubt, after.sequence) == (1, False, 2)
    pipeline.answered(1, 50, 1, ["fifty"], [])
    pipeline.answered(2, 51, 1, ["fifty-one"], [])
    assert queued is not None
    assert (await waiting, await queued) == ("fifty", "fifty-one")


async def test_what_a_server_did_not_take_goes_back_in_order_and_what_is_in_doubt_stays_in_flight() -> None:
    pipeline = opened()
    doubtful, _ = await sent(pipeline, 2)
    pipeline.interrupted()
    fresh, _ = await sent(pipeline, 2)

    pipeline.returned(doubtful[0].sequence)

    assert pipeline.unanswered() == doubtful
    assert [await pipeline.next_message(), await pipeline.next_message()] == fresh
    assert [message.sequence for message in fresh] == [3, 4]
    assert [message.in_doubt for message in (*doubtful, *fresh)] == [True, True, False, False]


async def test_what_was_sent_behind_a_refused_message_is_sent_anew_in_order_under_the_sequences_that_it_freed() -> None:
    pipeline = opened()
    messages, answers = await sent(pipeline, 3)

    assert pipeline.refused(messages[0].sequence, REFUSED)

    with pytest.raises(CommandRefused, match="was refused, NO"):
        await answers[0]
    resent = [await pipeline.next_message(), await pipeline.next_message()]
    assert resent == messages[1:]
    assert [message.sequence for message in resent] == [1, 2]


@pytest.mark.parametrize("results", [[], ["one"], ["one", "two", "three"]])
async def test_an_answer_with_a_result_fewer_or_more_than_commands_answers_nobody(results: list[Value]) -> None:
    pipeline = opened()
    answer = pipeline.submit_batch(pack(["add", 1]) + pack(["add", 2]), 2)
    message = await pipeline.next_message()

    with pytest.raises(Exception, match="was not next"):
        pipeline.answered(message.sequence, 5, 1, results, [])

    assert answer is not None
    assert not answer.done()
    assert pipeline.unanswered() == [message]


@pytest.mark.parametrize("sequence", [2, 99])
async def test_a_problem_with_another_sequence_than_the_head_s_changes_nothing(sequence: int) -> None:
    pipeline = opened()
    messages, answers = await sent(pipeline, 2)

    for attempt in (lambda: pipeline.refused(sequence, REFUSED), lambda: pipeline.returned(sequence)):
        with pytest.raises(Exception, match="was not next"):
            attempt()

    assert pipeline.unanswered() == messages
    assert not any(answer.done() for answer in answers)


# The window


async def test_the_window_is_free_again_after_what_was_unknown() -> None:
    pipeline = opened(window=2)
    messages, _ = await sent(pipeline, 2)
    assert pipeline.submit(pack(1)) is None
    pipeline.interrupted()

    assert not pipeline.refused(messages[0].sequence, REFUSED)
    pipeline.open(1, 2, 1 << 20)

    assert len((await sent(pipeline, 2))[0]) == 2


@pytest.mark.parametrize("counted", ["commands", "bytes"])
async def test_after_a_refusal_the_window_holds_what_is_sent_again_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, counted: str
) -> None:
    most = 4
    if counted == "bytes":
        monkeypatch.setattr("quire.cluster.client.pipeline.WINDOW_BYTES", most * len(pack("a")))
    pipeline = opened(window=most if counted == "commands" else 100)
    message, _ = await together(pipeline, "a", "b", "c")

    assert pipeline.refused(message.sequence, {**REFUSED, "refused": [[1, "NO", "no"]]})

    assert [pipeline.submit(pack(command)) is None for command in "def"] == [False, False, True]


async def test_the_window_is_free_again_after_what_was_not_taken_and_is_not_sent_again() -> None:
    """Its callers were told that it is unknown when its deadline passed."""
    pipeline = opened(window=1, timeout_s=SOON_S)
    [message], [late] = await sent(pipeline, 1)
    with pytest.raises(OutcomeUnknown):
        await late
    assert pipeline.submit(pack("more")) is None

    pipeline.returned(message.sequence)

    assert len((await sent(pipeline, 1))[0]) == 1
    assert message not in pipeline.unanswered()


# Draining


async def test_who_waits_for_the_answers_waits_no_longer_than_for_the_last_one() -> None:
    pipeline = opened()
    messages, _ = await sent(pipeline, 2)
    draining = asyncio.create_task(pipeline.drained())

    pipeline.answered(messages[0].sequence, 5, 1, ["five"], [])
    await asyncio.sleep(0)
    assert not draining.done()
    pipeline.answered(messages[1].sequence, 6, 1, ["six"], [])

    async with asyncio.timeout(TIMEOUT_S / 10):
        await draining


async def test_who_waits_for_the_answers_waits_no_longer_than_the_last_deadline() -> None:
    pipeline = opened(timeout_s=SOON_S)
    messages, [late] = await sent(pipeline, 1)

    async with asyncio.timeout(TIMEOUT_S / 10):
        await pipeline.drained()

    assert type(late.exception()) is OutcomeUnknown
    assert pipeline.unanswered() == messages


# Halting


async def test_a_client_that_halts_on_failure_sends_each_command_alone_if_a_refusal_names_none_of_them() -> None:
    """It halts when one of them fails, not before: the refusal of all of them is no command's failure."""
    pipeline = opened(halt_on_failure=True)
    message, (first, second, third) = await together(pipeline, "a", "b", "c")
    after = pipeline.submit(pack("d"))
    assert after is not None

    assert pipeline.refused(message.sequence, UNNAMED)

    assert not after.done()
    await pipeline.next_message()
    pipeline.answered(1, 5, 1, ["five"], [])
    alone = await pipeline.next_message()
    assert (await first, alone.sequence, alone.commands) == ("five", 2, 1)
    assert pipeline.refused(alone.sequence, UNNAMED)
    assert pipeline.halted
    assert [type(answer.exception()) for answer in (second, third, after)] == [BadRequest, Halted, Halted]


async def test_a_client_that_halts_on_failure_goes_on_under_another_session_if_nothing_was_in_doubt() -> None:
    pipeline = opened(halt_on_failure=True)
    messages, answers = await sent(pipeline, 2)

    pipeline.left("the session is gone")

    assert not pipeline.halted
    pipeline.open(1, 100, 1 << 20)
    assert [await pipeline.next_message(), await pipeline.next_message()] == messages
    pipeline.answered(1, 5, 1, ["five"], [])
    pipeline.answered(2, 6, 1, ["six"], [])
    assert [await answer for answer in answers] == ["five", "six"]
