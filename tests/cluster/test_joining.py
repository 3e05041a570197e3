"""A node alone forms a cluster, others join it at any member, and all find each other at the addresses in the log."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import quire
from quire.cluster.config.serve import ServeConfig
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import not_ready_reasons, standing_alarms
from quire.log import MEMBERSHIP
from tests.cluster.running import RunningCluster, free_addresses, running_cluster, started
from tests.tuned import tuned

JSON = "application/json"
DEADLINE_S = 60.0
TIMEOUT_MS = 3_000


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # Nothing tells.
            await asyncio.sleep(0)


def config_of(folder: Path, node_id: str, listen: str, **settings: Any) -> ServeConfig:
    settings = {"election_timeout_ms": TIMEOUT_MS, "check_invariants": True} | settings
    return tuned(ServeConfig, node=node_id, listen=listen, data_dir=folder / node_id, **settings)


def secret_in(folder: Path) -> Path:
    """A file with which peers prove themselves: else a node says nothing to one that it does not know."""
    file = folder / "secret"
    file.write_text("between the nodes of a test\n")
    file.chmod(0o600)
    return file


async def begin(cluster: RunningCluster, config: ServeConfig) -> Node:
    cluster.nodes[config.node] = await started(config)
    return cluster.nodes[config.node].node


async def in_use(cluster: RunningCluster) -> None:
    """Wait until the log of every node has the record that permits rows without a disk."""
    await until(
        lambda: all(
            MEMBERSHIP in running.node.formed.replica.core.state.features
            for running in cluster.nodes.values()
            if running.node.formed is not None
        )
    )


async def add(cluster: RunningCluster, asked: str, **addresses: str) -> None:
    await in_use(cluster)
    async with quire.connect(cluster.address(asked), timeout_s=DEADLINE_S) as client:
        assert await client.membership.add(addresses)


def roles(node: Node) -> dict[str, str]:
    if node.formed is None:
        return {}
    return {member.node_id: str(member.role) for member in node.formed.replica.core.members.members}


def said(node: Node) -> str:
    return "; ".join(not_ready_reasons(node))


async def voting(cluster: RunningCluster, *node_ids: str) -> None:
    """Wait until each node's log says that these are the voters, and all are ready."""
    expected = dict.fromkeys(node_ids, "voter")
    await until(lambda: all(roles(running.node) == expected for running in cluster.nodes.values()))
    await cluster.ready()


async def test_one_node_grows_to_three_that_join_at_the_leader_and_at_a_follower(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=1, election_timeout_ms=TIMEOUT_MS) as cluster:
        n1, (two, three) = cluster.address("n1"), free_addresses(2)
        await add(cluster, "n1", n2=two)
        await begin(cluster, config_of(tmp_path, "n2", two, join=(n1,)))
        await voting(cluster, "n1", "n2")
        await cluster.lead("n1")
        await add(cluster, "n2", n3=three)
        await begin(cluster, config_of(tmp_path, "n3", three, join=(two,)))
        await voting(cluster, "n1", "n2", "n3")

        reply = await cluster.ask("n3", "GET", "/cluster")
        assert sorted(reply.document["nodes"]) == ["n1", "n2", "n3"]
        await cluster.lead("n3")  # It stands in nobody's configuration but its own.
        reply = await cluster.ask("n1", "GET", "/healthz")
        assert reply.headers["Quire-Leader"] == f"n3={three}"
        assert (await cluster.commands("n1", ["add", 1]))["results"] == ["43"]


async def test_a_node_started_first_prints_the_command_and_joins_once_it_was_added(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=1, election_timeout_ms=TIMEOUT_MS) as cluster:
        n1, (two,) = cluster.address("n1"), free_addresses(1)
        node = await begin(cluster, config_of(tmp_path, "n2", two, join=(n1,)))
        await until(lambda: n1 in said(node).split("waits for")[1])
        assert f"quire members add n2={two} --server {n1}" in said(node)
        assert node.formed is None, "no genesis goes to a node that is no member"

        await add(cluster, "n1", n2=two)
        await voting(cluster, "n1", "n2")


async def test_a_node_with_join_forms_no_cluster_though_its_addresses_are_its_own_or_silent(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, count=1) as cluster:
        (own, silent) = free_addresses(2)
        node = await begin(cluster, config_of(tmp_path, "n2", own, join=(own, silent)))
        await until(lambda: silent in said(node))
        assert node.formed is None
        assert not (await asyncio.to_thread(lambda: list((tmp_path / "n2").glob("segments/*"))))


async def test_two_nodes_that_join_each_other_form_no_cluster(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    async with running_cluster(tmp_path, count=1, peer_secret_file=secret) as cluster:
        two, three = free_addresses(2)
        n2 = await begin(cluster, config_of(tmp_path, "n2", two, join=(three,), peer_secret_file=secret))
        n3 = await begin(cluster, config_of(tmp_path, "n3", three, join=(two,), peer_secret_file=secret))
        await until(lambda: "n3: not reached" not in said(n2) and "n3: " in said(n2))
        await until(lambda: "n2: not reached" not in said(n3) and "n2: " in said(n3))
        assert (n2.formed, n3.formed) == (None, None)


async def test_joined_nodes_start_again_by_their_logs_though_nobody_answers_at_the_address_of_join(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, count=1, election_timeout_ms=TIMEOUT_MS) as cluster:
        n1, (two, three) = cluster.address("n1"), free_addresses(2)
        await add(cluster, "n1", n2=two, n3=three)
        await begin(cluster, config_of(tmp_path, "n2", two, join=(n1,)))
        await begin(cluster, config_of(tmp_path, "n3", three, join=(n1,)))
        await voting(cluster, "n1", "n2", "n3")
        await cluster.lead("n2")
        await cluster.stop("n1")
        await cluster.stop("n3")
        await cluster.stop("n2")

        await begin(cluster, config_of(tmp_path, "n2", two, join=(n1,)))
        await begin(cluster, config_of(tmp_path, "n3", three))  # Without --join, too: it is formatted.
        await cluster.ready()
        assert (await cluster.commands("n3", ["add", 1]))["results"] == ["43"]


async def test_a_moved_member_is_found_at_its_new_address_by_the_others_and_by_callers(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=TIMEOUT_MS) as cluster:
        await in_use(cluster)
        (moved,) = free_addresses(1)
        async with quire.connect(cluster.address("n2"), timeout_s=DEADLINE_S) as client:
            assert len(await client.membership.move("n3", moved)) == 1
        members = dict(cluster.nodes["n3"].config.members)
        await cluster.stop("n3")

        node = await begin(cluster, config_of(tmp_path, "n3", moved, members={**members, "n3": moved}))
        await cluster.ready()
        await cluster.lead("n3")
        reply = await cluster.ask("n1", "GET", "/healthz")
        assert reply.headers["Quire-Leader"] == f"n3={moved}"
        assert (await cluster.commands("n1", ["add", 1]))["results"] == ["43"]
        assert not any("this node's configuration has" in text for text in standing_alarms(node))
        [alarm] = [text for text in standing_alarms(cluster.nodes["n1"].node) if "configuration has" in text]
        assert f"n3={members['n3']}" in alarm.split("and the log")[0]
        assert f"n3={moved}" in alarm.split("and the log")[1]


async def test_an_address_of_another_node_or_another_cluster_is_refused(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    async with (
        running_cluster(tmp_path / "here", election_timeout_ms=TIMEOUT_MS, peer_secret_file=secret) as cluster,
        running_cluster(tmp_path / "there", count=1, peer_secret_file=secret) as other,
    ):
        await in_use(cluster)
        for path, method, document in (
            ("/members", "POST", {"members": {"n4": other.address("n1")}}),
            ("/members/n3", "PATCH", {"address": other.address("n1")}),
        ):
            reply = await cluster.ask("n1", method, path, orjson.dumps(document), JSON)
            assert (reply.status, reply.problem) == (409, "address-unusable"), reply
            assert other.address("n1") in reply.document["detail"]
        (two,) = free_addresses(1)
        await begin(cluster, config_of(tmp_path, "n5", two, join=(cluster.address("n1"),), peer_secret_file=secret))
        body = orjson.dumps({"members": {"n4": two}})
        reply = await cluster.ask("n1", "POST", "/members", body, JSON)
        assert (reply.status, reply.problem) == (409, "address-unusable"), reply
        assert "n5" in reply.document["detail"]
        assert sorted(roles(cluster.nodes["n1"].node)) == ["n1", "n2", "n3"]


async def test_a_member_that_is_down_cannot_be_drained(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, election_timeout_ms=TIMEOUT_MS) as cluster:
        await cluster.stop("n3")
        reply = await cluster.ask("n1", "PATCH", "/members/n3", b'{"drained": true}', JSON)
        assert (reply.status, reply.problem) == (503, "node-unreachable"), reply


async def removed_while_away(cluster: RunningCluster) -> tuple[Node, int]:
    """n3, started again after it was removed, and the index of the record."""
    await in_use(cluster)
    gone = cluster.nodes["n3"]
    await cluster.stop("n3")
    async with quire.connect(cluster.address("n2"), timeout_s=DEADLINE_S) as client:
        [index] = await client.membership.remove("n3")
    return await begin(cluster, gone.config), index


@pytest.mark.parametrize("proves", [True, False], ids=["by-a-secret", "by-nothing"])
async def test_a_node_that_was_removed_while_it_was_away_stops_when_it_comes_back(
    tmp_path: Path, *, proves: bool
) -> None:
    """Peers that prove nothing cannot tell it so, but ship it the record."""
    secret = secret_in(tmp_path) if proves else None
    async with running_cluster(tmp_path, election_timeout_ms=TIMEOUT_MS, peer_secret_file=secret) as cluster:
        node, index = await removed_while_away(cluster)
        await until(lambda: node.health.removal)
        assert f"at index {index}" in str(node.health.removal)
        await cluster.stop("n3")
        reply = await cluster.ask("n1", "GET", "/cluster")
        assert sorted(reply.document["nodes"]) == ["n1", "n2"]
