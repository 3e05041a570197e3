"""Rule 6 of `docs/protocol.md`: `epoch_start` first."""

from tests.rules.scenes import led, started


def test_a_leader_serves_nothing_before_its_epoch_start_is_committed() -> None:
    """A leader answers before it knows what is committed."""
    world = started()
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    world["n1"].nominate()
    world.run_until(lambda: world["n1"].leads)

    write = world["n1"].write("too early")
    assert world["n1"].rejected == [(write, "not_leader")]

    world["n2"].release()
    world.run_until(lambda: world.leader() is world["n1"])


def test_raft_8_a_leader_begins_its_epoch_with_a_record_of_its_own() -> None:
    """Raft: '... having each leader commit a blank no-op entry into the log at the start of its term.'"""
    leader = led()["n1"]
    record = leader.log.read(leader.start_index)

    assert record.value == {"type": "epoch_start", "node_id": "n1"}
    assert record.epoch == leader.state.promise.epoch
