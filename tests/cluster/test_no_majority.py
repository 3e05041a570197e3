"""When a node's refusal tells that its voters are no majority: not while they may still be starting."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from quire.cluster.errors import ClusterError, NoMajority
from quire.cluster.http.problems import problem_of
from quire.cluster.node.health import Health
from quire.cluster.node.leadership import LEADERLESS_TIMEOUTS, Leadership
from quire.replication.core import NodeRole, events
from quire.replication.core.actions import RoleChanged
from tests.replication.world import SimNode
from tests.rules.scenes import started

TIMEOUT_S = 1.0
PATIENCE_S = LEADERLESS_TIMEOUTS * TIMEOUT_S
UNKNOWN = "no leader is known at the moment"
TOO_FEW = "1 of 2 voters is no majority: start n2"


class Refusing:
    """The leadership of n1 of two voters, which has just begun to run, and its clock. Await nothing meanwhile."""

    def __init__(self, node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.leadership = Leadership("n1", 0.1, TIMEOUT_S, Health("n1"))
        replica: Any = SimpleNamespace(core=node.core, network=node, driver=node)
        self.leadership.run(replica, lambda *_: None)

    def after(self, wait_s: float) -> ClusterError:
        """Its refusal after that time."""
        self.now += wait_s
        error = self.leadership.not_leader()
        assert error is not None
        return error

    def hears(self, leader: str | None, epoch: int) -> None:
        self.leadership.role_changed(RoleChanged(NodeRole.FOLLOWER, epoch, leader, False, ""))


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    with pytest.MonkeyPatch.context() as clock:
        made = Refusing(started("n1", "n2")["n1"], clock)
        yield made
    await made.leadership.stop()


async def test_a_voter_that_is_not_reached_may_be_starting_until_the_node_has_waited_for_a_while(
    refusing: Refusing,
) -> None:
    refusing.node.step(events.LinkDown("n2"))
    assert str(refusing.after(PATIENCE_S - 0.5)) == UNKNOWN
    assert str(refusing.after(0.5)) == f"no leader is known: {TOO_FEW}"

    refusing.hears("n2", 1)
    refusing.now += PATIENCE_S
    refusing.hears(None, 1)
    refusing.now += 1.0
    refusing.hears(None, 2)
    assert str(refusing.after(PATIENCE_S - 1.5)) == UNKNOWN
    assert str(refusing.after(0.5)) == f"no leader is known: {TOO_FEW}"


async def test_voters_that_are_reached_may_elect_a_leader_however_long_it_takes(refusing: Refusing) -> None:
    assert str(refusing.after(100 * PATIENCE_S)) == UNKNOWN


async def test_the_refusal_of_too_few_voters_is_that_of_no_leader_with_the_sentence_and_how_long_it_has_been_so(
    refusing: Refusing,
) -> None:
    refusing.node.step(events.LinkDown("n2"))
    error = refusing.after(PATIENCE_S)
    assert isinstance(error, NoMajority)
    answer = problem_of(error, "r1")
    document = orjson.loads(cast("bytes", answer.body))
    assert (answer.status, document["type"]) == (503, "urn:quire:problem:no-leader")
    assert (document["no_majority"], document["leaderless_s"]) == (TOO_FEW, PATIENCE_S)
