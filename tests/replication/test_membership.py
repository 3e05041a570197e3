"""Rule 15 with the feature `membership`: nodes join, are removed, demoted and moved, and lost disks are replaced."""

from dataclasses import replace

import pytest

from quire.log import FEATURES
from quire.replication.core import CoreOptions, Member, Members, Role, events
from quire.replication.core.members import MAX_REMOVED, NO_DISK, Removed
from quire.replication.core.membership.changing import (
    Add,
    AddressTaken,
    AlreadyMember,
    ChangeContext,
    Changed,
    ChangeUnderWay,
    Demote,
    FeatureNotInUse,
    LastVoter,
    Move,
    NoMember,
    NotFollowing,
    OwnRow,
    Promote,
    Remove,
    Unchanged,
    Unheard,
    Wanted,
    next_change,
)
from quire.replication.core.messages import HeartbeatEcho, Promise, Removal
from tests.replication.test_features import features_logged, ticked
from tests.replication.world import SimNode, World, disk_id

SECOND_US = 1_000_000


def led(*node_ids: str, spare: tuple[str, ...] = (), options: CoreOptions | None = None) -> World:
    """n1 leads; the log names every feature. Spare nodes run, and are no members."""
    world = World(*node_ids, observers=spare, options=options or CoreOptions(features=FEATURES))
    world.features = FEATURES
    world.start()
    leader = world.elect("n1")
    level(world, leader)
    leader.nominated = False
    leader.step(events.Nominated(False))
    return world


def level(world: World, leader: SimNode) -> None:
    running = [node for node in world.nodes.values() if node.core is not None and node.removed_at is None]
    world.run_until(lambda: all(node.apply_to == leader.log.tail.index for node in running))
    world.run_for(0.3)


def outcome(world: World, leader: SimNode, wanted: Wanted) -> object:
    ask_id = leader.change(wanted)
    world.run_until(lambda: ask_id in leader.changes)
    return leader.changes[ask_id]


def roles(node: SimNode) -> dict[str, str]:
    return {member.node_id: str(member.role) for member in node.state.members.members}


def joining(*node_ids: str) -> Add:
    return Add(tuple((node_id, f"{node_id}:1") for node_id in node_ids), Role.JOINING)


def test_a_node_that_is_added_becomes_a_voter_once_it_is_level() -> None:
    world = led("n1", spare=("n2",))
    leader = world["n1"]
    world["n2"].crash()

    assert isinstance(outcome(world, leader, joining("n2")), Changed)
    world.run_for(5)
    assert leader.state.members.of_node("n2") == Member("n2", NO_DISK, "n2:1", Role.JOINING), "it has no disk yet"

    world["n2"].start()
    world.run_until(lambda: roles(leader) == {"n1": "voter", "n2": "voter"})
    assert leader.state.members.is_voter("n2", world["n2"].disk_id)


def test_nodes_that_join_do_not_vote_before_all_of_them_are_level() -> None:
    world = led("n1", spare=("n2", "n3"))
    leader = world["n1"]
    world["n3"].crash()
    outcome(world, leader, joining("n2", "n3"))
    world.run_for(5)
    assert roles(leader) == {"n1": "voter", "n2": "joining", "n3": "joining"}
    assert len(leader.state.members.voters()) == 1, "one that joins does not count"

    world["n3"].start()
    world.run_until(lambda: set(roles(leader).values()) == {"voter"})


def test_any_leader_goes_on_with_what_another_began() -> None:
    world = led("n1", "n2", "n3", spare=("n4",))
    world["n4"].crash()
    outcome(world, world["n1"], joining("n4"))
    level(world, world["n1"])
    world["n1"].crash()
    world["n4"].start()
    world["n2"].nominate()

    world.run_until(lambda: world["n2"].leads and roles(world["n2"]).get("n4") == "voter")


def test_a_replaced_disk_waits_for_no_node_that_never_comes_and_is_replaced_beside_it() -> None:
    options = CoreOptions(features=FEATURES, auto_replace_us=MINUTE_US)
    world = led("n1", "n2", "n3", options=options)
    leader, node = world["n1"], world["n3"]
    outcome(world, leader, joining("n9"))
    node.crash()
    node.wipe()
    node.start()
    world.run_until(lambda: leader.state.members.is_voter("n3", node.disk_id), within_s=120)
    assert roles(leader)["n9"] == "joining"


def test_an_observer_that_is_added_gets_its_disk_and_stays_an_observer() -> None:
    world = led("n1", spare=("n2",))
    leader = world["n1"]
    outcome(world, leader, Add((("n2", "n2:1"),), Role.OBSERVER))
    world.run_for(5)
    assert leader.state.members.of_node("n2") == Member("n2", world["n2"].disk_id, "n2:1", Role.OBSERVER)


def test_a_row_without_a_disk_does_not_keep_features_from_being_used() -> None:
    options = CoreOptions(features=FEATURES | {"later"})
    world = led("n1", spare=("n2",), options=options)
    leader = world["n1"]
    world["n2"].crash()
    outcome(world, leader, joining("n2"))
    world.run_for(5)
    assert leader.state.members.of_node("n2") == Member("n2", NO_DISK, "n2:1", Role.JOINING)
    ticked(leader, world.features)
    assert any("later" in names for names in features_logged(leader))


def test_without_the_feature_no_such_row_is_written() -> None:
    world = led("n1", "n2", spare=("n3",))
    world.features = frozenset()
    world.run_for(1)
    for wanted in (joining("n3"), Remove("n2"), Demote("n2"), Move("n2", "n2:2")):
        assert isinstance(outcome(world, world["n1"], wanted), FeatureNotInUse)
    assert set(roles(world["n1"])) == {"n1", "n2"}


def test_a_removed_node_holds_the_record_and_its_commit_before_it_leaves() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    done = outcome(world, leader, Remove("n3"))
    assert isinstance(done, Changed)
    world.run_until(lambda: world["n3"].removed_at is not None)
    assert world["n3"].removed_at == done.index
    assert world["n3"].log.tail.index > done.index
    assert leader.state.members.removed == (Removed("n3", world["n3"].disk_id, done.index),)
    assert outcome(world, leader, Remove("n3")) == Unchanged()


def test_reads_that_waited_for_the_removed_voter_are_answered_by_the_one_that_is_left() -> None:
    world = led("n1", "n2")
    leader = world["n1"]
    world.isolate("n1")
    leader.step(events.ReadRequested(1))
    leader.step(events.ReadRequested(2))
    read_at = leader.state.commit_index

    assert isinstance(outcome(world, leader, Remove("n2")), Changed)
    world.run_for(0.3)

    assert leader.reads == {1: read_at, 2: read_at}


def test_a_removed_node_that_was_away_is_told_by_those_that_know() -> None:
    world = led("n1", "n2", "n3")
    world["n3"].crash()
    done = outcome(world, world["n1"], Remove("n3"))
    assert isinstance(done, Changed)
    level(world, world["n1"])
    world["n3"].start()
    world.run_until(lambda: world["n3"].removed_at is not None)
    assert world["n3"].removed_at == done.index


def test_a_removed_node_that_nobody_tells_deposes_nobody() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    world["n3"].crash()
    outcome(world, leader, Remove("n3"))
    world.run_for(1)
    promise = leader.state.promise
    echo = HeartbeatEcho(promise.epoch, 1, promise.epoch + 7, 0, world.clock())
    leader.step(events.Received("n3", world["n3"].disk_id, echo))
    world.run_for(20)
    assert leader.leads
    assert leader.state.promise == promise


def test_a_notice_of_removal_counts_unless_this_log_knows_better() -> None:
    world = led("n1", "n2", "n3")
    node = world["n2"]
    node.step(events.Received("n7", disk_id("n7"), Removal(99)))
    assert node.removed_at is None, "n7 is no member"
    node.step(events.Received("n1", disk_id("n1"), Removal(0)))
    assert node.removed_at is None, "a record at or above that index names it as a member"
    node.step(events.Received("n1", disk_id("n1"), Removal(99)))
    assert node.removed_at == 99


def test_a_removed_disk_is_not_taken_back_and_another_one_is() -> None:
    world = led("n1", "n2", "n3")
    leader, node = world["n1"], world["n3"]
    node.crash()
    outcome(world, leader, Remove("n3"))
    outcome(world, leader, joining("n3"))
    leader.step(events.LinkUp("n3", node.disk_id, FEATURES))
    world.run_for(3)
    assert leader.state.members.of_node("n3") == Member("n3", NO_DISK, "n3:1", Role.JOINING)
    leader.step(events.LinkDown("n3"))

    node.wipe()
    node.start()
    world.run_until(lambda: leader.state.members.is_voter("n3", node.disk_id))


def test_a_node_that_lost_its_disk_and_is_removed_leaves_with_the_new_one() -> None:
    world = led("n1", "n2", "n3")
    leader, node = world["n1"], world["n3"]
    old = node.disk_id
    node.crash()
    node.wipe()
    node.start()
    world.run_for(2)
    assert isinstance(outcome(world, leader, Remove("n3")), Changed)
    world.run_until(lambda: node.removed_at is not None)
    assert {gone.disk_id for gone in leader.state.members.removed} == {old, node.disk_id}


def test_a_node_that_loses_its_disk_while_it_joins_goes_on_with_the_next() -> None:
    world = led("n1", spare=("n2", "n3"))
    leader, node = world["n1"], world["n2"]
    world["n3"].crash()
    outcome(world, leader, joining("n2", "n3"))
    world.run_until(lambda: leader.state.members.names("n2", node.disk_id))
    node.crash()
    node.wipe()
    node.start()
    world.run_until(lambda: leader.state.members.names("n2", node.disk_id))
    world["n3"].start()
    world.run_until(lambda: set(roles(leader).values()) == {"voter"})


def test_no_leader_removes_or_demotes_itself_and_the_last_voter_stays() -> None:
    world = led("n1", "n2")
    leader = world["n1"]
    assert outcome(world, leader, Remove("n1")) == OwnRow()
    assert outcome(world, leader, Demote("n1")) == OwnRow()
    assert isinstance(outcome(world, leader, Demote("n2")), Changed)
    world.run_for(1)
    assert outcome(world, leader, Remove("n1")) == LastVoter()
    assert outcome(world, leader, Demote("n1")) == LastVoter()


def test_a_demoted_voter_replicates_and_does_not_count() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    assert isinstance(outcome(world, leader, Demote("n3")), Changed)
    leader.write("more")
    level(world, leader)
    assert roles(leader) == {"n1": "voter", "n2": "voter", "n3": "observer"}
    assert outcome(world, leader, Demote("n3")) == Unchanged()
    assert isinstance(outcome(world, leader, Promote("n3", "n3:1")), Changed)


@pytest.mark.parametrize("voters", [("n1", "n2", "n3"), ("n1", "n3")])
def test_a_member_without_a_vote_that_promised_more_is_caught_up_with_once(voters: tuple[str, ...]) -> None:
    world = led(*voters)
    leader, node = world["n1"], world["n3"]
    outcome(world, leader, Demote("n3"))
    level(world, leader)
    node.crash()
    higher = leader.state.promise.epoch + 3
    node.start()
    node.running.store_promise(Promise(higher, "n9", 1))
    node.state.promise = node.state.stored_promise = Promise(higher, "n9", 1)
    world.run_until(lambda: node.core is not None and node.core.following is not None, within_s=60)
    now = next(each for each in world.nodes.values() if each.leads)
    assert now.state.promise.epoch > higher
    level(world, now)
    epoch = now.state.promise.epoch
    world.run_for(30)
    assert now.leads
    assert now.state.promise.epoch == epoch


def test_an_address_changes_by_a_record() -> None:
    world = led("n1", "n2")
    leader = world["n1"]
    assert isinstance(outcome(world, leader, Move("n2", "n2:99")), Changed)
    level(world, leader)
    assert [member.address for member in world["n2"].state.members.members] == ["n1:1", "n2:99"]
    assert outcome(world, leader, Move("n2", "n2:99")) == Unchanged()
    assert outcome(world, leader, Move("n2", "n1:1")) == AddressTaken(leader.state.members.members[0])
    assert outcome(world, leader, Move("n7", "n7:1")) == NoMember(("n1", "n2"))


def test_an_id_or_an_address_that_is_taken_is_not_added() -> None:
    world = led("n1", "n2")
    leader = world["n1"]
    first, second = leader.state.members.members
    assert outcome(world, leader, joining("n2")) == Unchanged()
    assert outcome(world, leader, Add((("n2", "n2:9"),), Role.JOINING)) == AlreadyMember(second)
    assert outcome(world, leader, Add((("n4", "n1:1"),), Role.JOINING)) == AddressTaken(first)
    twice = Add((("n4", "x:1"), ("n5", "x:1")), Role.JOINING)
    assert isinstance(outcome(world, leader, twice), AddressTaken)
    assert roles(leader) == {"n1": "voter", "n2": "voter"}


def test_two_changes_do_not_run_side_by_side() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    first = leader.change(Remove("n2"))
    second = leader.change(Remove("n3"))
    assert isinstance(leader.changes[second], ChangeUnderWay)
    world.run_until(lambda: first in leader.changes)
    assert roles(leader) == {"n1": "voter", "n3": "voter"}


def test_a_removal_after_which_no_majority_is_heard_is_refused_with_who_is_missing() -> None:
    world = led("n1", "n2", "n3", "n4", "n5")
    leader = world["n1"]
    world["n4"].crash()
    world["n5"].crash()
    world.run_for(3)
    refused = outcome(world, leader, Remove("n2"))
    assert isinstance(refused, Unheard)
    assert set(refused.node_ids) == {"n4", "n5"}


MINUTE_US = 60 * SECOND_US


def with_auto_replacement() -> World:
    return led("n1", "n2", "n3", options=CoreOptions(features=FEATURES, auto_replace_us=MINUTE_US))


def test_a_lost_disk_is_replaced_only_when_its_time_is_up_and_its_node_is_level() -> None:
    world = with_auto_replacement()
    leader, node = world["n1"], world["n3"]
    old = node.disk_id
    node.crash()
    node.wipe()
    node.start()
    world.run_for(50)
    assert leader.state.members.is_voter("n3", old), "the old vote stays until its time is up"
    world.run_until(lambda: leader.state.members.is_voter("n3", node.disk_id), within_s=30)
    assert [(gone.node_id, gone.disk_id) for gone in leader.state.members.removed] == [("n3", old)]


@pytest.mark.slow
def test_a_lost_disk_is_not_replaced_without_the_setting_nor_while_another_voter_is_away() -> None:
    world = led("n1", "n2", "n3")
    world["n3"].crash()
    world["n3"].wipe()
    world["n3"].start()
    world.run_for(200)
    assert not world["n1"].state.members.removed

    world = led("n1", "n2", "n3", "n4", "n5", options=CoreOptions(features=FEATURES, auto_replace_us=MINUTE_US))
    world["n3"].crash()
    world["n4"].crash()
    world["n3"].wipe()
    world["n3"].start()
    world.run_for(200)
    assert not world["n1"].state.members.removed
    world["n4"].start()
    world.run_until(lambda: world["n1"].state.members.is_voter("n3", world["n3"].disk_id))


@pytest.mark.slow
def test_a_disk_of_one_node_is_replaced_at_most_once_a_day() -> None:
    world = with_auto_replacement()
    leader, node = world["n1"], world["n3"]
    for _ in range(2):
        node.crash()
        node.wipe()
        node.start()
        world.run_for(200)
    assert len(leader.state.members.removed) == 1
    assert not leader.state.members.is_voter("n3", node.disk_id)


def test_a_drained_leader_hands_over_and_takes_no_leadership() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    leader.nominate()
    leader.step(events.Drained(True))
    world.run_until(lambda: any(node.leads for node in (world["n2"], world["n3"])))
    now = next(node for node in world.nodes.values() if node.leads)
    world.run_for(20)
    assert now.leads, "n1 is nominated, and does not campaign"
    leader.step(events.Drained(False))
    world.run_for(1)  # Until its level has been heard.
    now.step(events.TransferRequested("n1"))
    world.run_until(lambda: leader.leads)


def test_a_drained_node_leads_if_nobody_else_can() -> None:
    world = led("n1", "n2", "n3")
    world["n2"].step(events.Drained(True))
    level(world, world["n1"])
    world["n1"].crash()
    world["n3"].step(events.Drained(True))
    world.run_until(lambda: world["n2"].leads or world["n3"].leads)


def test_the_rows_of_a_record_are_checked() -> None:
    voter = ["n1", b"1" * 16, "n1:1", "voter"]
    assert Members.from_record({"members": [voter, ["n2", NO_DISK, "n2:1", "joining"]]}).to_record()
    for members, removed in (
        ([["n1", NO_DISK, "n1:1", "voter"]], []),
        ([voter], [["n2", b"short", 3]]),
        ([voter], [["n2", b"2" * 16, -1]]),
        ([voter], [["n2", b"2" * 16]]),
        ([voter], [["n2", b"2" * 16, 1]] * (MAX_REMOVED + 1)),
        ([voter], "none"),
    ):
        with pytest.raises(ValueError, match=r".+"):
            Members.from_record({"members": members, "removed": removed})


def test_only_the_newest_removed_disks_are_kept() -> None:
    world = led("n1", "n2")
    leader = world["n1"]
    gone = tuple(Removed("n9", number.to_bytes(16, "little"), 1) for number in range(1, MAX_REMOVED + 1))
    full = replace(leader.state.members, removed=gone)
    leader.running.append_system(leader.state.promise.epoch, 0, {"type": "members", **full.to_record()})
    leader.append_done(events.AppendResult())
    level(world, leader)
    assert isinstance(outcome(world, leader, Remove("n2")), Changed)
    assert len(leader.state.members.removed) == MAX_REMOVED
    assert leader.state.members.removed[-1].node_id == "n2"


def test_a_removed_disk_whose_node_is_removed_again_is_kept_once() -> None:
    world = led("n1", "n2", "n3")
    leader, node = world["n1"], world["n3"]
    node.crash()
    outcome(world, leader, Remove("n3"))
    outcome(world, leader, joining("n3"))
    leader.step(events.LinkUp("n3", node.disk_id, FEATURES))  # It is still there, and its row has no disk.
    again = outcome(world, leader, Remove("n3"))
    assert isinstance(again, Changed)
    assert leader.state.members.removed == (Removed("n3", node.disk_id, again.index),)


@pytest.mark.parametrize("rows", [(), (Member("n2", NO_DISK, "n2:1", Role.JOINING),)])
def test_a_removed_disk_that_is_still_connected_is_not_promoted(rows: tuple[Member, ...]) -> None:
    one = Member("n1", disk_id("n1"), "n1:1", Role.VOTER)
    context = ChangeContext(
        me="n1",
        serving=True,
        start_index=1,
        commit_index=10,
        record_index=10,
        members=Members((one, *rows), (Removed("n2", disk_id("n2"), 5),)),
        members_index=9,
        transferring_to=None,
        disks={"n1": one.disk_id, "n2": disk_id("n2")},
        lag_of=lambda *_: 0,
        promotable_bytes=1,
        is_heard=lambda _: True,
        lacking=None,
    )
    assert next_change(context, Promote("n2", "n2:1")) == NotFollowing()
