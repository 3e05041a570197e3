"""The disks of all nodes are full: one of them goes on leading and serves reads, and writes go on when there is room.

No simulated history has this: in them a majority is always well.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from quire.cluster.errors import ClusterError
from quire.cluster.node.writing import WriteReply
from quire.cluster.simulator.clock import SECOND
from quire.cluster.simulator.history import History
from quire.cluster.simulator.node.node import Node
from quire.cluster.simulator.node.reads import Reader
from quire.cluster.simulator.plan import ELECTION_US, Plan, calm, settings_of
from quire.log import LogOptions, encode_records
from quire.log.simulated import Keep
from quire.replication import Reason, Write
from quire.replication.core import CoreOptions
from quire.replication.core.fitness import Level

pytestmark = pytest.mark.slow

WRITES_EVERY_US = ELECTION_US // 2
LAW_US = 10 * ELECTION_US
FRAME_BYTES = 2_048
LOG = LogOptions(
    segment_bytes=1 << 16, segment_overflow_bytes=FRAME_BYTES, max_frame_bytes=FRAME_BYTES, reserve_bytes=1 << 14
)


class Writer:
    """A client that writes to the current leader, and counts the outcomes."""

    applied = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.acknowledged = self.refused = self.unknown = 0

    def answer(self, _: WriteReply) -> None:
        self.acknowledged += 1

    def fail(self, _: ClusterError) -> None:
        self.unknown += 1

    def rejected(self, reason: Reason) -> None:
        self.refused += reason is Reason.DISK_FULL


class FullCluster:
    """Three nodes, and clients that go on writing."""

    def __init__(self, *sizes: int) -> None:
        """The clients' writes have these sizes, in turns."""
        drawn = calm(settings_of(1))
        core = CoreOptions(heartbeat_us=drawn.core.heartbeat_us, election_timeout_us=ELECTION_US)
        habits = replace(drawn.habits, clients=0)
        settings = replace(
            drawn, voters=3, observers=0, core=core, log=LOG, habits=habits, rates=(1.0, 1.0, 1.0), retention_bytes=0
        )
        self.history = History(Plan(settings, ()))
        self.schedule, self.nodes = self.history.schedule, self.history.nodes
        self.writers = [Writer(size) for size in sizes]
        self.reads = 0
        self._turns = 0
        self._random = Random(1)
        for node in self.nodes:
            self.history.nemesis.start(node)
        self.until(lambda: self.leader is not None)
        self._ask()

    def _ask(self) -> None:
        """A write and a read."""
        leader, writer = self.leader, self.writers[self._turns % len(self.writers)]
        self._turns += 1
        if leader is not None:
            command = str(self._turns).ljust(writer.size)
            write = Write(encode_records([command]), 1, owner=writer)
            leader.run(leader.life, leader.running.writes.propose, write)
            leader.run(leader.life, leader.running.reads.begin, Reader(self._has_read, lambda: None))
        self.schedule.later(WRITES_EVERY_US, self._ask)

    def _has_read(self, *_: object) -> None:
        self.reads += 1

    @property
    def leader(self) -> Node | None:
        return next((node for node in self.nodes if node.process and node.process.role_state.role.serving), None)

    @property
    def levels(self) -> list[Level]:
        return [node.running.core.status().fitness.level for node in self.nodes]

    @property
    def epoch(self) -> int:
        return max(node.running.core.promise.epoch for node in self.nodes)

    @property
    def reserves(self) -> list[int]:
        return [node.running.log.room.left for node in self.nodes]

    def run_for(self, span_us: int) -> None:
        end = self.schedule.now + span_us
        while self.schedule.now < end:
            self.schedule.run_next()

    def until(self, holds: Callable[[], bool], within_us: int = LAW_US) -> None:
        end = self.schedule.now + within_us
        while not holds():
            assert self.schedule.now < end
            self.schedule.run_next()

    def acknowledges(self, within_us: int = LAW_US) -> None:
        """Wait until one more write of each size is acknowledged."""
        counts = [writer.acknowledged for writer in self.writers]
        self.until(lambda: all(w.acknowledged > n for w, n in zip(self.writers, counts, strict=True)), within_us)

    def fill(self, *nodes: Node) -> None:
        for node in nodes or self.nodes:
            node.disk.full = True


def filled(*sizes: int, copies_on_write: bool = False) -> FullCluster:
    """A cluster in which every node has said that its disk is full."""
    cluster = FullCluster(*sizes)
    for node in cluster.nodes:
        node.disk.copies_on_write = copies_on_write
    cluster.run_for(3 * SECOND)
    cluster.fill()
    cluster.until(lambda: cluster.levels == [Level.NO_ROOM] * 3, 40 * SECOND)
    cluster.run_for(LAW_US)
    return cluster


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((1_500,), id="large", marks=pytest.mark.full),
        pytest.param((1_500, 100), id="large_and_small", marks=pytest.mark.full),
        pytest.param((500,), id="small"),
    ],
)
def test_a_leader_whose_disk_is_as_full_as_all_others_goes_on_leading_and_serves_reads(sizes: tuple[int, ...]) -> None:
    cluster = filled(*sizes)
    epoch, reserves, reads = cluster.epoch, cluster.reserves, cluster.reads
    assert epoch == 1

    cluster.run_for(60 * SECOND)

    assert (cluster.epoch, cluster.reserves) == (epoch, reserves)
    assert cluster.levels == [Level.NO_ROOM] * 3
    assert cluster.reads - reads > 60 * SECOND // WRITES_EVERY_US - 10
    assert cluster.writers[0].unknown == 0


@pytest.mark.full
def test_a_leader_goes_on_for_four_thousand_election_timeouts_with_all_disks_full() -> None:
    cluster = filled(1_500)
    epoch, reserves = cluster.epoch, cluster.reserves
    cluster.run_for(4_000 * ELECTION_US)
    assert (cluster.epoch, cluster.reserves) == (epoch, reserves)


@pytest.mark.parametrize("copies_on_write", [False, True])
@pytest.mark.parametrize("first", ["leader", "follower"])
def test_writes_go_on_when_nodes_get_room_again_whichever_is_first(first: str, copies_on_write: bool) -> None:
    cluster = filled(1_500, copies_on_write=copies_on_write)
    leader = cluster.leader
    assert leader is not None
    others = [node for node in cluster.nodes if node is not leader]
    for node in [leader, *others] if first == "leader" else [*others, leader]:
        node.disk.full = False
        cluster.run_for(3 * ELECTION_US)

    cluster.acknowledges()
    cluster.until(lambda: cluster.levels == [Level.FIT] * 3)


@pytest.mark.parametrize("copies_on_write", [False, True])
def test_a_majority_with_room_goes_on_without_the_leader_that_has_none(copies_on_write: bool) -> None:
    cluster = filled(1_500, copies_on_write=copies_on_write)
    leader = cluster.leader
    for node in cluster.nodes:
        node.disk.full = node is leader

    cluster.acknowledges(2 * LAW_US)

    assert cluster.leader is not leader


def test_a_vote_waits_for_room_and_an_election_ends_when_there_is() -> None:
    cluster = FullCluster(500)
    cluster.run_for(3 * SECOND)
    leader = cluster.leader
    assert leader is not None
    full, other = (node for node in cluster.nodes if node is not leader)
    full.disk.copies_on_write = full.disk.full = True
    leader.die(keep=Keep.EVERYTHING)
    cluster.run_for(2 * LAW_US)
    assert cluster.leader is None
    assert full.process is not None
    assert full.running.core.promise.epoch > full.running.core.state.stored_promise.epoch
    full.disk.full = False

    cluster.acknowledges(3 * LAW_US)

    assert cluster.leader in (full, other)


@pytest.mark.full
def test_a_leader_that_filled_up_last_and_commits_nothing_goes_on_leading_too() -> None:
    """Its log has writes that the others could not append: it is stuck, and they cannot do better."""
    cluster = FullCluster(1_500, 100)
    cluster.run_for(3 * SECOND)
    leader, epoch = cluster.leader, cluster.epoch
    assert leader is not None
    cluster.fill(*(node for node in cluster.nodes if node is not leader))
    fitness = leader.running.core.state.fitness
    cluster.until(lambda: fitness.holds(Level.COMMITS_NOTHING), 40 * SECOND)
    cluster.fill()
    cluster.until(lambda: fitness.holds(Level.NO_ROOM), 40 * SECOND)
    reads = cluster.reads

    cluster.run_for(60 * SECOND)

    assert cluster.leader is leader
    assert cluster.epoch == epoch
    assert min(cluster.reserves) >= LOG.reserve
    assert cluster.reads - reads > 60 * SECOND // WRITES_EVERY_US - 10
    for node in cluster.nodes:
        node.disk.full = False
    cluster.acknowledges(2 * LAW_US)


def test_a_leader_that_refused_a_large_write_is_not_fit_for_taking_small_ones() -> None:
    cluster = filled(1_500)
    leader, small = cluster.leader, Writer(20)
    cluster.writers = [small]
    for _ in range(40):
        cluster.run_for(ELECTION_US // 10)
        assert cluster.levels == [Level.NO_ROOM] * 3
    assert small.acknowledged >= 4  # For two election timeouts nothing was refused.
    assert cluster.leader is leader
