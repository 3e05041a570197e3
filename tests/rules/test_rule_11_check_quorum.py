"""Rule 11 of `docs/protocol.md`: check quorum."""

from tests.rules.scenes import led


def test_a_leader_that_no_majority_hears_steps_down() -> None:
    """An isolated leader keeps its clients waiting for ever."""
    world = led()

    world.isolate("n1")
    world.run_for(1.2)

    assert not world["n1"].leads
