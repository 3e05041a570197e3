"""The client's stream executes each command once and in order, whatever happens to its connections."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.cluster.client import (
    BadRequest,
    Client,
    ClientError,
    CommandRefused,
    Halted,
    HistoryChanged,
    OutcomeUnknown,
    SessionExpired,
    SessionFenced,
    Unavailable,
    connect,
)
from quire.cluster.client.stream import CommandStream
from tests.cluster.scripted import silent
from tests.cluster.streaming import DEADLINE_S, Fault, StreamServer, answers_of, deaf_relay, streaming
from tests.cluster.test_client import closed_port
from tests.cluster.turning import late

BREAKING = [fault for fault in Fault if fault not in (Fault.SILENT, Fault.STOPPING, Fault.CHANGED)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.attempts.BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr("quire.cluster.client.attempts.BACKOFF_LONGEST_S", 0.01)
    monkeypatch.setattr("quire.cluster.client.pipeline.GATHERING_S", DEADLINE_S)  # Groups as the calls make them.


# Refusals


async def test_refused_commands_fail_alone_and_the_rest_is_resent_without_them() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures = [await cluster.submit(command) for command in ("a", "bad", "b", "bad", "c")]
        await server.heard(2)
        late = await cluster.submit("behind")
        server.answering.set()

        answers = await answers_of(*futures, late)

        assert [answer for answer in answers if not isinstance(answer, CommandRefused)] == [2, 3, 4, 5]
        assert [
            (answers[position].code, answers[position].position, answers[position].index) for position in (1, 3)
        ] == [("BAD", 0, None)] * 2
        assert server.executed == ["first", "a", "b", "c", "behind"]
        assert server.refusals == 1


async def test_a_batch_with_a_refused_command_fails_as_a_whole_and_names_the_places() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        before = await cluster.submit("before")
        batch = await cluster.submit_batch(["x", "bad", "y", "bad"])
        behind = await cluster.submit_batch(["z"])

        answers = await answers_of(before, batch, behind)

        assert (answers[0], answers[2].results) == (2, [3])
        assert [position for position, _, _ in answers[1].refused] == [1, 3]
        assert server.executed == ["first", "before", "z"]


async def test_a_malformed_command_fails_alone() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        futures = [await cluster.submit(command) for command in ("a", "odd", "b")]

        answers = await answers_of(*futures)

        assert (answers[0], answers[2]) == (2, 3)
        assert isinstance(answers[1], BadRequest)
        assert server.executed == ["first", "a", "b"]


async def test_a_command_that_apply_refuses_uses_its_sequence() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        futures = [await cluster.submit(command) for command in ("a", "over", "b")]
        answers = await answers_of(*futures)
        batch = await cluster.apply_batch(["over", "c"])

    assert (answers[0], answers[2], answers[1].code, answers[1].index) == (1, 3, "OVER", 4)
    assert (batch.results, batch.refused) == ([None, 5], [[0, "OVER", "too much"]])


async def test_with_halt_on_failure_nothing_is_sent_after_a_refusal() -> None:
    async with streaming() as server, connect(server.address, halt_on_failure=True) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures = [await cluster.submit_batch([command]) for command in ("a", "bad", "b")]
        await server.heard(2)
        futures.append(await cluster.submit_batch(["c"]))
        server.answering.set()

        answers = await answers_of(*futures)

        assert answers[0].results == [2]
        assert [type(answer) for answer in answers[1:]] == [CommandRefused, Halted, Halted]
        with pytest.raises(Halted):
            await cluster.submit("later")
        assert server.executed == ["first", "a"]


# Lost connections


@pytest.mark.parametrize("fault", BREAKING)
@pytest.mark.parametrize("position", range(4))
async def test_a_stream_lost_at_any_step_loses_and_repeats_nothing(fault: Fault, position: int) -> None:
    faults = [None] * position + [fault, fault]
    async with streaming(faults) as server, connect(server.address) as cluster:
        answers = [await cluster.apply(number) for number in range(3)]
        answers += await answers_of(*[await cluster.submit(number) for number in range(3, 50)])

        assert answers == list(range(1, 51))
        assert server.executed == list(range(50))


async def test_messages_in_doubt_are_resent_unchanged_under_their_sequences() -> None:
    async with streaming([None, Fault.NOT_TAKEN]) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures = [await cluster.submit("a"), await cluster.submit("b")]
        await server.heard(2)
        futures.append(await cluster.submit("c"))
        server.answering.set()

        assert await answers_of(*futures) == [2, 3, 4]
        assert server.streams[1][:2] == [(2, ["a", "b"]), (4, ["c"])]


async def test_a_command_refused_in_a_message_that_was_not_taken_fails_alone() -> None:
    async with streaming([None, None, Fault.BUSY]) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        first = await cluster.submit("a")
        await server.heard(2)
        futures = [await cluster.submit(command) for command in ("b", "bad", "c")]
        server.answering.set()

        answers = await answers_of(first, *futures)

        assert [answers[position] for position in (0, 1, 3)] == [2, 3, 4]
        assert isinstance(answers[2], CommandRefused)
        assert server.executed == ["first", "a", "b", "c"]


Call = tuple[str, ...]
SINGLES = st.sampled_from([("s",), ("s",), ("s",), ("bad",), ("over",), ("odd",)])
BATCHES = st.lists(st.sampled_from(["s", "s", "s", "bad", "over"]), min_size=1, max_size=4).map(
    lambda it: ("batch", *it)
)
FAULTS = st.lists(st.sampled_from([None, None, *BREAKING]), max_size=8)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SINGLES | BATCHES | st.just(("look",)), min_size=1, max_size=12), FAULTS, st.integers(1, 12))
def test_every_command_is_executed_once_in_order_and_gets_its_answer(
    calls: list[Call], faults: list[Fault | None], window: int
) -> None:
    async def run() -> None:
        async with streaming(faults, window=max(4, window)) as server:
            async with connect(server.address, timeout_s=DEADLINE_S) as cluster:
                submitted = [(call, await hand_in(cluster, server, number, call)) for number, call in enumerate(calls)]
                answers = await answers_of(*[future for _, future in submitted if future is not None])
            taken = [(number, call) for number, (call, future) in enumerate(submitted) if future is not None]
            refusing = any(command in ("bad", "odd") for _, call in taken for command in call)
            check(taken, answers, server, doubts=refusing and any(faults))

    asyncio.run(run())


async def hand_in(cluster: Client, server: StreamServer, number: int, call: Call) -> "asyncio.Future[Any] | None":
    kind, *commands = call
    if kind == "look":
        await cluster.ready(server.address)  # Meanwhile the stream goes on.
        return None
    if kind == "batch":
        return await cluster.submit_batch([named(number, command) for command in commands])
    return await cluster.submit(named(number, kind))


def named(number: int, command: str) -> str:
    return f"{command}{number}" if command in ("s", "over") else command


def check(calls: list[tuple[int, Call]], answers: list[Any], server: StreamServer, *, doubts: bool) -> None:
    """The server executed all submitted commands but those that checks refuse, and the answers say so.

    What is unknown may be executed. `doubts`: there may be some, since a message in doubt may be refused.
    """
    executed: list[str] = []
    for (number, call), answer in zip(calls, answers, strict=True):
        commands = [named(number, command) for command in (call[1:] if call[0] == "batch" else call)]
        is_next = server.executed[len(executed) : len(executed) + len(commands)] == commands
        if isinstance(answer, OutcomeUnknown):
            assert doubts
            executed += commands if is_next else []
        elif "bad" in commands:
            assert isinstance(answer, CommandRefused)
            assert (answer.index, answer.repeated) == (None, False)
        elif "odd" in commands:
            assert isinstance(answer, BadRequest)
        else:
            assert is_next
            numbers = [
                None if command.startswith("over") else len(executed) + at for at, command in enumerate(commands, 1)
            ]
            executed += commands
            if call[0] == "batch":
                assert answer.results == numbers
            elif numbers == [None]:
                assert isinstance(answer, CommandRefused)
                assert answer.code == "OVER"
            else:
                assert [answer] == numbers
    assert server.executed == executed


async def test_an_answer_above_the_limit_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.ANSWER_BYTES", 5000)
    async with streaming() as server, connect(server.address) as cluster:
        assert len((await cluster.apply_batch(["x"] * 900)).results) == 900
        too_long = await cluster.submit_batch(["x"] * 3000)
        await late(lambda: len(server.streams) > 2)  # It is sent again and again, and its answer refused.
        with pytest.raises(OutcomeUnknown, match="1009"):
            await too_long
        assert len(server.executed) == 3900


@pytest.mark.full
async def test_a_stream_whose_server_falls_silent_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.HEARTBEAT_S", 0.1)
    async with streaming() as server, deaf_relay(server.address) as relay:
        async with connect(f"{relay.address},{server.address}") as cluster:
            server.leader = relay.address
            await cluster.apply("first")
            relay.deaf = True
            server.leader = server.address
            assert await cluster.apply("second") == 2
        assert server.executed == ["first", "second"]


async def test_a_stream_goes_to_the_next_server_if_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.transport.STREAM_CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("quire.cluster.client.transport.READ_ATTEMPT_TIMEOUT_S", 0.1)
    async with silent() as nobody, streaming() as server, connect([nobody, server.address]) as cluster:
        server.leader = nobody
        await cluster.session()
        assert await cluster.apply("x") == 1


async def test_a_client_closes_in_time_even_if_its_session_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.stream.CLOSE_TIMEOUT_S", 0.1)
    async with streaming() as server, asyncio.timeout(DEADLINE_S):
        async with connect(server.address) as cluster:
            await cluster.apply("x")
            server.closing.clear()
        server.closing.set()


# Deadlines, cancelling, closing


async def test_a_command_never_sent_fails_as_unavailable_at_the_deadline() -> None:
    nobody = closed_port()
    async with connect(nobody, timeout_s=DEADLINE_S) as cluster:
        never_sent = asyncio.ensure_future(cluster.apply("x"))
        await late(lambda: "refuses" in failure_of(cluster))
        with pytest.raises(Unavailable, match=rf"available: {nobody} refuses connections, for {DEADLINE_S} s$"):
            await never_sent


def failure_of(cluster: Client) -> str:
    """Why the client's last attempt failed."""
    stream = vars(vars(cluster)["_connection"])["_stream"]
    return stream.pipeline.last_failure if stream is not None else ""


async def test_a_command_in_flight_is_unknown_at_the_deadline_and_keeps_its_sequence() -> None:
    async with streaming() as server, connect(server.address, timeout_s=DEADLINE_S) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        unanswered = await cluster.submit("late")
        await late(lambda: sum(map(len, server.streams)) == 2)
        with pytest.raises(OutcomeUnknown, match=rf"no answer within {DEADLINE_S} s"):
            await unanswered
        server.answering.set()

        assert await cluster.apply("next") == 3
        assert server.executed == ["first", "late", "next"]


async def test_a_command_that_a_busy_server_did_not_take_is_unavailable_and_never_sent() -> None:
    async with streaming([None]) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.faults = [Fault.STOPPING]
        not_taken = await cluster.submit("not taken")
        await late(lambda: server.turned_away >= 2)  # The first refusal has arrived by then.
        with pytest.raises(Unavailable, match="answered 503"):
            await not_taken
        server.stopping = False

        assert await cluster.apply("next") == 2
        assert server.executed == ["first", "next"]


async def test_a_command_in_doubt_stays_unknown_even_if_a_busy_server_does_not_take_it_again() -> None:
    async with streaming([None]) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.faults = [Fault.NOT_ANSWERED, Fault.STOPPING]
        in_doubt = await cluster.submit("executed")
        await late(lambda: server.turned_away >= 2)
        with pytest.raises(OutcomeUnknown):
            await in_doubt
        server.stopping = False

        assert await cluster.apply("next") == 3
        assert server.executed == ["first", "executed", "next"]


async def test_a_command_reported_as_unknown_and_provably_not_taken_is_never_resent() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        server.faults = [Fault.BUSY]
        not_taken = await cluster.submit("not taken")
        await late(lambda: sum(map(len, server.streams)) == 2)
        with pytest.raises(OutcomeUnknown):
            await not_taken
        server.answering.set()

        assert await cluster.apply("next") == 2
        assert server.executed == ["first", "next"]


async def test_submit_fails_as_unavailable_if_the_window_stays_full_until_the_deadline() -> None:
    async with streaming(window=1) as server, connect(server.address, timeout_s=DEADLINE_S) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        stuck = await cluster.submit("stuck")
        no_room = asyncio.ensure_future(cluster.submit("no room"))
        await late(lambda: sum(map(len, server.streams)) == 2)
        with pytest.raises(Unavailable, match=rf"available: the window was full for {DEADLINE_S} s; "):
            await no_room
        assert isinstance((await answers_of(stuck))[0], OutcomeUnknown)
        server.answering.set()

        assert await cluster.apply("next") == 3


async def test_a_cancelled_future_drops_its_answer_and_nothing_else() -> None:
    async with streaming([None, Fault.NOT_ANSWERED]) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        futures = [await cluster.submit(command) for command in ("a", "dropped", "b")]
        futures[1].cancel()

        assert await answers_of(futures[0], futures[2]) == [2, 4]
        assert server.executed == ["first", "a", "dropped", "b"]


async def test_a_submit_cancelled_while_it_waits_for_space_submits_nothing() -> None:
    async with streaming(window=1) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        first = await cluster.submit("a")
        impatient = asyncio.ensure_future(cluster.submit("given up"))
        patient = asyncio.ensure_future(cluster.apply("b"))
        await server.heard(2)
        impatient.cancel()
        server.answering.set()

        assert await answers_of(first, patient) == [2, 3]
        assert server.executed == ["first", "a", "b"]


async def test_closing_waits_for_outstanding_answers() -> None:
    async with streaming([None, Fault.NOT_ANSWERED]) as server:
        async with connect(server.address) as cluster:
            await cluster.apply("first")
            futures = [await cluster.submit(number) for number in range(10)]
        assert [future.result() for future in futures] == list(range(2, 12))


async def test_an_error_in_the_block_closes_at_once_and_fails_every_outstanding_command() -> None:
    futures: list[asyncio.Future[Any]] = []

    async def fail_with_things_waiting(server: StreamServer) -> None:
        async with connect(server.address) as cluster:
            await cluster.apply("first")
            server.answering.clear()
            futures.append(await cluster.submit("sent"))
            await server.heard(2)
            futures.append(await cluster.submit("not sent"))
            raise KeyError

    async with streaming() as server:
        with pytest.raises(KeyError):
            await fail_with_things_waiting(server)
        sent, not_sent = await answers_of(*futures)
        server.answering.set()

    assert (type(sent), type(not_sent)) == (OutcomeUnknown, Unavailable)
    assert "not sent" not in server.executed


async def test_a_closed_client_says_how_to_open_one() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
    with pytest.raises(RuntimeError, match=r"with quire\.connect"):
        await cluster.submit("x")


# Sessions


async def test_a_named_session_continues_where_its_previous_holder_stopped_and_fences_it() -> None:
    async with streaming() as server, connect(server.address, session="billing") as old:
        await old.apply_batch(["a", "b"])
        async with connect(server.address, session="billing") as new:
            assert (await new.session()).sequence == 2
            assert await new.apply("c") == 3
            for _ in range(2):
                with pytest.raises(SessionFenced):
                    await old.apply("too late")
        assert server.executed == ["a", "b", "c"]
    assert "DELETE" not in dict(server.calls)


async def test_a_command_in_doubt_of_a_fenced_client_is_unknown() -> None:
    async with streaming() as server, connect(server.address, session="billing") as old:
        await old.apply("a")
        server.answering.clear()
        server.faults = [Fault.NOT_ANSWERED]
        lost = await old.submit("lost")
        await server.heard(2)
        async with connect(server.address, session="billing") as new:
            await new.session()
            server.answering.set()
            answers = await answers_of(lost)
        with pytest.raises(SessionFenced):
            await old.submit("behind")

    assert isinstance(answers[0], OutcomeUnknown)


async def test_an_evicted_session_is_replaced_and_its_unexecuted_commands_go_under_the_next() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("a")
        server.sessions.clear()
        answers = [await cluster.submit(command) for command in ("b", "c", "d")]
        assert await answers_of(*answers) == [2, 3, 4]
        assert await cluster.apply("e") == 5
        assert server.executed == ["a", "b", "c", "d", "e"]
        assert len(server.sessions) == 1


async def test_commands_in_doubt_of_an_evicted_session_are_unknown_and_later_ones_go_under_the_next() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("a")
        server.evicts_at = "lost"
        lost = await cluster.submit("lost")
        await server.heard(3)
        behind = await cluster.submit("behind")
        server.answering.set()
        answers = await answers_of(lost, behind)
    assert isinstance(answers[0], OutcomeUnknown)
    assert answers[1] == 3
    assert server.executed == ["a", "lost", "behind"]


async def test_with_halt_on_failure_nothing_is_sent_after_a_command_in_doubt_of_an_evicted_session() -> None:
    async with streaming() as server, connect(server.address, halt_on_failure=True) as cluster:
        await cluster.apply("a")
        server.evicts_at = "lost"
        lost = await cluster.submit("lost")
        await server.heard(3)
        behind = await cluster.submit("behind")
        server.answering.set()
        answers = await answers_of(lost, behind)
        with pytest.raises(Halted):
            await cluster.apply("later")
    assert [type(answer) for answer in answers] == [OutcomeUnknown, Halted]
    assert server.executed == ["a", "lost"]


async def test_a_closed_named_session_is_not_reopened_silently() -> None:
    async with streaming() as server, connect(server.address, session="billing") as cluster:
        await cluster.apply("a")
        server.sessions.clear()
        for _ in range(2):
            with pytest.raises(SessionExpired):
                await cluster.apply("b")
        with pytest.raises(ClientError):
            await cluster.session()


@pytest.mark.parametrize("name", [None, "billing"])
async def test_after_a_recovery_nothing_in_doubt_is_sent_again_and_no_other_session_is_opened(name: str | None) -> None:
    async with streaming() as server, connect(server.address, session=name) as cluster:
        await cluster.apply("a")
        server.evicts_at = "lost"
        lost = await cluster.submit("lost")
        await server.heard(3)
        behind = await cluster.submit("behind")
        server.history = "second"
        server.answering.set()
        answers = await answers_of(lost, behind)
        with pytest.raises(HistoryChanged):
            await cluster.apply("later")
        opened = [call for call in server.calls if call == ("POST", "/sessions")]

    assert [type(answer) for answer in answers] == [OutcomeUnknown, HistoryChanged]
    assert (server.executed, len(opened)) == (["a", "lost"], 1)


async def test_a_stream_that_hides_that_it_was_cancelled_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task group whose own task fails while it is cancelled raises that failure, and no CancelledError."""
    begun, hidden = asyncio.Event(), 0

    async def breaks(_: CommandStream) -> None:
        nonlocal hidden
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            hidden += 1

    monkeypatch.setattr(CommandStream, "_attempt", breaks)
    async with streaming() as server, asyncio.timeout(DEADLINE_S):
        client = connect(server.address)
        await client.__aenter__()
        submitted = asyncio.ensure_future(client.submit(["add", 1]))
        await begun.wait()
        await client.__aexit__(ZeroDivisionError, None, None)
        with pytest.raises(Unavailable):
            await submitted
    assert hidden == 1
