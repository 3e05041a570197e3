"""A core shows a copy of what it knows; nothing outside the core reads its state."""

import re
from pathlib import Path

import pytest

from quire.replication.core import NodeRole
from quire.replication.core.invariants import InvariantBroken, Invariants
from quire.replication.core.status import InstallStatus, Queues, StreamStatus
from tests.replication.running import Cluster
from tests.replication.world import disk_id
from tests.rules.scenes import led

TOP = Path(__file__).resolve().parents[2]
PRODUCT = ("cluster", "replication", "sm", "log", "pipeline")
INSIDES = re.compile(r"\bcore\.(state|leading|following|candidate|writer|live_promise)\b(?! import)")


def test_a_leaders_status_names_its_epoch_its_followers_and_who_is_heard() -> None:
    world = led()
    leader = world["n1"]
    assert leader.core is not None

    status = leader.core.status()

    assert (status.role, status.leader_id, status.following) == (NodeRole.LEADER, "n1", None)
    assert (status.promise, status.commit_index) == (leader.state.promise, leader.log.tail.index)
    assert status.leader is not None
    assert status.leader.heard == {(node_id, disk_id(node_id)) for node_id in ("n1", "n2", "n3")}
    assert status.leader.queues == Queues(0, 0, 0)
    assert sorted(status.leader.streams) == [
        StreamStatus(node_id, leader.log.tail.index, held_for="") for node_id in ("n2", "n3")
    ]
    assert status.leader.installs == ()
    assert InstallStatus("n2", 7).snapshot_index == 7


def test_a_followers_status_names_its_leader_and_says_that_it_matches() -> None:
    world = led()
    follower = world["n2"]
    assert follower.core is not None

    status = follower.core.status()

    assert (status.role, status.leader_id, status.leader) == (NodeRole.FOLLOWER, "n1", None)
    assert status.following == world["n1"].state.promise
    assert (status.is_matched, status.is_voter, status.disk_answers, status.halted) == (True, True, True, None)


def test_a_status_is_a_copy_that_later_steps_do_not_change() -> None:
    world = led()
    leader = world["n1"]
    assert leader.core is not None
    before = leader.core.status()

    leader.write("a")
    world.run_for(0.5)
    world.forget("n3")

    assert before.commit_index < leader.core.status().commit_index
    assert "n3" in before.links


@pytest.mark.parametrize("room", PRODUCT)
def test_nothing_outside_the_core_reads_its_state(room: str) -> None:
    outside = [path for path in (TOP / room).rglob("*.py") if TOP / "replication" / "core" not in path.parents]
    found = [f"{path}: {line}" for path in outside for line in path.read_text().splitlines() if INSIDES.search(line)]
    assert [line for line in found if " import " not in line] == []


def test_a_stream_that_was_shipped_more_than_there_is_breaks_a_rule() -> None:
    leader = led()["n1"]
    assert leader.core is not None
    Invariants().check(leader.core)
    for stream in leader.leading.downstreams.streams.values():
        stream.next_index = leader.log.tail.index + 1
    with pytest.raises(InvariantBroken, match="rule 6: ships what it wrote"):
        Invariants().check(leader.core)


async def test_a_node_that_does_not_lead_has_no_queues() -> None:
    node = Cluster("n1", "n2", "n3").make("n1")
    assert node.replica.core.status().leader is None
