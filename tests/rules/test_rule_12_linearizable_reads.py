"""Rule 12 of `docs/protocol.md`: linearizable reads."""

from quire.replication.core import events
from tests.rules.scenes import led


def test_a_linearizable_read_waits_for_a_majority_that_heard_the_leader_after_it_arrived() -> None:
    """A deposed leader answers from the past."""
    world = led()
    leader = world["n1"]
    leader.step(events.ReadRequested(1))
    world.run_until(lambda: leader.reads.get(1) == leader.state.commit_index)

    world.isolate("n1")
    leader.step(events.ReadRequested(2))
    world.run_for(1.2)

    assert leader.reads[2] is None
