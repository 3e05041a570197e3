"""`POST /admin/transfer`: leadership moves while clients write, and no write is lost, doubled or left unknown."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

import quire
from quire.cluster.client import Client
from quire.cluster.errors import NodeStopping, TransferFailed
from quire.cluster.http.routes.admin import BODY_BYTES
from quire.cluster.node.health import Health
from quire.cluster.node.leadership import Leadership
from quire.replication.core import NodeRole
from quire.replication.core.actions import RoleChanged
from quire.replication.core.events import Nominated
from quire.replication.core.members import Identity, Member, Members, Role
from quire.replication.core.messages import ControlMessage
from tests.cluster.running import RunningCluster, running_cluster

JSON = "application/json"
COMMANDS = 300
DEADLINE_S = 30.0


def body(target: str | None) -> bytes:
    return orjson.dumps({"target": target})


async def transfer(cluster: RunningCluster, asked: str, target: str | None) -> str:
    reply = await cluster.ask(asked, "POST", "/admin/transfer", body(target), JSON)
    assert reply.status == 200, reply
    return str(reply.document["leader"])


async def metrics(cluster: RunningCluster, node_id: str) -> list[str]:
    return (await cluster.ask(node_id, "GET", "/metrics")).body.decode().splitlines()


def leaders(cluster: RunningCluster) -> list[str]:
    return [node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader]


async def test_any_node_moves_leadership_to_the_node_that_is_named(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        assert await transfer(cluster, "n1", "n3") == "n3"
        await cluster.ready()
        assert leaders(cluster) == ["n3"]
        assert await transfer(cluster, "n2", "n1") == "n1"
        await cluster.ready()
        assert leaders(cluster) == ["n1"]


async def test_a_node_that_leads_already_is_left_leading(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        epoch = (await cluster.ask("n1", "GET", "/status")).document["epoch"]

        reply = await cluster.ask("n2", "POST", "/admin/transfer", body("n1"), JSON)

        assert reply.document == {"leader": "n1", "epoch": epoch}


@pytest.mark.parametrize("given", [b"", b"{}", b'{"target": null}'])
async def test_nobody_named_means_whoever_has_most(tmp_path: Path, given: bytes) -> None:
    async with running_cluster(tmp_path) as cluster:
        reply = await cluster.ask("n1", "POST", "/admin/transfer", given, JSON)
        assert reply.document["leader"] in ("n2", "n3")


@pytest.mark.parametrize("given", [b'{"target": "n9"}', b'{"target": 3}', b'{"to": "n2"}', b"[]", b"{"])
async def test_what_names_no_member_is_malformed(tmp_path: Path, given: bytes) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        reply = await cluster.ask("n1", "POST", "/admin/transfer", given, JSON)
        assert (reply.status, reply.problem) == (400, "malformed")


async def test_a_transfer_s_body_may_be_as_long_as_its_limit_and_no_longer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        for size, status in ((BODY_BYTES, 200), (BODY_BYTES + 1, 413)):
            padded = body("n1") + b" " * (size - len(body("n1")))
            assert (await cluster.ask("n1", "POST", "/admin/transfer", padded, JSON)).status == status


async def test_a_node_of_no_cluster_yet_moves_no_leadership_and_says_so() -> None:
    with pytest.raises(TransferFailed, match="the cluster is not formed yet"):
        await Leadership("n1", 0.1, 1.0, Health("n1")).transfer(None)


async def test_a_leader_without_another_voter_says_that_it_leads_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        reply = await cluster.ask("n1", "POST", "/admin/transfer", b"", JSON)

        assert (reply.status, reply.problem) == (503, "transfer-failed")
        assert leaders(cluster) == ["n1"]


def members(*voters: str) -> Members:
    return Members(tuple(Member(name, name.encode() * 8, f"{name}:1", Role.VOTER) for name in voters))


class Linked:
    """What the leadership of n1 asks of its replica."""

    disk_answers = True
    commit_index = 7

    def tick_if_frozen(self) -> None:
        pass

    def __init__(self, disk_id: bytes) -> None:
        self.links = {"n2"}
        self.asked: list[str | None] = []
        self.nominations: asyncio.Queue[bool] = asyncio.Queue()
        self.members = members("n1", "n2")
        self.me = Identity("n1", disk_id, 1)

    @property
    def core(self) -> "Linked":
        return self

    @property
    def driver(self) -> "Linked":
        return self

    @property
    def network(self) -> "Linked":
        return self

    def status(self) -> "Linked":
        return self

    def is_linked(self, member: Member) -> bool:
        return member.node_id in self.links

    def transfer(self, target: str | None) -> None:
        self.asked.append(target)

    def step(self, event: Nominated) -> None:
        self.nominations.put_nowait(event.nominated)

    def send(self, node_id: str, message: ControlMessage) -> None:
        pass


def lost(_commit_index: int, _reason: str) -> None:
    """No writes wait here."""


async def test_the_only_voter_that_is_left_ends_its_control_plane_and_is_nominated_without_one() -> None:
    replica = Linked(b"n1" * 8)
    leadership = Leadership("n1", 3600.0, 3600.0, Health("n1"))
    assert not leadership.run(cast("Any", replica), lost)
    replica.members = members("n1")
    leadership.members_changed(replica.members)
    async with asyncio.timeout(DEADLINE_S):
        assert await replica.nominations.get()
    assert not leadership.nominated
    await leadership.stop()


async def test_a_stop_waits_for_no_transfer_once_the_last_other_voter_is_gone() -> None:
    replica = Linked(b"another disk id.")
    leadership = Leadership("n1", 0.1, 3600.0, Health("n1"))
    leadership.run(cast("Any", replica), lost)
    leadership.role = RoleChanged(NodeRole.LEADER, 1, "n1", True, "")
    stopping = asyncio.create_task(leadership.hand_over())
    await asyncio.sleep(0)
    with pytest.raises(TransferFailed, match="another is under way"):
        await leadership.transfer(None)
    leadership.peer_unlinked("n9")
    await asyncio.sleep(0)
    assert (replica.asked, stopping.done()) == ([None], False)

    replica.links.clear()
    leadership.peer_unlinked("n2")
    async with asyncio.timeout(DEADLINE_S):
        await stopping


async def test_under_load_every_command_executes_once_and_none_is_unknown(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        addresses = [running.config.listen for running in cluster.nodes.values()]
        targets = ["n2", "n3", "n1", "n3"]

        async def add(client: Client) -> None:
            for _ in range(COMMANDS):
                await client.apply(["add", 1])

        async with (
            quire.connect(addresses) as one,
            quire.connect(addresses[::-1]) as two,
        ):
            adding = [asyncio.create_task(add(client)) for client in (one, two)]
            for target in targets:
                assert await transfer(cluster, "n1", target) == target
                await cluster.ready()
            await asyncio.gather(*adding)
            assert (await one.state()).state == str(42 + 2 * COMMANDS)


async def test_writes_that_wait_for_the_hand_over_are_answered_503_or_written_and_never_unknown(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        commands = orjson.dumps({"commands": [["add", 1]]})

        async def write() -> int:
            return (await cluster.ask("n1", "POST", "/commands", commands, JSON)).status

        writing = [asyncio.create_task(write()) for _ in range(100)]
        await transfer(cluster, "n1", "n2")
        writing += [asyncio.create_task(write()) for _ in range(100)]
        statuses = await asyncio.gather(*writing)
        await cluster.ready()

        assert set(statuses) <= {200, 503}
        answer = await cluster.ask("n2", "GET", "/state")
        assert answer.document["state"] == str(42 + statuses.count(200))


async def test_the_history_of_leaders_says_why(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await transfer(cluster, "n1", "n2")
        await cluster.ready()

        history = {node: (await cluster.ask(node, "GET", "/status")).document["leaders"] for node in cluster.nodes}

        assert history["n2"][-1]["leader"] == "n2"
        assert history["n2"][-1]["reason"] == "n1 asked it to"
        assert "handed over to n2" in [change["reason"] for change in history["n1"]]
        assert {changes[-1]["epoch"] for changes in history.values()} == {history["n2"][-1]["epoch"]}
        leaders = (await cluster.ask("n3", "GET", "/cluster")).document["leaders"]
        assert [row["epoch"] for row in leaders] == sorted({row["epoch"] for row in leaders})
        assert leaders[-1] == {name: history["n2"][-1][name] for name in ("epoch", "leader", "at", "reason")}
        followed = [row["leader"] for row in history["n3"] if row["leader"]]
        changes = 1 + sum(one != other for one, other in pairwise(followed))
        assert f"quire_leader_changes_total {float(changes)}" in await metrics(cluster, "n3")


@pytest.mark.parametrize(
    ("then", "given_up"),
    [
        (RoleChanged(NodeRole.FOLLOWER, 2, "n2", False, "another was elected"), [(7, "another was elected")]),
        (RoleChanged(NodeRole.FOLLOWER, 2, "n2", False, ""), [(7, "this node no longer leads epoch 1")]),
        (RoleChanged(NodeRole.LEADER, 3, "n1", False, ""), [(7, "this node no longer leads epoch 1")]),
        (RoleChanged(NodeRole.LEADER, 1, "n1", True, "it serves"), []),
    ],
    ids=["with a reason", "without one", "elected again", "the same leadership"],
)
async def test_writes_are_given_up_above_the_commit_index_when_the_leadership_they_were_appended_in_ends(
    then: RoleChanged, given_up: list[tuple[int, str]]
) -> None:
    found: list[tuple[int, str]] = []
    leadership = Leadership("n1", 0.1, 1.0, Health("n1"))
    replica = Linked(b"another disk id.")
    leadership.run(cast("Any", replica), lambda commit_index, reason: found.append((commit_index, reason)))
    leadership.role_changed(RoleChanged(NodeRole.LEADER, 1, "n1", False, "elected"))
    assert (leadership.is_leader, found) == (False, [])

    leadership.role_changed(then)

    assert found == given_up
    await leadership.stop()


async def test_a_node_that_stops_answers_nothing_as_the_leader_from_then_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        leadership = cluster.nodes["n1"].node.leadership
        assert leadership.not_leader() is None
        await cluster.stop("n1")
        assert type(leadership.not_leader()) is NodeStopping
