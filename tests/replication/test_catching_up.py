"""What a node knows to have been committed before it started, and what it is while it has not applied that."""

import pytest

from quire.log.simulated import faulty
from quire.replication.core import CoreOptions, events
from quire.replication.core.fitness import Level
from quire.replication.core.messages import Last
from quire.replication.core.status import Backlog
from tests.replication.installing import behind, fetched, fetching
from tests.replication.world import SimNode, World
from tests.rules.scenes import ask, led, settled, suggested

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000
MEASURE_S = 0.06  # A tick and a little.
RECORDS = 5
LATE = type("Late", (SimNode,), {"apply_to": property(lambda _: 0).setter(lambda *_: None)})
"""A node whose machine applies nothing."""


def levels(node: SimNode) -> list[Level]:
    """All levels at which it is, the highest first."""
    status = node.core.status().fitness if node.core is not None else None
    return [] if status is None else [held.level for held in (status, *status.lower) if held.level]


def written(*node_ids: str) -> World:
    """A cluster with some commits, all of them applied."""
    world = led(*node_ids)
    for number in range(RECORDS):
        world["n1"].write(number)
        world.run_for(0.05)
    settled(world, world["n1"])
    return world


def restart(node: SimNode, keep: faulty.Keep = faulty.Keep.EVERYTHING) -> None:
    node.crash(keep)
    node.world.start(node.node_id)


def test_what_the_mark_says_is_a_backlog_from_the_first_measure_and_is_left_at_once() -> None:
    world = written()
    world.isolate("n3")
    node = world["n3"]
    node.__class__ = LATE
    restart(node)
    assert node.state.backlog.end_index == node.log.mark_commit_index > RECORDS
    assert levels(node) == []

    world.run_for(MEASURE_S)

    assert levels(node) == [Level.APPLY_LAG]
    status = node.core.status() if node.core is not None else None
    assert status is not None
    assert f"{node.state.reported_apply} records that were committed before" in status.fitness.reason
    node.__class__ = SimNode
    node.apply_to = node.state.reported_apply
    world.run_for(MEASURE_S)
    assert levels(node) == []


def test_a_node_with_nothing_to_apply_at_its_start_is_fit_from_the_first_measure() -> None:
    world = written()
    world.isolate("n3")
    restart(world["n3"])
    world.run_for(MEASURE_S)
    assert levels(world["n3"]) == []


def test_the_first_commit_index_of_a_leader_that_serves_ends_the_backlog_and_a_later_one_does_not_move_it() -> None:
    world = written()
    node, leader = world["n3"], world["n1"]
    restart(node, faulty.Keep.NOTHING)  # The mark is behind what was committed.
    assert node.state.backlog.end_index < leader.state.commit_index
    assert not node.state.backlog.is_known

    world.run_until(lambda: node.core is not None and node.core.status().backlog.is_known)

    ended = node.state.backlog.end_index
    assert ended == leader.state.commit_index
    leader.write("later")
    world.run_until(lambda: node.state.commit_index > ended)
    assert node.state.backlog.end_index == ended


def test_a_backlog_that_a_leader_made_up_ends_when_another_that_serves_is_heard() -> None:
    world = written()
    node, never = world["n3"], 1 << 62
    restart(node)
    world.run_until(lambda: node.has_stream and node.following.is_matched)
    stream = node.upstream.stream_id
    node.step(events.FramesArrived(stream, b"", node.state.log.last_epoch, never, never))
    assert node.state.backlog == Backlog(never, is_known=True)

    node.step(events.StreamClosed(stream))
    world.run_until(lambda: node.state.backlog.end_index != never)
    assert node.state.backlog == Backlog(world["n1"].state.commit_index, is_known=True)


def test_a_backlog_that_a_leader_made_up_ends_when_the_node_itself_serves() -> None:
    world = written()
    node = world["n3"]
    node.state.backlog = Backlog(1 << 62, is_known=True)
    world["n1"].crash()
    suggested(node, by_control_plane=True)
    world.run_until(lambda: node.leads and node.leading.serving)
    assert node.state.backlog == Backlog(node.state.commit_index, is_known=True)


def test_what_a_leader_that_does_not_serve_yet_says_ends_no_backlog() -> None:
    world = written()
    for node in world.nodes.values():
        node.crash(faulty.Keep.NOTHING)
    world.start()
    suggested(world["n1"], by_control_plane=True)
    world["n2"].hold_flush = world["n3"].hold_flush = True
    world.run_until(lambda: world["n1"].leads and world["n2"].core is not None and world["n2"].has_stream)
    world.run_for(0.3)
    follower = world["n2"]
    assert [world["n1"].leading.serving, follower.state.backlog.is_known] == [False, False]

    world["n2"].release()
    world["n3"].release()
    world.run_until(lambda: follower.state.backlog.is_known)

    assert world["n1"].leading.serving
    assert follower.state.backlog.end_index > world["n1"].start_index


def test_a_leader_knows_its_backlog_once_it_serves() -> None:
    world = written()
    for node in world.nodes.values():
        node.crash(faulty.Keep.NOTHING)
    world.start()
    leader = world.elect("n1")
    assert leader.state.backlog.is_known
    ended = leader.state.backlog.end_index
    assert leader.start_index < ended
    leader.write("later")
    world.run_for(0.3)
    assert (leader.state.commit_index > ended, leader.state.backlog.end_index) == (True, ended)


def test_after_an_install_the_backlog_is_not_known_until_the_next_stream_says_it() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.state.backlog_ends(0)  # As of a node that fell behind while it ran.
    known: list[bool] = []
    world.watch = lambda who, *_: known.append(who.state.backlog.is_known) if who is node else None
    world["n1"].write("after")
    world.run_for(0.3)
    fetched(node, fetch)

    world.run_until(lambda: node.state.commit_index > fetch.index)

    assert False in known
    assert node.state.backlog.is_known
    assert node.state.backlog.end_index > fetch.index


def test_a_node_with_a_backlog_promises_and_a_fit_one_is_elected_before_it() -> None:
    world = written()
    late = world["n1"]
    late.__class__ = LATE
    late.crash(faulty.Keep.EVERYTHING)
    world["n2"].crash(faulty.Keep.EVERYTHING)
    world.start()
    suggested(late, by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is not late
    assert levels(late) == [Level.APPLY_LAG]
    leader = world.leader()
    assert leader is not None
    assert ask(late, leader.state.promise.epoch + 5, "n3", last=Last(1 << 20, 1 << 40))


@pytest.mark.parametrize("count", [1, 3])
def test_where_all_have_a_backlog_somebody_is_elected(count: int) -> None:
    world = written(*("n1", "n2", "n3")[:count])
    nodes = list(world.nodes.values())
    for node in nodes:
        node.__class__ = LATE
        node.crash(faulty.Keep.EVERYTHING)
    world.start()

    world.run_until(lambda: any(node.leads and node.leading.serving for node in nodes), within_s=20 * TIMEOUT_S)

    assert all(levels(node) == [Level.APPLY_LAG] for node in nodes)
