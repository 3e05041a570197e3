"""The limit on a machine's state: in the genesis with its feature, and held by every node however it got its state."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.client import CommandRefused, connect
from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.genesis import make_genesis, read_genesis
from quire.cluster.node.views.status import visible_bounds
from quire.log import FEATURES, walk_frames
from quire.replication import Member, Members, Role
from quire.sm import STATE_BYTES, Applier, ArithmeticMachine, KvMachine, state_room
from tests.cluster.running import RunningCluster, applied_index, running_cluster, started
from tests.sm.frames import Frames

LIMIT = 100_000
VALUE = "x" * 60_000
DEADLINE_S = 60.0


def genesis(features: frozenset[str], **settings: Any) -> bytes:
    """The frame that a node makes when all members offer these features."""
    members = Members((Member("n1", b"1" * 16, "h:1", Role.VOTER),))
    config = ServeConfig(
        node="n1", listen="127.0.0.1:1", members={"n1": "127.0.0.1:1"}, data_dir=Path("n1"), **settings
    )
    return make_genesis(members, ("kv", 1), None, config, features)


def replica(frame: bytes) -> tuple[Applier, Frames]:
    """What applies a log that begins with this genesis, and the frames that follow."""
    applier = Applier(read_genesis(frame).new_machine(KvMachine))
    [first] = walk_frames(frame)
    applier.apply(first)
    return applier, Frames(index=1, prev_crc32c=first.header.crc32c)


def codes(applier: Applier, frames: Frames, *commands: list[Any]) -> list[str]:
    return [code for _, code, _ in applier.apply(frames.records(commands)).refused]


PUTS = [["put", "a", VALUE], ["put", "b", VALUE]]


def test_a_cluster_has_the_limit_if_its_genesis_names_the_feature() -> None:
    applier, frames = replica(genesis(FEATURES, state_bytes=LIMIT))

    assert codes(applier, frames, *PUTS) == ["STATE_FULL"]
    assert codes(applier, frames, ["delete", "a"], PUTS[1]) == []


def test_a_restored_replica_refuses_what_the_others_refuse() -> None:
    frame = genesis(FEATURES, state_bytes=LIMIT)
    applier, frames = replica(frame)
    codes(applier, frames, PUTS[0])

    made = read_genesis(frame)
    machine, sessions = made.new_machine(KvMachine), made.new_sessions()
    other = Applier.restored(applier.content(), applier.boundary, machine, sessions, "a snapshot")

    next_ = frames.records([PUTS[1], ["put", "a", "short"], PUTS[1]])
    assert applier.apply(next_).refused[0][:2] == [0, "STATE_FULL"]
    other.apply(next_)
    assert (other.digest, other.state()) == (applier.digest, applier.state())


def test_a_machine_without_the_hook_has_no_limit_and_a_limit_of_0_is_none() -> None:
    assert read_genesis(genesis(FEATURES)).new_machine(KvMachine).query(["size"])["limit"] == STATE_BYTES
    assert read_genesis(genesis(FEATURES, state_bytes=0)).new_machine(KvMachine).query(["size"])["limit"] is None
    arithmetic = read_genesis(genesis(FEATURES, state_bytes=1))._replace(initial=42).new_machine(ArithmeticMachine)
    assert arithmetic.query(None) == "42"


@pytest.mark.asyncio
async def test_a_full_state_takes_no_put_and_any_delete_also_after_a_restart(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine="kv", state_bytes=LIMIT) as cluster:
        assert (await cluster.commands("n1", PUTS[0]))["results"] == [True]
        [[position, code, text]] = (await cluster.commands("n1", ["get", "none"], PUTS[1]))["refused"]
        assert (position, code) == (1, "STATE_FULL")
        assert str(LIMIT) in text
        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200

        await cluster.restart("n1")
        await cluster.ready()

        async with connect(cluster.address("n1")) as client:
            with pytest.raises(CommandRefused, match="STATE_FULL"):
                await client.apply(PUTS[1])
            assert await client.query(["get", "b"]) is None
            assert (await client.apply_batch([["delete", "a"], PUTS[1]])).results == [True, True]
            size = await client.query(["size"])
            assert isinstance(size, dict)
            assert size["limit"] == LIMIT


@pytest.mark.asyncio
async def test_a_node_tells_how_full_its_state_is_and_raises_an_alarm_before_it_is_full(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine="kv", state_bytes=LIMIT) as cluster:

        async def told() -> tuple[int, list[str]]:
            status = (await cluster.ask("n1", "GET", "/status")).document
            room = status["machine"]
            shown = (await cluster.ask("n1", "GET", "/metrics")).body.decode().splitlines()
            assert f"quire_state_bytes {float(room['state_bytes'])}" in shown
            assert f"quire_state_limit_bytes {float(LIMIT)}" in shown
            assert room["state_limit_bytes"] == LIMIT
            return room["state_bytes"], status["alarms"]

        assert await told() == (0, [])
        await cluster.commands("n1", PUTS[0])
        size, alarms = await told()
        assert len(VALUE) < size < LIMIT
        assert alarms == []
        await cluster.commands("n1", ["put", "b", "x" * 35_000])
        size, [alarm] = await told()
        assert f"the machine's state has {size} of at most {LIMIT} bytes" in alarm
        await cluster.commands("n1", ["delete", "b"])
        assert (await told())[1] == []


def test_a_machine_that_has_no_limit_has_no_room_to_tell() -> None:
    assert state_room(ArithmeticMachine(42), {"state_bytes": LIMIT}) == (0, 0)
    assert not state_room(KvMachine(), {}).is_scarce


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_node_that_installs_a_snapshot_has_the_limit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"segment_bytes": 64 * 1024, "snapshot_log_bytes": 0}
    settings |= {"retention_bytes": 1, "retention_follower_bytes": 0}
    async with running_cluster(tmp_path, 3, machine="kv", state_bytes=LIMIT, **settings) as cluster:
        config, leader = cluster.nodes["n3"].config, cluster.nodes["n1"].node
        await cluster.stop("n3")
        lacks = visible_bounds(leader).highest_index
        async with asyncio.timeout(DEADLINE_S):
            while visible_bounds(leader).lowest_index <= lacks:
                for _ in range(3):
                    await cluster.commands("n1", PUTS[0])
                for node_id in cluster.nodes:
                    assert (await cluster.ask(node_id, "POST", "/admin/snapshot")).status == 200
                    await cluster.ask(node_id, "POST", "/admin/expire")

        cluster.nodes["n3"] = await started(config)
        await cluster.ready()

        assert [code for _, code, _ in (await cluster.commands("n3", PUTS[1]))["refused"]] == ["STATE_FULL"]
        await same_digest(cluster)


async def same_digest(cluster: RunningCluster) -> None:
    """Return when n3 has applied all that the leader has, with its digest."""
    node, leader = cluster.nodes["n3"].node, cluster.nodes["n1"].node
    async with asyncio.timeout(DEADLINE_S):
        while applied_index(node) < applied_index(leader):
            await cluster.ask("n1", "GET", "/healthz")
    assert node.components.applying.digest == leader.components.applying.digest
