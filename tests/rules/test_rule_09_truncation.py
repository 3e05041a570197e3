"""Rule 9 of `docs/protocol.md`: truncation."""

from quire.replication.core import events
from quire.replication.core.messages import OpenAnswer, OpenVerb
from tests.replication.world import values
from tests.rules.scenes import led, suggested


def test_only_the_stream_opened_last_truncates() -> None:
    """The first opening's truncation, delayed, cuts what the second one acknowledged."""
    world = led()
    follower = world["n2"]
    earlier = follower.upstream.stream_id
    follower.step(events.StreamClosed(earlier))
    world.run_until(lambda: follower.has_stream and follower.upstream.stream_id != earlier)
    world.run_for(0.1)

    follower.step(events.OpenAnswered(earlier, OpenAnswer(OpenVerb.TRUNCATE, 1, 0, "")))
    world.run_for(0.1)

    assert follower.truncations == []
    assert follower.halted is None


def test_kip_101_scenario_1_a_restarted_follower_does_not_cut_what_it_acknowledged() -> None:
    """Truncating to the high watermark loses a record if the leader fails next: it lags by a round trip.

    Here only an opening truncates, by epochs; a restart keeps what is durable.
    """
    world = led()
    world["n3"].crash()
    world["n1"].write("acknowledged")
    world.run_until(lambda: world["n1"].state.commit_index == world["n1"].log.tail.index)
    world["n2"].crash()  # before it heard that the record is committed, for all it knows
    world["n2"].start()
    world["n1"].crash()
    world["n3"].start()

    suggested(world["n3"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is world["n2"]
    assert values(world["n2"]) == ["acknowledged"]
