"""Digests that travel in acks are compared: a replica that differs is told in the status, metrics and the journal."""

import asyncio
from collections.abc import AsyncGenerator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from quire.cluster.access.client_credentials import ClientCredentials
from quire.cluster.cli.console import EscapingConsole
from quire.cluster.cli.nodes.asking import NodeCaller
from quire.cluster.cli.nodes.rows import survey
from quire.cluster.cli.nodes.table import print_nodes
from quire.cluster.node.digests import REMEMBERED_FRAMES, Difference, Digests, Parting
from quire.cluster.node.views.status import not_ready_reasons
from quire.sm import Applier
from tests.cluster.running import RunningCluster, applied_index, running_cluster

DEADLINE_S = 20
A, B = b"a" * 16, b"b" * 16


class Told:
    """Digests, and what they told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Difference | None]] = []
        self.digests = Digests(lambda node_id, difference: self.changes.append((node_id, difference)))


def test_equal_digests_at_an_equal_index_are_no_news() -> None:
    told = Told()
    told.digests.applied(5, A)
    told.digests.reported("n2", 5, A)
    assert (told.changes, told.digests.differing) == ([], {})


def test_a_node_that_differs_is_told_once_with_the_first_index_at_which_it_did() -> None:
    told = Told()
    for index in (5, 6):
        told.digests.applied(index, A)
        told.digests.reported("n2", index, B)
    assert told.changes == [("n2", Difference(5, B, A))]
    assert told.digests.differing == {"n2": Difference(5, B, A)}


def test_a_node_that_is_equal_again_is_told_so() -> None:
    told = Told()
    told.digests.applied(5, A)
    told.digests.reported("n2", 5, B)
    told.digests.reported("n2", 5, A)
    assert told.changes == [("n2", Difference(5, B, A)), ("n2", None)]
    assert told.digests.differing == {}


def test_a_report_from_an_index_that_is_never_reached_hides_no_other() -> None:
    told = Told()
    told.digests.reported("n2", 2**64 - 1, B)
    told.digests.reported("n2", 6, B)
    told.digests.applied(6, A)
    assert told.changes == [("n2", Difference(6, B, A))]


def test_who_reports_from_ahead_is_compared_when_this_node_has_come_as_far() -> None:
    told = Told()
    told.digests.reported("n2", 6, B)
    told.digests.reported("n2", 7, B)  # Would it replace the first, a node that stays behind would never compare.
    told.digests.applied(5, A)
    assert told.changes == []
    told.digests.applied(6, A)
    assert told.changes == [("n2", Difference(6, B, A))]


def test_as_many_frames_as_the_limit_are_remembered_and_a_report_of_one_before_says_nothing() -> None:
    told = Told()
    for index in range(1, REMEMBERED_FRAMES + 2):
        told.digests.applied(index, A)
    told.digests.reported("n2", 1, B)
    assert told.changes == []
    told.digests.reported("n2", 2, B)
    assert told.changes == [("n2", Difference(2, B, A))]


THREE = ("n1", "n2", "n3")


def standing(*reports: tuple[str, int, bytes], me: str = "n3", leader: str | None = "n1") -> bool:
    """Whether this node, with digest A at 5 and 6, is to be doubted after these reports."""
    told = Told()
    for index in (5, 6):
        told.digests.applied(index, A)
    for report in reports:
        told.digests.reported(*report)
    return told.digests.is_doubted(me, leader, THREE)


def test_a_replica_that_differs_from_its_leader_is_doubted_unless_a_majority_is_as_it_is() -> None:
    assert not standing()
    assert not standing(("n1", 5, A), ("n2", 5, B))  # The third is wrong.
    assert standing(("n1", 5, B))
    assert standing(("n1", 5, B), ("n2", 5, B))
    assert not standing(("n1", 5, B), ("n2", 5, A))  # The leader is wrong.
    assert not standing(("n1", 5, B), ("n2", 6, A))
    assert not standing(("n1", 5, B), ("n1", 5, A))


def test_a_node_that_was_equal_before_the_difference_and_is_not_heard_since_counts_for_nobody() -> None:
    assert standing(("n2", 5, A), ("n1", 6, B))


def test_a_leader_that_differs_from_a_majority_is_doubted_and_so_is_everybody_where_all_differ() -> None:
    assert not standing(("n2", 5, B), me="n1")
    assert standing(("n2", 5, B), ("n3", 5, B), me="n1")
    assert standing(("n1", 5, B), ("n2", 5, b"c" * 16))
    assert standing(("n1", 5, B), ("n2", 5, B), leader=None)


def test_an_observer_that_differs_from_its_leader_is_doubted_and_makes_no_majority_itself() -> None:
    assert standing(("n1", 5, B), ("n2", 5, A), me="n4")
    assert not standing(("n1", 5, B), ("n2", 5, A), ("n3", 5, A), me="n4")


def test_where_a_minority_parts_from_a_majority_is_known_on_both_sides() -> None:
    told = Told()
    for index in (4, 5, 6):
        told.digests.applied(index, A)
    told.digests.reported("n1", 4, A)
    told.digests.reported("n1", 6, B)
    assert told.digests.parting("n3", THREE) is None  # n2 may be on either side.
    told.digests.reported("n2", 6, A)
    assert told.digests.parting("n3", THREE) == Parting(4, 6, A, "n1")
    told.digests.reported("n2", 6, B)
    assert told.digests.parting("n3", THREE) == Parting(4, 6, B, "n3")


def test_no_majority_is_claimed_among_states_that_all_differ_or_part_at_several_indices() -> None:
    told = Told()
    for index in (5, 6):
        told.digests.applied(index, A)
    told.digests.reported("n1", 5, B)
    told.digests.reported("n2", 5, b"c" * 16)
    assert told.digests.parting("n3", THREE) is None

    told = Told()
    for index in range(20, 31):
        told.digests.applied(index, A)
    told.digests.reported("n2", 20, B)
    for node_id in ("n3", "n4", "n5"):
        told.digests.reported(node_id, 30, B)
    assert told.digests.parting("n1", ("n1", "n2", "n3", "n4", "n5")) is None


def test_a_state_is_shared_if_it_and_others_make_a_majority_of_the_voters_from_an_index_on() -> None:
    told = Told()
    for index in (5, 6):
        told.digests.applied(index, A)

    def shared(voters: tuple[str, ...], index: int, me: str = "n3") -> bool:
        return told.digests.is_shared(me, voters, index)

    assert shared(("n3",), 6)
    assert not shared(THREE, 5)
    told.digests.reported("n1", 5, A)
    assert shared(THREE, 5)
    assert not shared(THREE, 6)  # It may have been equal before, and not be there.
    assert not shared((*THREE, "n4", "n5"), 5)
    assert not shared(THREE, 5, me="n4")  # An observer is no voter itself.
    told.digests.reported("n2", 6, A)
    assert shared((*THREE, "n4", "n5"), 5)
    told.digests.reported("n1", 6, B)
    assert not shared((*THREE, "n4", "n5"), 5)


def test_digests_from_before_an_install_are_not_compared_any_more() -> None:
    told = Told()
    told.digests.applied(5, A)
    told.digests.installed(7, B)
    told.digests.reported("n2", 5, B)
    assert told.changes == []
    told.digests.reported("n2", 7, A)
    assert told.changes == [("n2", Difference(7, A, B))]


def test_a_doubted_replica_is_not_doubted_any_more_when_its_leader_s_state_was_installed() -> None:
    told = Told()
    told.digests.applied(5, A)
    told.digests.reported("n1", 5, B)
    assert told.digests.is_doubted("n3", "n1", THREE)

    told.digests.installed(7, B)
    told.digests.reported("n1", 7, B)

    assert not told.digests.is_doubted("n3", "n1", THREE)
    assert told.changes[-1] == ("n1", None)


@pytest.mark.asyncio
async def test_the_digest_of_an_installed_state_takes_the_place_of_all_that_a_node_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        node = cluster.nodes["n1"].node
        await cluster.commands("n1", ["add", 1])
        before, own = applied_index(node), node.components.applying.digest
        await cluster.commands("n1", ["add", 1])
        replaced = node.components.applying.applier
        boundary = replaced.boundary._replace(digest=A)
        installed = Applier(replaced.machine, boundary=boundary, sessions=replaced.sessions)
        monkeypatch.setattr(node.components.compaction.installing, "installed", lambda _: installed)

        node.components.compaction.installing.snapshot_installed(installed.applied_index)

        node.digests.reported("n2", before, B)
        node.digests.reported("n3", installed.applied_index, A)
        assert (own not in (A, B), node.digests.differing) == (True, {})
        node.digests.reported("n3", installed.applied_index, B)
        assert node.digests.differing == {"n3": Difference(installed.applied_index, B, A)}


@pytest_asyncio.fixture
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("digests")) as running:
        yield running


async def differs_of(cluster: RunningCluster, node_id: str, *, wanted: bool) -> Any:
    """What the leader's status says of a node, once that is, or is not, a difference."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            row = (await cluster.ask("n1", "GET", "/status")).document["nodes"].get(node_id, {"differs": None})
            if (row["differs"] is not None) == wanted:
                return row["differs"]


async def applied(cluster: RunningCluster, node_id: str, index: int) -> None:
    """Wait until a node has applied the record at `index`: other nodes may have acknowledged it."""
    async with asyncio.timeout(DEADLINE_S):
        while (await cluster.ask(node_id, "GET", "/status")).document["applied_index"] <= index:
            pass


async def unready(cluster: RunningCluster, *node_ids: str) -> None:
    """Wait until just these nodes are not ready, and say that their states differ."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            reasons = {node_id: not_ready_reasons(running.node) for node_id, running in cluster.nodes.items()}
            if [node_id for node_id in reasons if reasons[node_id]] == list(node_ids):
                break
            await asyncio.sleep(0)
    assert all("its state differs from that of" in " ".join(reasons[node_id]) for node_id in node_ids)


async def metric(cluster: RunningCluster) -> dict[str, float]:
    reply = await cluster.ask("n1", "GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
    return {sample.labels["node"]: sample.value for sample in families["quire_node_digest_differs"].samples}


async def shown(cluster: RunningCluster) -> str:
    """The table of `quire status`."""
    async with NodeCaller(ClientCredentials()) as caller:
        found = await survey(caller, [cluster.address("n1")], DEADLINE_S, states=False)
    text = StringIO()
    print_nodes(EscapingConsole(width=200, file=text), found.rows)
    return text.getvalue()


async def test_a_replica_that_differs_is_shown_until_it_has_replayed_the_log(cluster: RunningCluster) -> None:
    index = (await cluster.commands("n1", ["add", 1]))["index"]
    await differs_of(cluster, "n3", wanted=False)
    await applied(cluster, "n3", index)
    assert "differs" not in await shown(cluster)
    parts = cluster.nodes["n3"].node.formed
    assert parts is not None
    parts.applying.applier.machine.restore([b"7"])  # Memory that went wrong on one node.

    index = (await cluster.commands("n1", ["add", 1]))["index"]
    difference = await differs_of(cluster, "n3", wanted=True)

    status = (await cluster.ask("n1", "GET", "/status")).document
    assert (difference["index"], difference["leader_digest"]) == (index + 1, status["digest"])
    assert difference["digest"] != status["digest"]
    assert status["nodes"]["n2"]["differs"] is None
    assert await metric(cluster) == {"n2": 0, "n3": 1}
    assert f"from the leader, at {index + 1}" in await shown(cluster)
    assert [alarm.split(" has ")[0] for alarm in status["alarms"]] == ["n3"]
    await unready(cluster, "n3")
    assert (await cluster.commands("n3", ["add", 1]))["results"] == ["45"]

    await cluster.restart("n3")
    await cluster.ready()
    await cluster.commands("n1", ["add", 1])
    await differs_of(cluster, "n3", wanted=False)
    assert await metric(cluster) == {"n2": 0, "n3": 0}
    assert (await cluster.ask("n1", "GET", "/status")).document["alarms"] == []


async def test_a_leader_that_differs_is_seen_to_differ_from_both_others(cluster: RunningCluster) -> None:
    await cluster.commands("n1", ["add", 1])
    parts = cluster.nodes["n1"].node.formed
    assert parts is not None
    parts.applying.applier.machine.restore([b"7"])

    await cluster.commands("n1", ["add", 1])

    first, second = [await differs_of(cluster, node_id, wanted=True) for node_id in ("n2", "n3")]
    assert first == second
    await unready(cluster, "n1")
