"""Sentences of "In Search of an Understandable Consensus Algorithm" (extended version), by section.

Raft says term, entry and vote; here it is epoch, record and promise.
"""

from quire.log import Frame, Kind, encode_records, encode_system
from quire.replication.core import Promise, events
from quire.replication.core.messages import Heartbeat, HeartbeatEcho, Last, PreVote
from quire.sm import Applier, Sessions, load_machine
from tests.paper.scenes import FAR, ask, divided, hear, led, settled, started, suggested
from tests.replication.world import SimNode, World, disk_id, values


def is_prefix(shorter: list[object], longer: list[object]) -> bool:
    return longer[: len(shorter)] == shorter


# 5.1 and 5.2: terms and election


def test_5_1_a_leader_that_discovers_a_higher_epoch_steps_down() -> None:
    """Raft: 'If a candidate or leader discovers that its term is out of date, it immediately reverts ...'"""
    leader = led()["n1"]
    epoch = leader.state.promise.epoch

    hear(leader, "n2", HeartbeatEcho(epoch, 1, epoch + 1))

    assert not leader.leads


def test_5_2_each_server_votes_for_one_candidate_an_epoch_first_come_first_served() -> None:
    """Raft: 'Each server will vote for at most one candidate in a given term, on a first-come-first-served basis.'"""
    node = started()["n2"]
    assert ask(node, 7, "n3")
    assert not ask(node, 7, "n1")


def test_5_2_a_candidate_wins_with_a_majority_of_the_full_cluster() -> None:
    """Raft: "... votes from a majority of the servers in the full cluster for the same term": two of five are none."""
    world = started("n1", "n2", "n3", "n4", "n5")
    for node in ("n3", "n4", "n5"):
        world.isolate(node)
    suggested(world["n1"], by_control_plane=True)
    world.run_for(5)
    assert not world["n1"].leads

    world.heal()
    world.run_until(lambda: world.leader() is not None)


def test_5_2_a_candidate_that_hears_a_leader_of_its_epoch_follows_it() -> None:
    """Raft: '... then the candidate recognizes the leader as legitimate and returns to follower state.'"""
    world = started()
    node = world["n2"]
    world.isolate("n2")
    suggested(node, by_control_plane=True)
    world.run_for(0.2)
    leader = Promise(max(1, node.state.promise.epoch), "n1", 5)

    hear(node, "n1", Heartbeat(leader, 1, 0))
    world.run_for(0.01)

    assert node.following.leader == leader


def test_5_2_randomized_times_resolve_split_votes() -> None:
    """Raft: 'Raft uses randomized election timeouts to ensure that split votes are rare and ... resolved quickly.'"""
    world = started("n1", "n2", "n3", "n4")
    for node in world.nodes.values():
        suggested(node, by_control_plane=True)

    world.run_until(lambda: world.leader() is not None, within_s=5)


# 5.3: log replication, and figure 3's properties


def test_5_3_election_safety_at_most_one_leader_an_epoch() -> None:
    """Figure 3, Election Safety."""
    world = started()
    for node in world.nodes.values():
        suggested(node, by_control_plane=True)
    world.run_for(5)
    for lost in ("n1", "n2"):
        world[lost].crash()
        world.run_for(3)
        world[lost].start()
        world.run_for(3)

    led_by: dict[int, set[str]] = {}
    for node in world.nodes.values():
        for role in node.roles:
            if role.role == "leader":
                led_by.setdefault(role.epoch, set()).add(node.node_id)
    assert len(led_by) > 1
    assert all(len(leaders) == 1 for leaders in led_by.values())


def test_5_3_a_leader_never_overwrites_its_own_log() -> None:
    """Figure 3, Leader Append-Only."""
    world = led()
    for value in range(5):
        world["n1"].write(value)
        world.run_for(0.01)

    assert world["n1"].truncations == []
    assert values(world["n1"]) == list(range(5))


def test_5_3_log_matching_equal_epoch_and_index_mean_equal_logs_up_to_there() -> None:
    """Figure 3, Log Matching: the frames' crcs form a chain, so equal crcs at one index say so, too."""
    world = led()
    for value in range(5):
        world["n1"].write(value)
    settled(world, world["n1"])

    tails = {node.log.tail for node in world.nodes.values()}
    assert len(tails) == 1
    assert values(world["n1"]) == values(world["n2"]) == values(world["n3"])


def test_5_3_a_record_is_committed_once_a_majority_holds_it() -> None:
    """Raft: 'A log entry is committed once the leader that created the entry has replicated it on a majority.'"""
    world = led("n1", "n2", "n3", "n4", "n5")
    leader = world["n1"]
    for node in ("n3", "n4", "n5"):
        world[node].hold_flush = True
    before = leader.state.commit_index
    leader.write("a")
    world.run_for(0.3)
    assert leader.state.commit_index == before

    world["n3"].release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)


def test_5_3_conflicting_records_of_a_follower_are_replaced_by_the_leaders() -> None:
    """Raft: '... conflicting entries in follower logs will be overwritten with entries from the leader's log.'"""
    world = led()
    old, leader = divided(world)

    world.heal()
    settled(world, leader)

    assert old.truncations == [leader.start_index]
    assert values(old) == values(leader) == ["kept"]


# 5.4: safety


def test_5_4_1_a_voter_denies_a_candidate_whose_log_is_behind_its_own() -> None:
    """Raft: '... the voter denies its vote if its own log is more up-to-date than that of the candidate.'"""
    world = led()
    world["n1"].write("a")
    settled(world, world["n1"])
    epoch, index = world["n2"].running.durable

    assert not ask(world["n2"], 50, "n3", last=Last(epoch, index - 1))


def test_5_4_1_a_later_last_epoch_is_more_up_to_date_than_a_longer_log() -> None:
    """Raft: '... then the log with the later term is more up-to-date.'"""
    epoch, index = led()["n2"].running.durable
    assert Last(epoch + 1, 1) > Last(epoch, index) > Last(epoch - 1, index + 1000)


def test_5_4_2_records_of_earlier_epochs_do_not_commit_by_counting() -> None:
    """Raft: "Raft never commits log entries from previous terms by counting replicas": figure 8."""
    world = led()
    old = world["n1"]
    before = old.state.commit_index
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    old.write("of the first epoch")
    world.run_until(lambda: all(node.log.tail.index == old.log.tail.index for node in world.nodes.values()))
    old.crash()
    for follower in ("n2", "n3"):
        world[follower].release()
    world.run_for(0.9)
    held = world["n2"].log.durable_index
    assert held > before
    leader = world["n2"]
    suggested(leader, by_control_plane=True)
    leader.hold_flush = True  # Its epoch_start becomes durable nowhere; the old record is everywhere.
    world.run_until(lambda: leader.leads)
    world.run_for(0.2)

    assert leader.log.durable_index <= leader.start_index
    assert leader.state.commit_index == before
    leader.release()
    world.run_until(lambda: leader.state.commit_index > leader.start_index)
    assert values(leader) == ["of the first epoch"]


def test_5_4_3_leader_completeness_what_was_committed_is_in_every_later_leaders_log() -> None:
    """Figure 3, Leader Completeness; and State Machine Safety: no index ever holds two records."""
    world = led()
    committed: list[object] = []
    for number, node in enumerate(("n1", "n2", "n3", "n1")):
        for other in world.nodes.values():
            suggested(other, by_control_plane=other.node_id == node)
        leader = world.leader()
        if leader is not None and leader is not world[node]:
            leader.crash()
        world.run_until(lambda: world.leader() is not None)
        current = world.leader()
        assert current is not None
        assert is_prefix(committed, values(current))
        current.write(number)
        settled(world, current)
        committed = values(current, current.state.commit_index)
        for other in world.nodes.values():
            if other.core is None:
                other.start()
        settled(world, current)

    assert committed == [0, 1, 2, 3]


# 6: membership


def test_6_a_server_that_hears_a_leader_disregards_requests_for_votes() -> None:
    """Raft: '... servers disregard RequestVote RPCs when they believe a current leader exists.'"""
    world = led()
    sent = len(world["n2"].roles)
    before = world["n2"].state.promise

    hear(world["n2"], "n3", PreVote(1, FAR, None))
    world.run_for(0.1)

    assert world["n2"].state.promise == before
    assert len(world["n2"].roles) == sent


def test_6_a_server_that_only_replicates_is_not_considered_for_majorities() -> None:
    """Raft: '... the leader replicates log entries to them, but they are not considered for majorities.'"""
    world = World("n1", "n2", "n3")
    world.members = World("n1", "n2").members
    world.start()
    leader = world.elect("n1")
    settled(world, leader)
    world["n2"].hold_flush = True
    leader.write("a")
    world.run_for(0.3)

    assert world["n3"].log.durable_index == leader.log.tail.index
    assert leader.state.commit_index < leader.log.tail.index


# 8: client interaction


def test_8_a_leader_begins_its_epoch_with_a_record_of_its_own() -> None:
    """Raft: '... having each leader commit a blank no-op entry into the log at the start of its term.'"""
    leader = led()["n1"]
    record = leader.log.read(leader.start_index)

    assert record.value == {"type": "epoch_start", "node_id": "n1"}
    assert record.epoch == leader.state.promise.epoch


def test_8_a_read_only_request_is_answered_after_heartbeats_with_a_majority() -> None:
    """Raft: '... having the leader exchange heartbeat messages with a majority ... before responding.'"""
    world = led()
    leader = world["n1"]
    epoch = leader.state.promise.epoch
    world.cut(("n2", "n1"), ("n3", "n1"))

    leader.step(events.ReadRequested(7))
    hear(leader, "n2", HeartbeatEcho(epoch, 1, epoch))
    assert leader.reads == {}  # That echo is of an earlier heartbeat.

    world.heal()
    world.run_until(lambda: leader.reads.get(7) is not None)


def test_8_a_command_whose_serial_number_was_executed_is_answered_without_executing_it_again() -> None:
    """Raft: 'If it receives a command whose serial number has already been executed, it responds immediately ...'"""
    machine = load_machine("arithmetic")(42)
    applier = Applier(machine, sessions=Sessions(session_window=10, max_sessions=10))
    node = SessionLog()

    for frame in node.frames():
        applier.apply(frame)

    assert applier.state() == "45"


class SessionLog:
    """A log that has one session's first command twice: its client retried."""

    def __init__(self) -> None:
        self.node: SimNode = led("n1")["n1"]
        log = self.node.log
        log.append_payload(encode_system({"type": "open_session", "name": None}), count=1, kind=Kind.SYSTEM, epoch=1)
        session = log.tail.index - 1
        for _ in range(2):
            payload = encode_records([["add", 3]])
            log.append_payload(payload, count=1, kind=Kind.RECORDS, epoch=1, session=session, sequence=1)
        log.flush()

    def frames(self) -> list[Frame]:
        return list(self.node.log.stream(0, self.node.log.tail.index))


# Leadership transfer (section 3.10 of the Raft thesis)


def test_3_10_a_server_that_would_make_no_good_leader_hands_over_to_one_that_holds_everything() -> None:
    """Thesis: 'In some cases, one or more servers may be more suitable to lead the cluster than others.'"""
    world = led()
    leader = world["n1"]
    world.run_for(3)
    leader.write("before")

    leader.machine_failed = True
    world.run_until(lambda: world.leader() not in (None, leader), within_s=2)

    other = world.leader()
    assert other is not None
    assert values(other) == ["before"]


def test_3_10_a_server_that_is_unsuitable_votes_like_the_others() -> None:
    """5.2: 'Each server will vote for at most one candidate in a given term, on a first-come-first-served basis.'"""
    world = started()
    for node in world.nodes.values():
        node.machine_failed = True
    world.run_for(0.3)
    assert ask(world["n2"], 5, "n1")
    assert not ask(world["n2"], 5, "n3")


def test_the_disk_of_a_member_is_its_vote() -> None:
    """5: servers keep their state on stable storage; one that lost it is another server."""
    world = started()
    assert world["n1"].state.members.is_voter("n2", disk_id("n2"))
    assert not world["n1"].state.members.is_voter("n2", bytes(16))
