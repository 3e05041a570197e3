"""What "Viewstamped Replication Revisited" (Liskov and Cowling, 2012) asks of a view change, in this log's words.

There a view is an epoch, an op-number an index, a primary a leader.
"""

from quire.replication.core.messages import Last
from tests.paper.scenes import led, settled, suggested
from tests.replication.world import values


def test_4_2_the_new_view_starts_from_the_log_of_the_latest_view_and_of_those_the_longest() -> None:
    """The new primary takes the log of the largest normal view, and of those the one with the largest op-number.

    Here the log stays where it is and the candidate makes way for whoever has it.
    """
    assert Last(3, 1) > Last(2, 9) > Last(2, 8)
    world = led("n1", "n2", "n3", "n4", "n5")
    for behind in ("n4", "n5"):
        world.isolate(behind)
    world["n1"].write("a")
    world.run_until(lambda: world["n3"].apply_to == world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()

    suggested(world["n5"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    leader = world.leader()
    assert leader is not None
    assert leader.node_id in ("n2", "n3")
    assert values(leader) == ["a"]


def test_8_1_an_operation_that_committed_survives_into_all_later_views() -> None:
    """Every majority of a view change meets every majority that committed."""
    world = led("n1", "n2", "n3", "n4", "n5")
    world["n1"].write("committed")
    world.run_until(lambda: world["n1"].state.commit_index == world["n1"].log.tail.index)
    for lost in ("n1", "n2"):
        world[lost].crash()

    world.run_until(lambda: world.leader() is not None, within_s=10)

    leader = world.leader()
    assert leader is not None
    assert values(leader) == ["committed"]


def test_4_3_a_replica_that_crashed_may_not_forget_the_view_in_which_it_took_part() -> None:
    """There a replica that recovers asks the others for its state before it takes part in a view change again.

    Here what it promised is on its disk, so it takes part at once, and still helps no older leader.
    """
    world = led()
    promise = world["n2"].state.promise
    world["n2"].crash()
    world["n2"].start()

    assert world["n2"].state.promise == promise
    settled(world, world["n1"])


def test_4_1_a_backup_in_another_view_does_not_take_part() -> None:
    """Replicas process messages only of the view that they are in: here, acks of the promise that they hold."""
    world = led()
    world.isolate("n1")
    suggested(world["n2"], by_control_plane=True)
    world.run_until(lambda: world.leader() is world["n2"], within_s=5)
    old = world["n1"]
    before = old.state.commit_index

    old.write("nobody follows")
    world.heal()
    settled(world, world["n2"])

    assert old.state.promise.candidate == "n2"
    assert values(old) == []
    assert before <= old.state.commit_index
