"""The checks of marks and promises: what a power loss may take, and what it must not."""

import pytest

from quire.cluster.simulator.checks import Violation
from quire.cluster.simulator.history import History, run
from quire.cluster.simulator.node.node import Node
from quire.cluster.simulator.plan import Plan, plan_of
from quire.cluster.simulator.shadow import mark_in, promise_in
from quire.log.simulated.faulty import Keep

LIMIT_CALLS = 20_000


def quiet_history() -> History:
    """A history without faults of its own: a leader is elected and clients write."""
    history = History(Plan(plan_of(3).settings, ()))
    for node in history.nodes:
        history.nemesis.start(node)
    history.nodes[0].nominated = True
    for client in history.clients:
        history.schedule.later(0, client.begin)
    return history


def unsynced_mark(node: Node) -> bool:
    """Whether a power loss would leave this node an earlier mark with a lower commit_index."""
    cached, durable = mark_in(node.disk.content("mark")), mark_in(node.disk.durable_content("mark"))
    assert cached is not None
    return durable is not None and 0 < durable.commit_index < cached.commit_index


def node_with_an_unsynced_mark(history: History) -> Node:
    for _ in range(LIMIT_CALLS):
        history.schedule.run_next()
        for node in history.nodes:
            if node.runs and unsynced_mark(node):
                return node
    raise AssertionError("no mark waits for its sync")


def nothing(_name: str = "") -> bool:
    return False


def test_a_mark_whose_sync_fails_stops_the_node_and_may_fall_with_the_power_though_the_next_start_fails() -> None:
    history = quiet_history()
    node = node_with_an_unsynced_mark(history)
    before = mark_in(node.disk.content("mark"))
    node.condition.disk_failing = True
    node.disk.failing = lambda operation, name: operation == "sync" and name == "mark"
    node.disk.chance = nothing  # type: ignore[method-assign]  # What it did not sync is lost.
    for _ in range(LIMIT_CALLS):
        if not node.runs:
            break
        history.schedule.run_next()
    assert not node.runs, "a failed sync is final"
    node.disk.lose_power(Keep.NOTHING)
    history.nemesis.start(node)
    assert not node.runs, "its disk still fails"
    after = mark_in(node.disk.content("mark"))
    assert before is not None
    assert after is not None
    assert after.commit_index < before.commit_index
    node.disk.failing = None
    history.nemesis.start(node)
    assert node.runs


def test_a_synced_mark_that_falls_is_a_finding() -> None:
    history = quiet_history()
    node = node_with_an_unsynced_mark(history)
    early = node.disk.durable_content("mark")
    while node.runs and mark_in(node.disk.durable_content("mark")) == mark_in(early):
        history.schedule.run_next()
    node.die(keep=Keep.NOTHING)
    node.disk.replace("mark", early)
    with pytest.raises(Violation, match="a synced mark survives"):
        history.nemesis.start(node)


def test_a_synced_promise_that_falls_is_a_finding() -> None:
    history = quiet_history()
    node = history.nodes[0]
    early = node.disk.durable_content("promise")
    while promise_in(node.disk.durable_content("promise")) == promise_in(early):
        history.schedule.run_next()
    node.die(keep=Keep.NOTHING)
    node.disk.replace("promise", early)
    with pytest.raises(Violation, match="a synced promise survives"):
        history.nemesis.start(node)


@pytest.mark.full
def test_a_mark_that_says_where_a_reset_is_to_begin_the_log_claims_nothing_of_the_log_before() -> None:
    # The power goes as the mark is synced: on disk it names 230, and the log in memory still ends at 153.
    assert run(plan_of(24604).without_consumers()).failure == ""
