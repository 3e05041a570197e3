"""Rule 13 of `docs/protocol.md`: nomination."""

from quire.replication.core.election import FALLBACK_TIMEOUTS
from tests.rules.scenes import led, settled, started, suggested


def test_a_nomination_is_a_level_and_any_voter_may_when_there_is_none() -> None:
    """A nomination that came too early is lost; a control plane that is down takes the cluster with it."""
    world = led()
    suggested(world["n3"], by_control_plane=True)  # n1 leads: nothing happens, and nothing is forgotten
    world.run_for(1)
    world["n1"].crash()
    world.run_until(lambda: world.leader() is world["n3"], within_s=1)

    suggested(world["n3"], by_control_plane=False)
    world["n1"].start()
    settled(world, world["n3"])
    world["n3"].crash()
    world.run_until(lambda: world.leader() is not None, within_s=FALLBACK_TIMEOUTS + 2)


def test_nothing_that_a_rule_forbids_follows_from_a_nomination() -> None:
    """The control plane is not trusted: all of them are told that they are the one."""
    world = started()
    for node in world.nodes.values():
        suggested(node, by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)
    world.run_for(5)

    assert sum(node.leads for node in world.nodes.values()) == 1
