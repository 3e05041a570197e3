"""A node whose machine runs other code than a majority of the voters is unfit, and answers no command as the leader."""

import pytest

from quire.replication.core import CoreOptions, events
from quire.replication.core.fitness import Level
from quire.replication.core.fitness.codes import OTHER_CODE, UNDECIDED
from tests.replication.test_fitness import level, reason
from tests.replication.world import SimNode, World, values
from tests.rules.scenes import led

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000
OLD, NEW, NEWER = b"o" * 32, b"n" * 32, b"r" * 32


def running(**codes: bytes) -> World:
    """Nodes with these codes, by node id, which know each other; n1 leads, and all have been linked for long."""
    world = led(*codes)
    change(world, **codes)
    return world


def change(world: World, **codes: bytes) -> None:
    """These nodes get these codes, as if all of them had been restarted with it in the same moment."""
    for node_id, code in codes.items():
        node = world[node_id]
        node.code = code
        node.step(events.CodeKnown(code, frozenset()))
    world.link_all()


def unlink(world: World, node_id: str) -> None:
    """Every other node loses its link to this one, which stays as it is."""
    for node in world.nodes.values():
        if node.node_id != node_id:
            node.step(events.LinkDown(node_id))


def unfit(world: World) -> list[str]:
    return [node_id for node_id, node in world.nodes.items() if level(node) is Level.MACHINE_FAILED]


def may_snapshot(node: SimNode) -> bool:
    assert node.core is not None
    return node.core.status().may_snapshot


def other_code(node: SimNode) -> str:
    assert node.core is not None
    return node.core.other_code


def test_of_three_nodes_the_one_with_other_code_is_unfit_as_with_a_failed_machine() -> None:
    world = running(n1=OLD, n2=NEW, n3=OLD)
    assert unfit(world) == ["n2"]
    assert reason(world["n2"]) == OTHER_CODE
    assert [may_snapshot(world[node_id]) for node_id in ("n1", "n2", "n3")] == [True, False, True]


@pytest.mark.parametrize(
    "codes",
    [
        {"n1": OLD, "n2": OLD, "n3": OLD},
        {"n1": OLD, "n2": NEW, "n3": NEWER},
        {"n1": OLD, "n2": NEW, "n3": b""},  # A machine without source, or a program of an earlier version.
        {"n1": b"", "n2": OLD, "n3": OLD},
        {"n1": OLD, "n2": OLD, "n3": NEW, "n4": NEW},
        {"n1": OLD, "n2": b"", "n3": b""},
    ],
)
def test_where_no_other_code_has_a_majority_of_all_voters_nobody_is_unfit(codes: dict[str, bytes]) -> None:
    assert unfit(running(**codes)) == []


def test_a_leader_with_other_code_refuses_commands_until_it_has_handed_over_to_a_node_of_the_majority() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    leader = world["n1"]
    leader.write("before")
    world.run_for(2.5 * TIMEOUT_S)

    change(world, n2=NEW, n3=NEW)
    refused = [leader.write("refused")]
    world.run_until(lambda: world.leader() not in (None, leader), within_s=1.5 * TIMEOUT_S)

    successor = world.leader()
    assert successor is not None
    assert [write for write, why in leader.rejected if why is events.Reason.OTHER_CODE] == refused
    successor.write("after")
    world.run_for(TIMEOUT_S)
    assert [values(node) for node in world.nodes.values()] == [["before", "after"]] * 3
    assert unfit(world) == ["n1"]


def test_what_waits_to_be_appended_is_refused_when_the_code_turns_out_to_be_another() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("appended")
    waiting = leader.write("waits for the flush")

    change(world, n2=NEW, n3=NEW)
    leader.release()
    world.run_for(0.05)

    assert leader.rejected == [(waiting, events.Reason.OTHER_CODE)]


def test_an_operator_s_transfer_to_a_node_with_other_code_is_refused() -> None:
    world = running(n1=OLD, n2=NEW, n3=OLD)
    world.run_for(2.5 * TIMEOUT_S)
    world["n1"].step(events.TransferRequested("n2"))
    world.run_for(TIMEOUT_S)
    assert world.leader() is world["n1"]
    assert "n2 is not fit to lead" in world["n1"].transfers_ended[0]


def test_a_leader_with_other_code_and_no_successor_leads_on_and_answers_nothing() -> None:
    """The others' machines have failed, as machines do that do not know a command."""
    world = running(n1=NEW, n2=OLD, n3=OLD)
    world["n2"].machine_failed = world["n3"].machine_failed = True
    world.run_for(30 * TIMEOUT_S)
    leader = world["n1"]
    assert world.leader() is leader

    refused = leader.write("refused")

    assert leader.rejected[-1] == (refused, events.Reason.OTHER_CODE)
    change(world, n2=NEW)
    world.run_for(3 * TIMEOUT_S)
    leader.write("answered")
    world.run_for(0.1)
    assert values(leader) == ["answered"]


def test_codes_that_the_operator_accepted_count_as_one() -> None:
    world = running(n1=NEW, n2=OLD, n3=OLD)
    assert unfit(world) == ["n1"]
    node = world["n1"]

    node.step(events.CodeKnown(NEW, frozenset({OLD, NEW})))
    world.run_for(3 * TIMEOUT_S)

    assert (level(node), other_code(node), may_snapshot(node)) == (Level.FIT, "", True)


def test_a_code_that_was_accepted_alone_is_another_than_the_majority_s() -> None:
    """The first start accepts the code that it finds: on a new disk, for example."""
    world = running(n1=OLD, n2=OLD, n3=OLD)
    world["n3"].step(events.CodeKnown(NEW, frozenset({NEW})))
    assert (unfit(world), may_snapshot(world["n3"])) == (["n3"], False)


def test_a_link_that_breaks_for_a_moment_does_not_make_such_a_leader_answer() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    leader = world["n1"]
    change(world, n2=NEW, n3=NEW)
    for _ in range(5):
        unlink(world, "n3")
        world.run_for(0.2 * TIMEOUT_S)
        leader.write("refused")
        world.link_all()
    assert values(leader) == []


def test_a_voter_that_restarts_makes_no_leader_unfit_whose_code_it_had() -> None:
    """A rolling change: n3 has the new code, n2 is being restarted with it."""
    world = running(n1=OLD, n2=OLD, n3=NEW)
    leader = world["n1"]
    unlink(world, "n2")
    for _ in range(30):
        world.run_for(0.1 * TIMEOUT_S)
        assert level(leader) is Level.FIT
    world["n2"].code = NEW
    world.link_all()
    assert reason(leader) == OTHER_CODE


def test_without_the_voter_that_completes_a_majority_nobody_is_unfit_for_long() -> None:
    world = running(n1=NEW, n2=OLD, n3=OLD)
    world["n3"].crash()

    world.run_for(4 * TIMEOUT_S)

    assert [level(world[node_id]) for node_id in ("n1", "n2")] == [Level.FIT] * 2
    assert [other_code(world[node_id]) for node_id in ("n1", "n2")] == ["", ""]
    assert not may_snapshot(world["n1"])


def test_a_node_that_starts_with_other_code_does_not_lead_before_the_last_voter_may_have_been_heard() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    node = world["n2"]
    world["n3"].crash()
    world.run_for(2 * TIMEOUT_S)
    node.crash()
    node.code = NEW

    node.start()

    assert reason(node) == UNDECIDED
    assert level(world["n1"]) is Level.FIT  # It knows that n3 has been silent for long.
    world["n3"].start()
    assert reason(node) == OTHER_CODE


def test_code_that_the_first_start_accepted_is_not_kept_once_a_majority_was_seen_to_run_another() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    node = world["n3"]
    node.step(events.CodeKnown(NEW, frozenset({NEW})))
    world["n2"].crash()
    world.run_for(4 * TIMEOUT_S)
    assert (level(node), may_snapshot(node)) == (Level.FIT, False)
    node.step(events.CodeKnown(NEW, frozenset({OLD, NEW})))
    assert may_snapshot(node)


def test_code_that_was_accepted_is_kept_where_none_has_a_majority_once_the_voters_had_time_to_be_heard() -> None:
    world = running(n1=OLD, n2=OLD, n3=OLD)
    world["n2"].crash()
    node = world["n1"]
    node.crash()
    node.start()
    node.step(events.CodeKnown(OLD, frozenset({OLD})))
    change(world, n3=NEW)
    assert not may_snapshot(node)
    world.run_for(1.5 * TIMEOUT_S)
    assert may_snapshot(node)


def test_only_voters_count() -> None:
    world = World("n1", "n2", "n3", observers=("n4", "n5"))
    world.start()
    change(world, n1=OLD, n2=OLD, n3=NEW, n4=NEW, n5=NEW)
    assert not {"n1", "n2"} & set(unfit(world))


def test_a_voter_that_comes_back_with_another_disk_does_not_count() -> None:
    world = running(n1=NEW, n2=OLD, n3=OLD)
    assert unfit(world) == ["n1"]
    world["n1"].step(events.LinkUp("n3", b"another disk's".ljust(16), code=OLD))
    world.run_for(4 * TIMEOUT_S)
    assert unfit(world) == []
