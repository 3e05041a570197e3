"""`/members`: who counts; a node that lost its disk is made a voter again, asked of any node."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

import quire
from quire.cluster.node.membership import Changes, error_of
from quire.cluster.node.views.status import node_status
from quire.replication.core import Members
from quire.replication.core.membership import changing
from tests.cluster.running import RunningCluster, running_cluster, started

JSON = "application/json"
VOTER = b'{"role": "voter"}'
DEADLINE_S = 60.0


async def promoted(cluster: RunningCluster, asked: str, node_id: str) -> list[int]:
    """Ask until it is done, as a client does."""
    async with quire.connect(cluster.address(asked), timeout_s=DEADLINE_S) as client:
        return await client.membership.promote(node_id)


async def rows(cluster: RunningCluster, asked: str) -> list[dict[str, Any]]:
    reply = await cluster.ask(asked, "GET", "/members")
    assert reply.status == 200, reply
    members: list[dict[str, Any]] = reply.document["members"]
    return members


async def shown(cluster: RunningCluster, asked: str, *expected: tuple[str, str, bool]) -> list[dict[str, Any]]:
    """The rows, once they are these nodes, their roles, and whether they are heard."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await rows(cluster, asked)
            if [(row["node_id"], row["role"], row["heard"]) for row in found] == list(expected):
                return found


async def wiped(cluster: RunningCluster, node_id: str) -> None:
    """It comes back with an empty disk."""
    config = cluster.nodes[node_id].config
    await cluster.stop(node_id)
    await asyncio.to_thread(shutil.rmtree, config.data_dir)
    cluster.nodes[node_id] = await started(config)
    await cluster.ready()


async def test_a_wiped_node_is_a_voter_again_by_two_changes_and_takes_part_in_everything(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=3_000) as cluster:
        before = {row["node_id"]: row["disk_id"] for row in await rows(cluster, "n2")}
        await wiped(cluster, "n3")
        all_heard = [("n1", "voter", True), ("n2", "voter", True), ("n3", "voter", True)]
        await shown(cluster, "n1", *all_heard[:2], ("n3", "observer", True), ("n3", "voter", False))
        assert cluster.nodes["n3"].node.leadership.role.role == "observer"

        changes = await promoted(cluster, "n2", "n3")

        assert len(changes) == 2
        after = await shown(cluster, "n3", *all_heard)
        assert {row["node_id"] for row in after if row["disk_id"] != before[row["node_id"]]} == {"n3"}
        assert all(row["lag"] is not None for row in after)
        assert await promoted(cluster, "n3", "n3") == []
        # The control plane is among the three again, and n3 may lead.
        await cluster.ready()
        await cluster.lead("n3")
        await cluster.stop("n2")
        assert (await cluster.commands("n1", ["add", 1]))["results"] == ["43"]
        for running in cluster.nodes.values():
            members = node_status(running.node)["members"]
            assert [(member["node_id"], member["role"]) for member in members] == [
                (node_id, "voter") for node_id in ("n1", "n2", "n3")
            ]


async def test_members_survive_a_restart_of_all(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=3_000) as cluster:
        await wiped(cluster, "n3")
        await promoted(cluster, "n1", "n3")
        known = [(row["node_id"], row["disk_id"]) for row in await rows(cluster, "n1")]
        for node_id in ("n1", "n2", "n3"):
            await cluster.restart(node_id)
        await cluster.ready()
        assert [(row["node_id"], row["disk_id"]) for row in await rows(cluster, "n2")] == known
        assert (await cluster.commands("n3", ["add", 1]))["results"] == ["43"]


async def test_a_node_that_is_behind_is_refused_with_its_numbers(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=30_000) as cluster:
        await wiped(cluster, "n3")
        replica = cluster.nodes["n1"].node.components.replica
        object.__setattr__(replica.core.state.options, "promotable_bytes", -1)

        reply = await cluster.ask("n2", "PATCH", "/members/n3", VOTER, JSON)

        assert (reply.status, reply.problem) == (503, "node-behind")
        assert reply.document["lag_bytes"] >= 0
        assert reply.document["limit_bytes"] == -1
        assert [row["role"] for row in await rows(cluster, "n1")].count("voter") == 3


async def test_what_stops_between_the_two_changes_is_unknown_and_said_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=30_000) as cluster:
        await wiped(cluster, "n3")
        node = cluster.nodes["n1"].node
        options, limit = (
            node.components.replica.core.state.options,
            node.components.replica.core.state.options.promotable_bytes,
        )

        def falls_behind(members: Members) -> None:
            object.__setattr__(options, "promotable_bytes", -1)

        monkeypatch.setattr(node.leadership, "members_changed", falls_behind)
        reply = await cluster.ask("n2", "PATCH", "/members/n3", VOTER, JSON)
        assert (reply.status, reply.problem) == (504, "outcome-unknown")
        assert "the old disk's vote was removed" in reply.document["detail"]
        assert [row["node_id"] for row in await rows(cluster, "n1") if row["role"] == "voter"] == ["n1", "n2"]

        monkeypatch.undo()
        object.__setattr__(options, "promotable_bytes", limit)
        reply = await cluster.ask("n2", "PATCH", "/members/n3", VOTER, JSON)
        assert (reply.status, len(reply.document["changes"])) == (200, 1)


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (changing.NotServing(7, 5), {"start_index": 7, "commit_index": 5}),
        (changing.ChangeUnderWay(9, 8), {"members_index": 9, "commit_index": 8}),
        (changing.NotConnected(("n2",)), {"node": "n3", "connected": ["n2"]}),
        (changing.NotFollowing(), {"node": "n3", "lag_bytes": None}),
        (changing.Behind(11, 10), {"lag_bytes": 11, "limit_bytes": 10}),
        (changing.Unheard(("n2",), 1, 2), {"unheard": ["n2"], "heard": 1, "majority": 2}),
        (changing.TooMany(65, 64), {"count": 65, "limit": 64}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_refusal_has_its_numbers(outcome: changing.Refused, named: dict[str, Any]) -> None:
    error = error_of(outcome, changing.Promote("n3", "n3:1"), lambda: None)
    assert {name: vars(error)[name] for name in named} == named
    assert str(error)


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    Changes(cast("Any", None), lambda: None, lambda _: None, 1).change_ended(7, changing.Unchanged())


async def test_a_cluster_of_one_grows_and_the_control_plane_with_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=2, election_timeout_ms=2_000, initial_members=("n1",)) as cluster:
        assert len(await promoted(cluster, "n2", "n2")) == 1
        await shown(cluster, "n1", ("n1", "voter", True), ("n2", "voter", True))
        await cluster.lead("n2")
        await cluster.lead("n1")
        async with asyncio.timeout(DEADLINE_S):  # One of the two is nominated, and no longer n1 for good.
            while (
                sum(running.node.components.replica.core.candidate.nominated for running in cluster.nodes.values()) != 1
            ):
                await cluster.ask("n1", "GET", "/healthz")
        assert (await cluster.commands("n2", ["add", 1]))["results"] == ["43"]


@pytest.mark.parametrize(
    ("asked", "method", "body"),
    [("n1", "DELETE", None), ("n2", "DELETE", None), ("n2", "PATCH", b'{"role": "observer"}')],
    ids=["removed, asked itself", "removed", "demoted"],
)
async def test_a_leader_hands_over_before_its_own_row_changes_and_the_caller_gets_one_answer(
    tmp_path: Path, asked: str, method: str, body: bytes | None
) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=2_000) as cluster:
        reply = await cluster.ask(asked, method, "/members/n1", body, None if body is None else JSON)

        assert reply.status == 200, reply
        assert (reply.document["node_id"], len(reply.document["changes"])) == ("n1", 1)
        status = (await cluster.ask("n2", "GET", "/status")).document
        assert ("n1", "voter") not in [(row["node_id"], row["role"]) for row in status["members"]]
