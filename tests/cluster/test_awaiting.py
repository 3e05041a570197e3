"""A node that waits says for whom, and what each answered: the same in readiness, status and the journal."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, DummyCookieJar
from structlog.testing import capture_logs

from quire.cluster.client import Unavailable, connect
from quire.cluster.config.serve import ServeConfig
from quire.cluster.node.views.awaiting import SAY_AGAIN_S, Reminder, log_waits, no_leader_sentence
from quire.replication.core import CoreOptions, events
from tests.cluster.running import RunningCluster, free_addresses, running_cluster, started
from tests.replication.world import SimNode, World
from tests.rules.scenes import led
from tests.rules.scenes import started as world_of
from tests.tuned import tuned

DEADLINE_S = 30.0
TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000


def sentence(node: SimNode, failures: Mapping[str, str]) -> str:
    assert node.core is not None
    return no_leader_sentence(node.core.status(), failures)


def hears_nobody(node: SimNode) -> bool:
    return node.core is not None and node.core.leader_id is None


# What the core knows


def test_a_voter_that_hears_a_leader_is_named_with_its_refusal() -> None:
    world = led()
    world["n1"].write("a")
    world.run_for(TIMEOUT_S)
    world.cut(("n1", "n3"), ("n3", "n1"))
    node = world["n3"]
    node.step(events.LinkDown("n1"))
    world.run_until(lambda: hears_nobody(node) and "refused" in sentence(node, {}))

    assert sentence(node, {"n1": "connection refused"}) == (
        "no leader is heard; promised epoch 1 to n1; n1: connection refused; n2: connected, refused the pre-vote (it "
        "hears a leader, or lets another candidate go first), holds epoch 1"
    )


@pytest.mark.parametrize(
    ("voters", "down", "said"),
    [
        (("n1", "n2"), ("n2",), "1 of 2 voters is no majority: start n2"),
        (("n1", "n2", "n3"), ("n2", "n3"), "1 of 3 voters is no majority: start n2 or n3"),
        (("n1", "n2", "n3", "n4"), ("n3", "n4"), "2 of 4 voters are no majority: start n3 or n4"),
        (
            ("n1", "n2", "n3", "n4", "n5"),
            ("n2", "n4", "n5", "n3"),
            "1 of 5 voters is no majority: start 2 of n2, n3, n4, n5",
        ),
    ],
)
def test_voters_that_are_no_majority_are_counted_and_those_to_start_named(
    voters: tuple[str, ...], down: tuple[str, ...], said: str
) -> None:
    world = world_of(*voters)
    assert "no majority" not in sentence(world["n1"], {})
    for node in down:
        world["n1"].step(events.LinkDown(node))
    assert said in sentence(world["n1"], {}).split("; ")


def test_a_voter_whose_log_is_longer_is_named_so() -> None:
    world = led()
    world.isolate("n3")
    world["n1"].write("a")
    world.run_for(TIMEOUT_S)
    world["n1"].crash()
    world.cut(("n1", "n3"), ("n3", "n1"))
    world["n2"].hold_flush = True  # It stores no promise, so it cannot be elected.
    world.heal()
    node = world["n3"]
    world.run_until(lambda: hears_nobody(node) and "n2: connected, refused" in sentence(node, {}))
    assert "n2: connected, refused the pre-vote (its log is longer), holds epoch 1" in sentence(node, {})
    assert "n1: not reached yet" in sentence(node, {})


def test_voters_that_would_vote_and_are_too_few_are_named_so() -> None:
    world = World("n1", "n2", "n3", "n4", "n5")
    world.start("n1", "n2")
    node = world["n1"]
    world.run_until(lambda: "would vote" in sentence(node, {}))
    assert sentence(node, {}).startswith(
        "no leader is heard; 2 of 5 voters are no majority: start n3 or n4 or n5; "
        "n2: connected, would vote for this node, holds epoch 0; "
    )
    assert sentence(node, {}).endswith("n5: not reached yet")


def test_what_was_answered_before_a_leader_was_heard_is_forgotten() -> None:
    world = world_of()
    world.isolate("n3")
    leader = world.elect("n1")
    assert leader.leads
    world.run_for(2 * TIMEOUT_S)
    assert all(node.core is not None and not node.core.status().pre_votes for node in (leader, world["n2"]))


# When it is said


def test_a_reminder_is_due_when_its_patience_is_over_and_then_every_ten_seconds() -> None:
    reminder = Reminder(1.0)
    due = [at / 2 for at in range(50) if reminder.is_due(at / 2, holds=True)]
    assert due == [1.0, 1.0 + SAY_AGAIN_S, 1.0 + 2 * SAY_AGAIN_S]


def test_a_reminder_whose_cause_comes_and_goes_is_due_no_more_often() -> None:
    reminder = Reminder(0.0)
    due = [at for at in range(25) if reminder.is_due(float(at), holds=at % 2 == 0)]
    assert due == [0, 10, 20]


@pytest.mark.asyncio
async def test_who_is_waited_for_is_logged_at_once_and_every_ten_seconds_until_the_cluster_is_formed() -> None:
    forming = SimpleNamespace(awaited=lambda: "n2: connection refused, n3: reached, waits too")
    node = SimpleNamespace(forming=forming, formed=None, leader_id=None, config=SimpleNamespace(join=()))
    over = asyncio.Event()
    times = iter([0.0, 0.5, 9.5, 10.0, 19.5, 20.0, 30.0])

    def clock() -> float:
        at = next(times, None)
        if at is None:
            over.set()
            return 30.0
        if at == 30.0:
            node.forming = None
        return at

    with capture_logs() as logged:
        looking = asyncio.create_task(log_waits(cast("Any", node), 1.0, 0.0, clock))
        async with asyncio.timeout(DEADLINE_S):
            await over.wait()
        looking.cancel()
    assert [(line["event"], line["reason"].partition(": ")[2]) for line in logged] == [
        ("waiting for members", "n2: connection refused, n3: reached, waits too")
    ] * 3


# Real nodes


async def until(cluster: RunningCluster, node_id: str, holds: Callable[[list[str]], bool]) -> list[str]:
    """The reasons of `/readyz`, once they are as wanted."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds(reasons := (await cluster.ask(node_id, "GET", "/readyz")).document["reasons"]):
            pass
    return list(reasons)


@pytest.mark.asyncio
async def test_at_a_first_start_with_two_or_one_of_three_down_the_others_say_whom_they_reached(tmp_path: Path) -> None:
    members: dict[str, str] = dict(zip(("n1", "n2", "n3"), free_addresses(3), strict=True))
    alone = ""
    async with ClientSession(cookie_jar=DummyCookieJar()) as session:
        cluster = RunningCluster(session)
        with capture_logs() as journal:
            try:
                for node_id in ("n1", "n2"):
                    config = tuned(
                        ServeConfig, node=node_id, listen=members[node_id], members=members, data_dir=tmp_path / node_id
                    )
                    cluster.nodes[node_id] = await started(config)
                    if node_id == "n1":
                        [alone] = await until(cluster, "n1", lambda reasons: reasons[0].count("refused") == 2)
                [reason] = await until(
                    cluster, "n1", lambda reasons: "refused" in reasons[0] and "waits too" in reasons[0]
                )
                status = (await cluster.ask("n1", "GET", "/status")).document
            finally:
                for running in cluster.nodes.values():
                    await running.stop()
    assert reason == (
        "the cluster is not formed yet; it forms once all members are waiting: "
        f"n2: reached, waits too, n3: connection refused ({members['n3']})"
    )
    refused = (f"{node_id}: connection refused ({members[node_id]})" for node_id in ("n2", "n3"))
    assert alone == f"the cluster is not formed yet; it forms once all members are waiting: {', '.join(refused)}"
    assert status["reasons"] == [reason]
    said = [line["reason"] for line in journal if line["event"] == "waiting for members"]
    assert len(said) == 2  # Each node at once; and not again within ten seconds.
    assert all(text.startswith(reason.partition(": ")[0]) for text in said)


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_node_in_a_minority_says_whom_it_reaches_in_readyz_as_in_the_journal(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"election_timeout_ms": 1_000, "heartbeat_ms": 100}
    with capture_logs() as journal:
        async with running_cluster(tmp_path, **settings) as cluster:
            node = cluster.nodes["n2"].node
            await cluster.stop("n1")
            await cluster.stop("n3")
            [reason] = await until(cluster, "n2", lambda reasons: reasons[0].count("connection refused") == 2)
            members = node.config.members
            assert reason.startswith("no leader is heard; promised epoch ")
            assert reason.endswith(
                f"; n1: connection refused ({members['n1']}); n3: connection refused ({members['n3']})"
            )
            assert (await cluster.ask("n2", "GET", "/status")).document["reasons"] == [reason]
            too_few = "knows no leader: 1 of 3 voters is no majority: start n1 or n3$"
            async with connect(members["n2"], timeout_s=2 * DEADLINE_S) as client, asyncio.timeout(DEADLINE_S):
                with pytest.raises(Unavailable, match=too_few):
                    await client.append("x")
            async with asyncio.timeout(DEADLINE_S):
                while not any(line["event"] == "waiting for a leader" for line in journal):
                    await cluster.ask("n2", "GET", "/healthz")  # What the node logs by itself.
            with capture_logs() as now:
                looking = asyncio.create_task(log_waits(node, 0.0, 1.0, lambda: 0.0))
                async with asyncio.timeout(DEADLINE_S):
                    while not any(line["event"] == "waiting for a leader" for line in now):
                        await cluster.ask("n2", "GET", "/healthz")
                looking.cancel()
    assert [line["reason"] for line in now if line["event"] == "waiting for a leader"] == [reason]
