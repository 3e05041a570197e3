"""A node without descriptors: what it cannot read or truncate now waits, and it goes on when there are some again."""

from collections.abc import Callable
from typing import cast

import pytest

from quire.log import Kind, ResourcesExhausted, Tail, encode_system
from quire.replication.core import actions, events
from quire.replication.core.following import Step
from quire.replication.core.messages import Open, Snapshot
from quire.replication.lag import lag_of
from quire.replication.ports import Device
from quire.replication.replica import CheckedDriver
from tests.replication.installing import DEEP, deep
from tests.replication.running import Recorder, connected
from tests.replication.test_members import caught_up
from tests.replication.test_shipping_cache import Streams
from tests.replication.world import SimNode, World, values, voters


class Closing(Streams):
    """Streams of which some are closed and dialled."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[int] = []
        self.dialled: list[int] = []

    def close_stream(self, stream_id: int) -> None:
        self.closed.append(stream_id)

    def dial_stream(self, action: actions.DialStream) -> None:
        self.dialled.append(action.stream_id)


class Reminders:
    """The device of a driver that flushes nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: list[Callable[[], None]] = []

    def now(self) -> int:
        return self.world.now

    def clock(self) -> int:
        return self.world.clock()

    def remind(self, delay_us: int, then: Callable[[], None]) -> None:
        self.waiting.append(then)

    def write(self, block: Callable[[], None], done: Callable[[BaseException | None, int], None]) -> None:
        error: BaseException | None = None
        try:
            block()
        except ResourcesExhausted as raised:
            error = raised
        done(error, 0)


class Installer(Recorder):
    """An owner of whom an install asks something."""

    can_place = True

    def place_snapshot(self, index: int) -> None:
        if not self.can_place:
            raise ResourcesExhausted("snapshots", "no descriptor")

    def snapshot_installed(self, index: int) -> None:
        self.applied_index = index


def driven(node: SimNode) -> tuple[CheckedDriver[None], Closing, Reminders, Installer]:
    """A driver that carries out what a node's core asks for; the world no longer does."""
    assert node.core is not None
    streams, device, owner = Closing(), Reminders(node.world), Installer()
    driver = connected(node.core, node.running, owner.ports, streams, cast("Device", device))
    return driver, streams, device, owner


def openings_of(world: World) -> list[Open]:
    """All openings from now on, as they come."""
    seen: list[Open] = []

    def see(opening: Open) -> Open:
        seen.append(opening)
        return opening

    world.opening = see
    return seen


def divergent() -> World:
    """n1 wrote over several segments, alone; n2 leads since."""
    world = World("n1", "n2", "n3")
    world.start()
    world.elect("n1")
    world["n1"].write("before")
    world.run_for(0.3)
    world.isolate("n1")
    for number in range(DEEP):
        world["n1"].write(f"{number}" * 4_000)
        world.run_for(0.01)
    assert len(world["n1"].log.segments.bases) > 2
    world["n1"].nominated = False
    world.elect("n2")
    world["n2"].write("after")
    return world


def test_a_leader_that_cannot_read_its_log_ships_nothing_and_ships_it_after_a_pause() -> None:
    world = deep()
    leader = world["n1"]
    driver, streams, device, owner = driven(leader)
    [stream_id] = leader.leading.downstreams.streams
    ship = actions.Ship(stream_id, 1, 1 << 20, 0, 0)
    leader.storage.exhausted = True

    driver.carry_out_step(events.Tick(), [ship])

    assert (streams.sent, owner.halts, len(device.waiting)) == ([], [], 1)
    stream = leader.leading.downstreams.streams[stream_id]
    stream.next_index = stream.match_index = 1
    stream.shipping = True
    device.waiting.pop()()
    assert (streams.sent, owner.halts, len(device.waiting)) == ([], [], 1)
    leader.storage.exhausted = False
    device.waiting.pop()()
    assert streams.sent[0].raw


def test_a_driver_whose_truncation_is_refused_drops_the_stream_and_leaves_the_log_as_it_was() -> None:
    world = divergent()
    node = world["n1"]
    world.heal()
    world.run_until(lambda: node.has_stream)
    driver, streams, _, owner = driven(node)
    stream, tail = node.upstream, node.log.tail
    stream.step = Step.TRUNCATING
    assert node.core is not None
    node.core.writer.begin_exclusive(world.now)
    node.storage.exhausted = True

    driver.carry_out_step(events.Tick(), [actions.Truncate(stream.stream_id, 3)])

    assert (streams.closed, owner.halts) == ([stream.stream_id], [])
    assert (node.log.tail, node.log.failure, node.core.writer.is_exclusive) == (tail, None, False)


def test_an_install_that_can_open_no_file_is_finished_later() -> None:
    world = divergent()
    node = world["n1"]
    driver, _, device, owner = driven(node)
    assert node.core is not None
    node.core.writer.begin_exclusive(world.now)
    tail = Tail(1_000, 1, world.clock(), 7)
    node.storage.exhausted = True

    driver.carry_out_step(events.Tick(), [actions.Install(1, Snapshot(*tail, 0, ((0, 0),)))])

    assert (owner.halts, owner.applied_index) == ([], 0)
    assert node.log.bounds.lowest_index == 0
    device.waiting.pop()()
    node.storage.exhausted = False
    device.waiting.pop()()
    assert (owner.halts, owner.applied_index, node.log.tail) == ([], 1_000, tail)


def test_a_snapshot_that_can_open_no_file_is_placed_later() -> None:
    world = divergent()
    node = world["n1"]
    driver, _, device, owner = driven(node)
    assert node.core is not None
    node.core.writer.begin_exclusive(world.now)
    before, tail = node.log.tail, Tail(1_000, 1, world.clock(), 7)
    owner.can_place = False

    driver.carry_out_step(events.Tick(), [actions.Install(1, Snapshot(*tail, 0, ((0, 0),)))])

    device.waiting.pop()()
    assert (owner.halts, owner.applied_index, node.log.tail) == ([], 0, before)
    assert node.core.writer.is_exclusive
    owner.can_place = True
    device.waiting.pop()()
    assert (owner.halts, owner.applied_index, node.log.tail) == ([], 1_000, tail)


def test_until_the_log_begins_at_the_snapshot_it_keeps_what_the_machine_has_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile the machine applies on: what it misses in the log would end the node."""
    world = divergent()
    node = world["n1"]
    driver, _, device, owner = driven(node)
    assert node.core is not None
    node.core.writer.begin_exclusive(world.now)
    first, second, *later = node.log.segments.bases
    owner.applied_index = second
    tail = Tail(1_000, 1, world.clock(), 7)

    def no_descriptor(_: Snapshot) -> None:
        raise ResourcesExhausted("log", "no descriptor")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(node.running, "install", no_descriptor)
        driver.carry_out_step(events.Tick(), [actions.Install(1, Snapshot(*tail, 0, ((0, 0),)))])
        assert (first, node.log.segments.bases) == (0, [second, *later])
    device.waiting.pop()()

    assert (owner.halts, owner.applied_index, node.log.tail) == ([], 1_000, tail)


def test_a_leader_that_cannot_look_up_where_the_logs_part_is_asked_again() -> None:
    world = deep()
    leader = world["n1"]
    leader.storage.exhausted = True
    world.start("n3")
    openings = openings_of(world)
    world.run_until(lambda: len(openings) > 3)

    assert [node.halted for node in world.nodes.values()] == [None, None, None]
    assert world.leader() is leader

    leader.storage.exhausted = False
    world.run_until(lambda: world["n3"].log.tail == leader.log.tail)


@pytest.mark.parametrize("looked_up", [False, True], ids=["lookup", "truncation"])
def test_a_follower_that_can_open_no_file_truncates_later_and_not_in_part(looked_up: bool) -> None:
    world = divergent()
    node, tail = world["n1"], world["n1"].log.tail
    if looked_up:  # The frame where the logs part is in a file that is open for reads.
        node.log.read(1)
    node.storage.exhausted = True
    openings = openings_of(world)
    world.heal()
    world.run_until(lambda: len(openings) > 3)

    assert (node.halted, node.log.tail, node.truncations) == (None, tail, [])

    node.storage.exhausted = False
    world.run_until(lambda: node.log.durable_index == world["n2"].log.durable_index)
    assert (node.halted, len(node.truncations), values(node)[-1]) == (None, 1, "after")


def test_a_lag_that_cannot_be_looked_up_is_that_of_the_whole_log() -> None:
    world = deep()
    log = world["n1"].log
    log.truncate(log.lookup.boundary_at_or_below(log.tail.index - 1))  # It forgets where range reads ended.
    world["n1"].storage.exhausted = True
    told = lag_of(log, 2, world.clock())
    world["n1"].storage.exhausted = False
    known = lag_of(log, 2, world.clock())

    assert (told.records, told.bytes) == (known.records, log.size)
    assert (told.bytes > known.bytes, told.seconds < known.seconds) == (True, True)


def test_a_truncation_that_undoes_a_change_of_members_waits_for_a_descriptor_to_read_those_before_it() -> None:
    world = World("n1", "n2", "n3", observers=("n4",))
    world.start()
    leader = world.elect("n1")
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    assert leader.log.segments.bases[-1] > leader.log.origin.index + 1
    caught_up(world, leader)
    world.isolate("n1")
    leader.promote("n4")
    world.run_until(lambda: bool(leader.log.members_index))
    leader.nominated = False
    world.elect("n2")
    leader.storage.exhausted = True
    changed, tail = leader.state.members, leader.log.tail
    openings = openings_of(world)
    world.heal()
    world.run_until(lambda: len(openings) > 3)

    assert (leader.halted, leader.truncations, leader.log.tail) == (None, [], tail)
    assert leader.state.members is changed

    leader.storage.exhausted = False
    world.run_until(lambda: leader.state.members is not changed)
    assert (leader.halted, len(leader.truncations), leader.log.members_index) == (None, 1, 0)
    assert leader.state.members == world.members


@pytest.mark.parametrize("known", [False, True])
def test_members_after_a_truncation_need_no_descriptor_and_are_those_of_the_last_record_that_stays(
    known: bool,
) -> None:
    world = World("n1")
    world.start()
    disk = world["n1"].running
    expected = {0: world.members}
    for number in range(DEEP):
        disk.log.append([f"{number}" * 4_000], epoch=1)
        if number % 8 == 0:
            members = expected[disk.log.tail.index] = voters("n1", f"n{number + 2}")
            disk.append_system(1, 0, {"type": "members", **members.to_record()})
    assert len(disk.log.segments.bases) > 3

    for cut in range(disk.log.tail.index - 1, 0, -1):
        if known:
            assert disk.members.voters()
        disk.truncate(cut)
        world["n1"].storage.exhausted = True
        index = max(index for index in expected if index < cut)
        assert (disk.log.members_index, disk.members) == (index, expected[index])
        world["n1"].storage.exhausted = False


def test_members_in_a_segment_that_the_same_frames_filled_need_no_descriptor() -> None:
    world = World("n1", "n2")
    world.start()
    world.run_for(0.1)
    disk, other = world["n1"].running, world["n2"].log
    members = voters("n1", "n2", "n3")
    other.append_payload(encode_system({"type": "members", **members.to_record()}), count=1, kind=Kind.SYSTEM, epoch=1)
    start = other.tail.index - 1
    for number in range(DEEP):
        other.append([f"{number}" * 4_000], epoch=1)
    raw, index = b"", start
    while index < other.tail.index:  # A read ends with its segment.
        frames, index = other.read_frames(index, 1 << 20, unflushed=True)
        raw += frames
    made = 0

    def exhaust(operation: str, name: str) -> bool:
        nonlocal made
        made += operation == "create" and name.endswith(".store.new")
        world["n1"].storage.exhausted = made > 1
        return False

    world["n1"].storage.failing = exhaust
    disk.append_frames(raw)
    world["n1"].storage.exhausted = True

    assert disk.log.members_index == start < disk.log.segments.bases[-1]
    assert disk.members == members
