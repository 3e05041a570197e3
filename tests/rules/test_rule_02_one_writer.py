"""Rule 2 of `docs/protocol.md`: one writer."""

from quire.replication.core import Promise
from tests.rules.scenes import ask, led


def test_a_promise_waits_for_the_flush_and_nothing_of_the_old_epoch_is_acknowledged_after_it() -> None:
    """A follower promises e2 while its e1 flush runs, then acks."""
    world = led()
    follower = world["n2"]
    follower.hold_flush = True
    world["n1"].write("a")
    world.run_until(lambda: bool(follower.held))

    assert not ask(follower, 50, "n3")  # Its disk is busy with the flush: not yet.
    acks = len(follower.acked)
    follower.release()
    world.run_for(0.005)

    assert follower.running.promises.promise == Promise(50, "n3", 1)
    # The flush ended before the promise was made: its ack left before it, and was the last.
    assert len(follower.acked) <= acks + 1
