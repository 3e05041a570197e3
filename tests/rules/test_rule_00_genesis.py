"""Rule 0 of `docs/protocol.md`: genesis."""

from quire.replication.core import Identity
from quire.replication.core.membership.formation import Formation
from quire.replication.core.messages import NO_PROMISE, PreVoteAnswer
from tests.replication.world import World, disk_id
from tests.rules.scenes import FAR, hear, suggested


def test_a_cluster_forms_only_of_all_its_initial_members_and_all_unformatted() -> None:
    """A wiped majority would form an empty cluster next to the disks that hold the data."""
    formation = Formation(Identity("n1", disk_id("n1"), 1), "n1:1", ["n1", "n2", "n3"])

    formation.linked("n2", disk_id("n2"), "n2:1", formatted=False)
    formation.linked("n3", disk_id("n3"), "n3:1", formatted=True)
    assert formation.members() is None

    formation.linked("n3", disk_id("n3"), "n3:1", formatted=False)
    members = formation.members()
    assert members is not None
    assert [member.node_id for member in members.members] == ["n1", "n2", "n3"]


def test_a_node_that_is_no_member_is_not_asked_and_what_it_answers_does_not_count() -> None:
    """Rule 0: a node that is no member neither promises nor counts."""
    world = World("n1", "n2", observers=("n3",))
    world.start()
    world.isolate("n2")
    suggested(world["n1"], by_control_plane=True)
    world.run_for(5)
    assert world["n3"].running.promises.promise == NO_PROMISE

    assert world["n1"].core is not None
    hear(world["n1"], "n3", PreVoteAnswer(world["n1"].core.candidate.attempt, True, 0, FAR, world.clock()))
    world.run_for(5)

    assert not world["n1"].leads
    assert world["n1"].state.promise == NO_PROMISE
