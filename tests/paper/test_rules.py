"""Rules 0 to 13 of `docs/protocol.md`, one test each."""

from quire.replication.core import Identity, Promise, actions, events
from quire.replication.core.election import FALLBACK_TIMEOUTS, SHORT_TIMEOUTS
from quire.replication.core.members import Formation
from quire.replication.core.messages import NO_PROMISE, Ack, Heartbeat, Last, Open, OpenAnswer, OpenVerb, PreVoteAnswer
from quire.replication.net.duplicate_guard import Caller, DuplicateNodeGuard
from tests.paper.scenes import FAR, ask, divided, hear, led, settled, started, suggested
from tests.replication.world import World, disk_id, values


def test_rule_0_a_cluster_forms_only_of_all_its_initial_members_and_all_unformatted() -> None:
    """A wiped majority would form an empty cluster next to the disks that hold the data."""
    formation = Formation(Identity("n1", disk_id("n1"), 1), "n1:1", ["n1", "n2", "n3"])

    formation.linked("n2", disk_id("n2"), "n2:1", formatted=False)
    formation.linked("n3", disk_id("n3"), "n3:1", formatted=True)
    assert formation.members() is None

    formation.linked("n3", disk_id("n3"), "n3:1", formatted=False)
    members = formation.members()
    assert members is not None
    assert [member.node_id for member in members.members] == ["n1", "n2", "n3"]


def test_rule_1_an_epoch_is_promised_once_and_durably_and_following_raises_the_promise() -> None:
    """Two leaders in one epoch; a stale node that helps commit."""
    node = started()["n2"]

    assert ask(node, 7, "n3")
    assert not ask(node, 7, "n1")
    assert not ask(node, 7, "n3", incarnation=2)
    node.crash()
    node.start()
    assert node.state.promise == Promise(7, "n3", 1)

    hear(node, "n1", Heartbeat(Promise(8, "n1", 5), 1, 0))
    node.world.run_for(0.005)
    assert node.running.promises.promise == Promise(8, "n1", 5)


def test_rule_2_a_promise_waits_for_the_flush_and_nothing_of_the_old_epoch_is_acknowledged_after_it() -> None:
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


def test_rule_3_a_new_epoch_is_above_the_highest_seen_and_never_resumed() -> None:
    """An epoch would have two sequences of frames, and comparing epochs would prove nothing."""
    world = started()
    assert ask(world["n3"], 41, "n2")

    first = world.elect("n1").state.promise.epoch
    assert first == 42
    world.run_for(SHORT_TIMEOUTS)  # A node that is lost sooner makes way for the others.
    world["n1"].crash()
    world["n1"].start()
    world.run_until(lambda: world.leader() is world["n1"])

    assert world["n1"].state.promise.epoch > first


def test_rule_4_a_pre_vote_has_no_effect_and_no_voter_that_hears_a_leader_grants_it() -> None:
    """A node that was cut off comes back and disturbs a healthy leader."""
    world = led()
    epoch = world["n1"].state.promise.epoch

    world.cut(("n1", "n3"), ("n3", "n1"))
    suggested(world["n3"], by_control_plane=True)
    world.run_for(5)

    assert world.leader() is world["n1"]
    assert {node.state.promise.epoch for node in world.nodes.values()} == {epoch}


def test_rule_4_a_candidate_that_is_not_the_best_of_a_majority_asks_the_best_to_campaign() -> None:
    """The control plane names one that cannot win, and nobody leads."""
    world = led()
    world.isolate("n3")
    world["n1"].write("acknowledged")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()

    suggested(world["n3"], by_control_plane=True)
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is world["n2"]


def test_rule_5_a_node_promises_only_to_a_candidate_whose_durable_last_is_at_least_its_own() -> None:
    """A leader without an acknowledged record."""
    world = led()
    world["n1"].write("acknowledged")
    settled(world, world["n1"])
    epoch, index = world["n2"].running.durable

    assert not ask(world["n2"], 50, "n3", last=Last(epoch, index - 1))
    assert not ask(world["n2"], 50, "n3", last=Last(epoch - 1, index + 1))
    assert ask(world["n2"], 50, "n3", last=Last(epoch, index))


def test_rule_6_a_leader_serves_nothing_before_its_epoch_start_is_committed() -> None:
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


def test_rule_7_a_record_commits_when_a_majority_and_the_leaders_own_disk_hold_it() -> None:
    """The leader loses power, and what it answered with it."""
    world = led()
    leader = world["n1"]
    leader.hold_flush = True
    before = leader.state.commit_index
    leader.write("a")
    world.run_until(lambda: all(world[node].log.durable_index > before for node in ("n2", "n3")))
    world.run_for(0.1)
    assert leader.state.commit_index == before

    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)


def test_rule_8_an_opening_compares_epochs_and_a_divergent_suffix_is_never_an_ack() -> None:
    """A follower's durable suffix, which the leader's log does not have, is counted towards a commit."""
    world = led()
    old, leader = divided(world)
    acks = len(old.acked)
    boundary = leader.start_index
    assert old.log.durable_index > boundary

    world.heal()
    settled(world, leader)

    assert old.acked[acks][1] == boundary
    assert values(old) == values(leader) == ["kept"]


def test_rule_9_only_the_stream_opened_last_truncates() -> None:
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


def test_rule_10_a_second_process_with_one_disk_enters_only_if_the_first_does_not_answer() -> None:
    """A copied data_dir promises twice with one disk."""
    guard = DuplicateNodeGuard()
    guard.opened(1, Caller(disk_id("n1"), 100))

    probes = guard.begin_round(Caller(disk_id("n1"), 200))

    assert probes is not None
    assert probes.links == [1]
    assert guard.is_alive(1, probes.nonce)


def test_rule_11_a_leader_that_no_majority_hears_steps_down() -> None:
    """An isolated leader keeps its clients waiting for ever."""
    world = led()

    world.isolate("n1")
    world.run_for(1.2)

    assert not world["n1"].leads


def test_rule_12_a_linearizable_read_waits_for_a_majority_that_heard_the_leader_after_it_arrived() -> None:
    """A deposed leader answers from the past."""
    world = led()
    leader = world["n1"]
    leader.step(events.ReadRequested(1))
    world.run_until(lambda: leader.reads.get(1) == leader.state.commit_index)

    world.isolate("n1")
    leader.step(events.ReadRequested(2))
    world.run_for(1.2)

    assert leader.reads[2] is None


def test_rule_13_a_nomination_is_a_level_and_any_voter_may_when_there_is_none() -> None:
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


def test_an_ack_beyond_what_was_shipped_is_a_peers_fault() -> None:
    """Rules 7 and 8 count what peers say: within what can be true."""
    world = led()
    leader = world["n1"]
    stream = next(iter(leader.leading.downstreams.streams))

    leader.step(events.AckArrived(stream, Ack(10**6, 10**6, 0, bytes(16))))

    assert stream not in leader.leading.downstreams.streams
    assert leader.state.commit_index <= leader.log.tail.index


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


def test_a_follower_that_opens_under_another_promise_is_refused() -> None:
    """Rule 8: a stream belongs to one leadership."""
    world = led()
    leader = world["n1"]
    opening = Open(Promise(99, "n1", 1), tuple(leader.log.epochs), 1, 1)
    assert leader.core is not None

    told = leader.core.handle(events.StreamOpened(777, "n2", disk_id("n2"), opening), world.now, world.clock())

    (answer,) = [action.answer for action in told if isinstance(action, actions.AnswerOpen)]
    assert answer.verb is OpenVerb.REFUSE
