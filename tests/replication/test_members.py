"""Rule 15: one voter at a time, through the log; a change counts when appended, and is undone when truncated."""

from functools import partial

import pytest

from quire.log import Kind, Log, LogOptions, MemoryDirectory, PayloadInvalid, encode_frame, encode_system
from quire.replication import Disk, PromiseFile
from quire.replication.core import MAX_MEMBERS, Member, Members, Reason, Role, actions, events
from quire.replication.core.downstreams import Downstream
from quire.replication.core.membership.changing import (
    Behind,
    Changed,
    ChangeUnderWay,
    Full,
    Lost,
    NotConnected,
    NotFollowing,
    NotLeading,
    NotServing,
    Promote,
    TooMany,
    TransferUnderWay,
    Unchanged,
    Unheard,
)
from quire.replication.core.messages import Ack, Snapshot
from tests.replication.disks import Snapshots, remove_expired
from tests.replication.world import SimNode, World, disk_id, voters

VOTER = ["n1", b"\1" * 16, "n1:1", "voter"]
NO_MEMBERS: list[object] = [
    None,
    1,
    "n1",
    {},
    [],
    [[]],
    [VOTER[:3]],
    [[*VOTER[:3], "observer"]],
    [VOTER, VOTER],
    [["n/1", *VOTER[1:]]],
    [["n" * 25, *VOTER[1:]]],
    [["", *VOTER[1:]]],
    [["n1", bytes(15), *VOTER[2:]]],
    [[*VOTER[:2], None, "voter"]],
    [[*VOTER[:2], "victim:80/internal/delete?", "voter"]],
    [[*VOTER[:2], "x" * 1000, "voter"]],
    [[*VOTER[:3], "emperor"]],
    [[f"n{number}", *VOTER[1:]] for number in range(MAX_MEMBERS + 1)],
]


@pytest.mark.parametrize("members", NO_MEMBERS, ids=[f"{rows!r:.40}" for rows in NO_MEMBERS])
@pytest.mark.parametrize("kind", ["members", "genesis"])
def test_a_leaders_record_that_names_no_members_is_not_written(kind: str, members: object) -> None:
    # Once in the log it would end this node, and each of its next starts.
    directory = MemoryDirectory()
    log = Log.open(directory, LogOptions(), cluster_id=bytes(16), clock=lambda: 1, standalone=False)
    disk = Disk(log, PromiseFile.create(directory, bytes(16)))

    def frame(rows: object) -> bytes:
        payload = encode_system({"type": kind, "members": rows})
        return encode_frame(index=0, epoch=1, timestamp=1, count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=payload)

    with pytest.raises(PayloadInvalid):
        disk.append_frames(frame(members))

    assert log.tail.index == 0
    disk.append_frames(frame([VOTER]))
    assert disk.members.is_voter("n1", b"\1" * 16)


def led(*node_ids: str, observers: tuple[str, ...] = ()) -> World:
    """n1 leads, everybody follows it."""
    world = World(*node_ids, observers=observers)
    world.start()
    caught_up(world, world.elect("n1"))
    world["n1"].nominated = False
    world["n1"].step(events.Nominated(False))
    return world


def caught_up(world: World, leader: SimNode) -> None:
    running = [node for node in world.nodes.values() if node.core is not None]
    world.run_until(lambda: all(node.apply_to == leader.log.tail.index for node in running))
    world.run_for(0.3)


def replaced() -> World:
    """n1 leads n2 and n3; n3 came back with another disk, and has caught up."""
    world = led("n1", "n2", "n3")
    world["n3"].crash()
    world["n3"].wipe()
    world["n1"].write("while n3 was away")
    world["n3"].start()
    caught_up(world, world["n1"])
    return world


def promoted(world: World, leader: SimNode, node_id: str) -> list[object]:
    """The outcomes of asking until there was nothing more to do."""
    outcomes: list[object] = []
    while not outcomes or isinstance(outcomes[-1], Changed):
        ask_id = leader.promote(node_id)
        world.run_until(partial(leader.changes.__contains__, ask_id))
        outcomes.append(leader.changes[ask_id])
    caught_up(world, leader)
    return outcomes


def changed_alone() -> tuple[Disk, int]:
    """A lone node's disk whose last record, not yet durable, changes the members; and that record's index."""
    world = World("n1")
    world.start()
    disk, index = world["n1"].running, world["n1"].log.tail.index
    disk.append_system(1, 0, {"type": "members", **voters("n1", "n2").to_record()})
    assert disk.members == voters("n1", "n2")
    return disk, index


def voters_of(node: SimNode) -> list[str]:
    return [voter.node_id for voter in node.state.members.voters()]


def acknowledged(leader: SimNode, node_id: str) -> int:
    """How far a node's own disk has acknowledged on its stream."""
    disk = (node_id, disk_id(node_id))
    return next(s.match_index for s in leader.leading.downstreams.streams.values() if (s.node_id, s.disk_id) == disk)


# The changes


def test_an_observer_is_promoted_by_one_change_and_counts_on_every_node() -> None:
    world = led("n1", "n2", observers=("n3",))
    assert world["n3"].roles[-1].role == "observer"

    changed, done = promoted(world, world["n1"], "n3")

    assert isinstance(changed, Changed)
    assert done == Unchanged()
    assert all(voters_of(node) == ["n1", "n2", "n3"] for node in world.nodes.values())
    assert world["n3"].roles[-1].role == "follower"
    assert [world["n1"].log.members_index, world["n1"].state.commit_index > changed.index] == [changed.index, True]


def test_a_lost_disk_is_replaced_by_two_changes_each_committed_before_the_next() -> None:
    world = replaced()
    leader = world["n1"]

    removed, added, done = promoted(world, leader, "n3")

    assert isinstance(removed, Changed)
    assert isinstance(added, Changed)
    assert done == Unchanged()
    assert removed.index < added.index
    steps = [[(voter.node_id, voter.disk_id) for voter in members.voters()] for members in leader.members_changed]
    both = [("n1", disk_id("n1")), ("n2", disk_id("n2"))]
    assert steps == [both, [*both, ("n3", world["n3"].disk_id)]]


def test_interrupted_between_the_two_asking_the_next_leader_again_finishes() -> None:
    world = replaced()
    ask_id = world["n1"].promote("n3")
    world.run_until(lambda: isinstance(world["n1"].changes.get(ask_id), Changed))
    caught_up(world, world["n1"])
    world["n1"].crash()
    world["n1"].start()
    leader = world.elect("n2")
    caught_up(world, leader)
    assert voters_of(leader) == ["n1", "n2"]

    added, done = promoted(world, leader, "n3")

    assert isinstance(added, Changed)
    assert done == Unchanged()
    assert voters_of(world["n3"]) == ["n1", "n2", "n3"]


def test_a_promoted_disk_makes_up_a_majority_with_its_acks_and_its_promise() -> None:
    world = replaced()
    promoted(world, world["n1"], "n3")
    world["n2"].crash()
    before = world["n1"].state.commit_index
    world["n1"].write("by n1 and n3")
    world.run_until(lambda: world["n1"].state.commit_index > before)

    world["n1"].crash()
    world["n2"].start()
    assert world.elect("n3").state.promise.candidate == "n3"


# When they count


def test_a_change_counts_as_soon_as_it_is_in_the_log() -> None:
    world = led("n1", "n2", "n3", observers=("n4",))
    world.isolate("n1")
    world["n1"].promote("n4")
    world.run_for(0.01)
    assert voters_of(world["n1"]) == ["n1", "n2", "n3", "n4"]
    assert world["n1"].state.commit_index <= (world["n1"].log.members_index or 0)


def test_a_change_is_answered_when_it_is_committed_and_not_when_what_is_before_it_is() -> None:
    world = led("n1", "n2", "n3", observers=("n4",))
    leader = world["n1"]
    leader.write("before it")
    world.run_for(0)
    ask_id = leader.promote("n4")

    world.run_until(lambda: ask_id in leader.changes)

    changed = leader.changes[ask_id]
    assert isinstance(changed, Changed)
    assert leader.state.commit_index > changed.index


def test_a_change_that_is_truncated_is_undone() -> None:
    world = led("n1", "n2", "n3", observers=("n4",))
    world.isolate("n1")
    ask_id = world["n1"].promote("n4")
    leader = world.elect("n2")
    world.run_until(lambda: not world["n1"].leads)
    assert world["n1"].changes[ask_id] == Lost()
    world.heal()
    caught_up(world, leader)

    assert len(world["n1"].truncations) == 1
    assert voters_of(world["n1"]) == ["n1", "n2", "n3"]
    assert world["n1"].members_changed[-1] == world.members


def test_a_record_that_replaces_a_truncated_one_is_the_one_that_counts() -> None:
    world = led("n1", "n2", "n3", observers=("n4", "n5"))
    world.isolate("n1")
    world["n1"].write("where n2 has its epoch_start")
    world["n1"].promote("n4")
    world.run_until(lambda: not world["n1"].leads)
    leader = world.elect("n2")
    world.run_for(0.3)
    leader.promote("n5")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    assert leader.log.members_index == world["n1"].log.members_index
    world.heal()
    caught_up(world, leader)
    assert voters_of(world["n1"]) == ["n1", "n2", "n3", "n5"]


def test_a_disk_reads_the_record_that_it_appends_where_one_was_truncated() -> None:
    disk, index = changed_alone()

    disk.truncate(index)
    disk.append_system(2, 0, {"type": "members", **voters("n1", "n3").to_record()})

    assert (disk.members_index, disk.members) == (index, voters("n1", "n3"))


def test_a_disk_reads_the_members_of_an_installed_snapshot_though_it_had_others_at_their_index() -> None:
    disk, index = changed_alone()
    snapshots = Snapshots(members={index: voters("n1", "n3").to_record()})
    disk = Disk(disk.log, disk.promises, snapshots=snapshots)
    assert disk.members == voters("n1", "n2")

    disk.install(Snapshot(index + 10, 2, 0, 7, index, ((0, 0),)))

    assert (disk.members_index, disk.members) == (index, voters("n1", "n3"))


def test_members_are_found_again_at_a_restart() -> None:
    world = replaced()
    promoted(world, world["n1"], "n3")
    for node in world.nodes.values():
        expected = node.state.members
        node.crash()
        node.start()
        assert node.state.members == expected
        assert node.state.is_voter


def test_members_whose_record_has_expired_are_found_in_a_snapshot() -> None:
    world = replaced()
    promoted(world, world["n1"], "n3")
    node = world["n1"]
    while node.log.bounds.lowest_index <= (node.log.members_index or 0):
        node.write(b"x" * 10_000)
        caught_up(world, node)
        remove_expired(node.running, node.log.durable_index)
    index, expected = node.log.members_index or 0, node.state.members
    node.snapshots.members[index] = expected.to_record()
    node.crash()
    node.start()
    assert node.state.members == expected


def test_without_that_snapshot_the_node_does_not_run() -> None:
    world = led("n1", "n2", "n3")
    node = world["n1"]
    while node.log.bounds.lowest_index == 0:
        node.write(b"x" * 10_000)
        caught_up(world, node)
        remove_expired(node.running, node.log.durable_index)
    node.crash()
    node.snapshots.members.clear()
    with pytest.raises(Exception, match="no snapshot has it"):
        node.start()


def test_an_install_brings_the_members_of_its_snapshot() -> None:
    world = led("n1", "n2", observers=("n3", "n4"))
    world["n4"].crash()
    leader, late = world["n1"], world["n4"]
    promoted(world, leader, "n3")
    while leader.log.bounds.lowest_index <= (leader.log.members_index or 0):
        leader.write(b"x" * 10_000)
        caught_up(world, leader)
        remove_expired(leader.running, leader.log.durable_index)
    leader.snapshots.indices = [leader.log.bounds.lowest_index]
    late.start()
    world.run_until(lambda: bool(late.fetches))
    members_index, origin = leader.log.members_index or 0, leader.log.origin
    late.snapshots.members[members_index] = leader.state.members.to_record()
    snapshot = Snapshot(*origin, members_index, tuple(leader.running.epochs))
    late.step(events.SnapshotFetched(late.fetches[-1].stream_id, snapshot))
    world.run_until(lambda: late.log.tail == leader.log.tail)

    assert voters_of(late) == ["n1", "n2", "n3"]
    assert voters_of(late) == [voter.node_id for voter in late.members_changed[-1].voters()]


# Who counts


NEW_DISK = b"n3/new".ljust(16, b"\0")


def beside() -> World:
    """n1 leads n2 and n3, which has two processes: one with the old disk, and one with a new disk that caught up."""
    world = led("n1", "n2", "n3")
    leader, end = world["n1"], world["n1"].log.tail.index
    leader.step(events.LinkUp("n3", NEW_DISK))
    leader.leading.downstreams.streams[7] = Downstream(
        "n3", NEW_DISK, end, world.now, world.now, goal_at=world.now, keeps_up=True
    )
    leader.step(events.AckArrived(7, Ack(end, end, 0, bytes(16))))
    return world


def test_the_old_disk_s_acks_count_for_nothing_once_its_vote_is_removed() -> None:
    """Only n1 and n2 are voters, and n2 does not answer."""
    world = beside()
    leader, end = world["n1"], world["n1"].log.tail.index
    world.cut(("n1", "n2"))
    ask_id = leader.promote("n3")
    world.run_for(0.3)

    assert acknowledged(leader, "n3") == leader.log.tail.index == end + 1
    assert leader.state.commit_index == end
    assert ask_id not in leader.changes


def test_the_old_disk_s_acks_do_not_count_for_the_new_one() -> None:
    world = beside()
    leader = world["n1"]
    removed = leader.promote("n3")
    world.run_until(lambda: removed in leader.changes)
    world.cut(("n1", "n2"))
    leader.promote("n3")
    world.run_for(0.3)

    assert [voter.disk_id for voter in leader.state.members.voters()][2:] == [NEW_DISK]
    assert acknowledged(leader, "n3") == leader.log.tail.index
    assert leader.state.commit_index == leader.log.members_index == leader.log.tail.index - 1


def half_promoted(cut_off: str, holder: str) -> World:
    """n3's promotion reached `holder`, one of n2 and n3, and not the other, `cut_off`; n1, which led, is down."""
    world = led("n1", "n2", observers=("n3",))
    leader = world["n1"]
    world.cut(("n1", cut_off), (cut_off, "n1"))
    leader.promote("n3")
    world.run_until(lambda: world[holder].log.members_index == leader.log.members_index)
    leader.crash()
    assert voters_of(world[cut_off]) == ["n1", "n2"]
    return world


@pytest.mark.parametrize(("candidate", "behind"), [("n2", "n3"), ("n3", "n2")])
def test_a_voter_whose_log_lacks_the_record_still_answers_its_candidate(candidate: str, behind: str) -> None:
    """Without n1 it takes both n2 and n3 to elect a leader, and the log of one does not count n3 yet."""
    world = half_promoted(cut_off=behind, holder=candidate)

    world.elect(candidate)

    caught_up(world, world[candidate])
    assert voters_of(world[behind]) == ["n1", "n2", "n3"]


def test_a_wiped_node_promises_nothing_before_it_is_promoted() -> None:
    world = replaced()
    world.isolate("n2")
    world.run_until(lambda: not world["n1"].leads)
    at = world["n3"].running.promises.promise
    world["n1"].nominate()
    world.run_for(10)

    assert not world["n1"].leads
    assert world["n3"].running.promises.promise == at


# What is refused, with its numbers


def outcome_of(leader: SimNode, node_id: str) -> object:
    return leader.changes[leader.promote(node_id)]


def test_a_node_that_does_not_lead_says_so() -> None:
    world = led("n1", "n2", observers=("n3",))
    assert outcome_of(world["n2"], "n3") == NotLeading()


def test_before_epoch_start_is_committed_nothing_is_changed() -> None:
    """The bug of 2015: a leader that changes members before it has committed anything of its own epoch."""
    world = World("n1", "n2", "n3", observers=("n4",))
    world.start()
    for node in ("n2", "n3"):
        world[node].hold_flush = True
    world["n1"].nominate()
    world.run_until(lambda: world["n1"].leads)
    index = world["n1"].start_index

    assert outcome_of(world["n1"], "n4") == NotServing(index, world["n1"].state.commit_index)
    assert world["n1"].log.members_index == 0


def test_a_second_change_waits_for_the_first_to_be_committed() -> None:
    world = led("n1", "n2", "n3", observers=("n4", "n5"))
    leader = world["n1"]
    world["n2"].hold_flush = world["n3"].hold_flush = world["n4"].hold_flush = True
    first = leader.promote("n4")
    world.run_for(0.01)

    assert outcome_of(leader, "n5") == ChangeUnderWay(leader.log.members_index or 0, leader.state.commit_index)

    for node in ("n2", "n3", "n4"):
        world[node].release()
    world.run_until(lambda: first in leader.changes)
    assert voters_of(leader) == ["n1", "n2", "n3", "n4"]


def test_a_change_is_answered_once_it_is_committed_and_not_before() -> None:
    world = led("n1", "n2", "n3", observers=("n4",))
    leader = world["n1"]
    for node in ("n2", "n3", "n4"):
        world[node].hold_flush = True
    ask_id = leader.promote("n4")
    world.run_for(0.01)
    assert (leader.log.members_index, leader.log.durable_index) == (leader.state.commit_index, leader.log.tail.index)
    assert ask_id not in leader.changes

    for node in ("n2", "n3", "n4"):
        world[node].release()
    world.run_until(lambda: ask_id in leader.changes)
    assert leader.changes[ask_id] == Changed(leader.log.members_index or 0)
    assert leader.state.commit_index > (leader.log.members_index or 0)


def test_a_node_that_is_not_connected_is_refused_with_those_that_are() -> None:
    world = led("n1", "n2", observers=("n3",))
    world["n3"].crash()
    assert outcome_of(world["n1"], "n3") == NotConnected(("n2",))


def test_a_node_without_a_stream_is_refused() -> None:
    world = led("n1", "n2", observers=("n3",))
    leader = world["n1"]
    (stream_id,) = [at for at, stream in leader.leading.downstreams.streams.items() if stream.node_id == "n3"]
    leader.step(events.StreamClosed(stream_id))
    assert outcome_of(leader, "n3") == NotFollowing()


@pytest.mark.parametrize("above", [0, 1])
def test_a_node_may_lack_a_window_and_not_a_byte_more(above: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = led("n1", "n2", observers=("n3",))
    leader, limit = world["n1"], world.options.promotable_bytes
    monkeypatch.setattr(type(leader.running), "bytes_from", lambda self, index: limit + above)
    ask_id = leader.promote("n3")
    world.run_until(lambda: ask_id in leader.changes)
    outcome = leader.changes[ask_id]
    assert outcome == Behind(limit + 1, limit) if above else isinstance(outcome, Changed)


def test_what_a_node_lacks_is_counted_in_bytes_of_the_leader_s_durable_log() -> None:
    world = led("n1", "n2", "n3", observers=("n4",))
    leader = world["n1"]
    world["n4"].hold_flush = True
    before = leader.log.size
    leader.write(b"x" * 500)
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    assert leader.running.bytes_from(acknowledged(leader, "n4")) == leader.log.size - before


def test_a_change_that_a_majority_of_those_that_stay_would_not_hear_is_refused_with_names() -> None:
    """n1 hears n3's old disk. Without that disk's vote, and without n2, nothing would commit any more."""
    world = beside()
    world["n2"].crash()
    world.run_for(2)
    leader = world["n1"]
    assert leader.leads

    assert outcome_of(leader, "n3") == Unheard(("n2",), 1, 2)
    assert voters_of(leader) == ["n1", "n2", "n3"]


def test_a_leader_that_transfers_leadership_refuses_changes_of_members() -> None:
    world = led("n1", "n2", observers=("n3",))
    leader = world["n1"]
    world["n2"].hold_flush = True
    leader.write("n2 lacks it")
    leader.step(events.TransferRequested("n2"))
    assert outcome_of(leader, "n3") == TransferUnderWay("n2")


@pytest.mark.parametrize("count", [MAX_MEMBERS - 1, MAX_MEMBERS])
def test_as_many_members_as_may_be_and_not_one_more(count: int) -> None:
    world = led("n1", observers=("n2",))
    leader = world["n1"]
    idle = [Member(f"o{number}", bytes(16), "o:1", Role.OBSERVER) for number in range(count - 1)]
    members = Members((*world.members.members, *idle))
    leader.running.append_system(leader.state.promise.epoch, 0, {"type": "members", **members.to_record()})
    leader.append_done(events.AppendResult())
    caught_up(world, leader)
    assert len(leader.state.members.members) == count

    ask_id = leader.promote("n2")
    world.run_until(lambda: ask_id in leader.changes)

    outcome = leader.changes[ask_id]
    assert outcome == TooMany(MAX_MEMBERS + 1, MAX_MEMBERS) if count == MAX_MEMBERS else isinstance(outcome, Changed)


def test_a_change_that_finds_no_room_is_not_made() -> None:
    world = led("n1", "n2", observers=("n3",))
    core = world["n1"].core
    assert core is not None
    told = core.handle(events.ChangeRequested(7, Promote("n3", "n3:1")), world.now, world.clock())
    assert [type(action) for action in told if isinstance(action, actions.AppendSystem)] == [actions.AppendSystem]

    told = core.append_done(events.AppendResult(is_made=False, refused=Reason.DISK_FULL), world.now, world.clock())

    assert [action.outcome for action in told if isinstance(action, actions.ChangeEnded)] == [Full()]
    assert voters_of(world["n1"]) == ["n1", "n2"]
    assert promoted(world, world["n1"], "n3")[-1] == Unchanged()
