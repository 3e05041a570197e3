"""Rules 6 and 7: what commits, and when."""

from tests.replication.world import World, values


def serving(*node_ids: str) -> World:
    world = World(*node_ids)
    world.start()
    world.elect(node_ids[0])
    return world


def test_a_write_commits_on_all_nodes() -> None:
    world = serving("n1", "n2", "n3")

    world["n1"].write("a", "b")

    end = world["n1"].log.tail.index
    world.run_until(lambda: all(node.apply_to == end for node in world.nodes.values()))
    assert all(values(node) == ["a", "b"] for node in world.nodes.values())


def test_a_single_node_is_its_own_majority() -> None:
    world = serving("n1")

    world["n1"].write("a")

    world.run_until(lambda: world["n1"].apply_to == world["n1"].log.tail.index)
    assert values(world["n1"]) == ["a"]


def test_nothing_commits_before_the_leaders_own_flush() -> None:
    # Both followers hold a frame that the leader has not flushed.
    world = serving("n1", "n2", "n3")
    before = world["n1"].state.commit_index
    world["n1"].hold_flush = True

    world["n1"].write("a")

    world.run_until(lambda: all(world[node].log.durable_index > before for node in ("n2", "n3")))
    world.run_for(0.3)
    assert world["n1"].state.commit_index == before
    world["n1"].release()
    assert world["n1"].state.commit_index == before + 1


def test_nothing_commits_before_a_majority_has_flushed() -> None:
    world = serving("n1", "n2", "n3")
    before = world["n1"].state.commit_index
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True

    world["n1"].write("a")

    world.run_for(0.3)
    assert world["n1"].state.commit_index == before
    assert world["n2"].log.tail.index == before + 1
    world["n2"].release()
    world.run_until(lambda: world["n1"].state.commit_index == before + 1)


def test_a_leader_that_loses_power_before_its_flush_loses_nothing_acknowledged() -> None:
    world = serving("n1", "n2", "n3")
    acknowledged = world["n1"].state.commit_index
    world["n1"].hold_flush = True
    world["n1"].write("held by both followers")
    world.run_until(lambda: all(world[node].log.durable_index > acknowledged for node in ("n2", "n3")))

    world["n1"].crash()
    leader = world.elect("n2")
    leader.write("after")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)

    world["n1"].nominated = False
    world["n1"].start()
    world.run_until(lambda: world["n1"].apply_to == leader.log.tail.index)
    assert values(world["n1"]) == values(leader) == ["held by both followers", "after"]


def test_records_of_an_older_epoch_commit_only_with_one_of_the_leaders_own() -> None:
    # Raft 5.4.2 and its figure 8.
    world = serving("n1", "n2", "n3")
    world.cut(("n1", "n3"), ("n3", "n1"))
    for node in ("n1", "n2"):
        world[node].hold_flush = True
    world["n1"].write("old")
    world.run_until(lambda: world["n2"].log.tail.index == world["n1"].log.tail.index)
    world["n2"].release()
    world["n1"].crash()

    leader = world.elect("n2")

    assert leader.start_index == leader.log.tail.index - 1
    assert leader.state.commit_index > leader.start_index
    assert values(leader) == ["old"]


def test_a_follower_commits_no_further_than_its_stream_has_matched() -> None:
    world = serving("n1", "n2", "n3")
    world["n2"].hold_flush = True

    for number in range(5):
        world["n1"].write(number)
    world.run_for(0.3)

    follower = world["n2"]
    assert follower.state.commit_index <= follower.log.tail.index
    assert follower.apply_to <= follower.log.durable_index
