"""A class that does not read a snapshot, or does not know a command, which another class wrote: the node stays up.

It replicates and votes without its machine, or with one that answers nothing until its state is proven.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from quire.cluster.node.views.fitness import unready_reasons
from quire.cluster.node.views.status import node_status, visible_bounds
from quire.replication.core.fitness import Level
from quire.sm.errors import FIX_MACHINE, GIVE_CODE
from tests.cluster.ledger import LATER, RULES, SPEC, Deploy
from tests.cluster.running import RunningCluster, applied_index, running_cluster, started

DEADLINE_S = 60.0
# Nodes that are all unfit wait some election timeouts for a fit one.
MANUAL: dict[str, Any] = {
    "machine": SPEC,
    "snapshot_records": 0,
    "snapshot_log_bytes": 0,
    "election_timeout_ms": 2_000,
    "heartbeat_ms": 100,
}
EXPIRING: dict[str, Any] = MANUAL | {"segment_bytes": 64 * 1024, "retention_bytes": 1, "retention_follower_bytes": 0}
LARGE = 2**60


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask(next(iter(cluster.nodes)), "GET", "/healthz")


async def snapshots(cluster: RunningCluster) -> int:
    """Of all nodes, at one index, which this returns."""
    await until(cluster, lambda: len({applied_index(running.node) for running in cluster.nodes.values()}) == 1)
    indices = [(await cluster.ask(node_id, "POST", "/admin/snapshot")).document["index"] for node_id in cluster.nodes]
    return int(indices[0])


async def restart_all(cluster: RunningCluster) -> None:
    """Stop all, then start all: whom they lost they would not elect again for a while."""
    configs = [running.config for running in cluster.nodes.values()]
    for config in configs:
        await cluster.stop(config.node)
    for config in configs:
        cluster.nodes[config.node] = await started(config)
    await cluster.elect("n1")
    await cluster.ready()
    await cluster.lead("n1")


def refusal(cluster: RunningCluster, node_id: str) -> str:
    """Why a node answers nothing of its state; empty if it does."""
    return str(cluster.nodes[node_id].node.components.applying.applier.refusal or "")


async def balance(cluster: RunningCluster, node_id: str) -> Any:
    """The state of a node as it has it; or, without one, why."""
    reply = await cluster.ask(node_id, "GET", "/state?consistency=local")
    assert reply.status in (200, 503)
    return reply.document["state" if reply.status == 200 else "detail"]


async def test_a_class_that_reads_an_older_snapshot_only_answers_nothing_until_a_majority_has_its_digest(
    tmp_path: Path, deploy: Deploy
) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, **MANUAL) as cluster:
        await cluster.commands("n1", 5)
        before = await snapshots(cluster)
        code = deploy(LATER)
        await restart_all(cluster)
        await cluster.commands("n1", 6)
        after = await snapshots(cluster)
        await cluster.commands("n1", 7)
        configs = {node_id: running.config for node_id, running in cluster.nodes.items()}
        await until(cluster, lambda: applied_index(cluster.nodes["n3"].node) > after)
        for node_id in configs:
            await cluster.stop(node_id)

        deploy(RULES)
        with capture_logs() as journal:
            # Where each frame makes a snapshot due: none may push out the one that the later class needs.
            cluster.nodes["n3"] = await started(configs["n3"].model_copy(update={"snapshot_records": 1}))
            node = cluster.nodes["n3"].node
            await until(cluster, lambda: applied_index(node) > after)
        told = refusal(cluster, "n3")
        assert told.startswith(
            f"the state is unproven since index {after}: restore of the snapshot there, which ledger version 1 wrote"
            f" with code {code}, raised ValueError: invalid literal for int() with base 10: '11,later' at {tmp_path}"
        )
        assert told.endswith(
            f"; the log is applied from index {before} instead, and nothing is answered before the digest is that of"
            f" this snapshot, and of a majority of the voters; {GIVE_CODE}"
        )
        assert unready_reasons(node) == [told]
        assert [(line["event"], line["reason"]) for line in journal if told in str(line)] == [
            ("the state is unproven", told)
        ]
        assert await balance(cluster, "n3") == told
        assert told in (await cluster.ask("n3", "POST", "/admin/snapshot")).document["detail"]
        await until(cluster, lambda: node_status(node)["fitness"]["level"] == Level.MACHINE_FAILED)
        assert [kept["index"] for kept in node_status(node)["snapshots"]["kept"]] == [before, after]

        deploy(LATER)
        for node_id in ("n1", "n2"):
            cluster.nodes[node_id] = await started(configs[node_id])
        await until(cluster, lambda: not refusal(cluster, "n3"))
        assert await balance(cluster, "n3") == 18

        await cluster.restart("n3")  # With the code that wrote the snapshot all is well from the start.
        await until(cluster, lambda: cluster.nodes["n3"].node.formed is not None)
        assert refusal(cluster, "n3") == ""
        await cluster.ready()


async def test_a_whole_cluster_that_gets_its_old_code_back_goes_on(tmp_path: Path, deploy: Deploy) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, **MANUAL) as cluster:
        await cluster.commands("n1", 5)
        await snapshots(cluster)
        deploy(LATER)
        await restart_all(cluster)
        await cluster.commands("n1", 6)
        await snapshots(cluster)
        deploy(RULES)
        await restart_all(cluster)
        assert (await cluster.commands("n1", 7))["results"] == [18]


async def test_the_only_voter_answers_once_its_digest_is_the_unread_snapshot_s_and_never_with_another(
    tmp_path: Path, deploy: Deploy
) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, 1, **MANUAL) as cluster:
        await cluster.commands("n1", 5)
        deploy(LATER)
        await cluster.restart("n1")
        await cluster.ready()
        await cluster.commands("n1", 6)
        index = await snapshots(cluster)

        deploy(RULES)
        await cluster.restart("n1")
        await cluster.ready()
        assert await balance(cluster, "n1") == 11

        deploy(RULES.replace("+ amount", "+ amount + 100"))
        await cluster.restart("n1")
        await until(cluster, lambda: cluster.nodes["n1"].node.components.applying.applier.failure is not None)
        reasons = unready_reasons(cluster.nodes["n1"].node)
        differs = f"applying stopped at index {index}: applied from index 0, the log does not give the digest of the"
        assert [reason.startswith(differs) for reason in reasons[:2]] == [True, False]
        assert reasons[1].startswith(f"the state is unproven since index {index}: ")

        deploy(LATER)
        await cluster.restart("n1")
        await cluster.ready()
        assert await balance(cluster, "n1") == 11


async def gone_on(cluster: RunningCluster) -> None:
    """Segments written, snapshots taken, and what these replace expired."""
    node = cluster.nodes["n1"].node
    before = visible_bounds(node).lowest_index
    async with asyncio.timeout(DEADLINE_S):
        while visible_bounds(node).lowest_index <= before:
            await cluster.commands("n1", *[LARGE, -LARGE] * 2000)
            await snapshots(cluster)
            for node_id in cluster.nodes:
                await cluster.ask(node_id, "POST", "/admin/expire")


async def test_a_node_whose_class_reads_no_snapshot_replicates_and_votes_without_its_machine(
    tmp_path: Path, deploy: Deploy
) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, **EXPIRING) as cluster:
        await cluster.commands("n1", 5)
        configs = {node_id: running.config for node_id, running in cluster.nodes.items()}
        await cluster.stop("n3")
        deploy(LATER)
        for node_id in ("n1", "n2"):
            await cluster.restart(node_id)
            await until(cluster, lambda: all(running.node.formed for running in cluster.nodes.values()))
        await cluster.ready()
        await cluster.lead("n1")
        await gone_on(cluster)

        deploy(RULES)
        with capture_logs() as journal:
            cluster.nodes["n3"] = await started(configs["n3"])
            await until(cluster, lambda: refusal(cluster, "n3") != "")
        told = refusal(cluster, "n3")
        index = applied_index(cluster.nodes["n3"].node)
        assert told.startswith(
            f"applying stopped at index {index}: restore of the snapshot there, which ledger version 1 wrote with"
            " unknown code, raised ValueError: invalid literal for int()"
        )
        assert [line["event"] for line in journal if told in str(line)] == ["the machine has failed"]
        assert not [line for line in journal if line["event"] == "no snapshot was fetched"]
        for _ in range(2):  # After the install, and after a start with what it left.
            node = cluster.nodes["n3"].node
            assert unready_reasons(node) == [told]
            status = node_status(node)
            assert [kept["index"] for kept in status["snapshots"]["kept"]] == [index]
            assert status["install"]["failure"] == ""
            assert await balance(cluster, "n3") == told
            await cluster.stop("n2")
            await cluster.commands("n1", 1)  # On the disks of n1 and n3.
            assert visible_bounds(node).lowest_index == index  # Whatever is above, its machine needs.
            deploy(LATER)
            cluster.nodes["n2"] = await started(configs["n2"])
            await cluster.commands("n1", 1)
            deploy(RULES)
            await cluster.restart("n3")
            await until(cluster, lambda: cluster.nodes["n3"].node.formed is not None)

        deploy(LATER)
        await cluster.restart("n3")
        await cluster.ready()
        assert await balance(cluster, "n3") == await balance(cluster, "n1") == 9


async def test_a_command_that_an_old_class_does_not_know_is_told_with_the_code_to_give_it(
    tmp_path: Path, deploy: Deploy
) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, **MANUAL) as cluster:
        await cluster.commands("n1", 5)
        await cluster.lead("n3")  # A restart costs no leader.
        deploy(LATER)
        for node_id in ("n1", "n2"):
            await cluster.restart(node_id)
            await until(cluster, lambda: all(running.node.formed for running in cluster.nodes.values()))
        await cluster.ready()
        await cluster.lead("n1")
        with capture_logs() as journal:
            index = (await cluster.commands("n1", ["double"]))["index"]
            await until(cluster, lambda: refusal(cluster, "n3") != "")
            for _ in range(3):
                await cluster.commands("n1", 1)
                await cluster.ask("n3", "GET", "/state?consistency=local")
        told = refusal(cluster, "n3")
        assert told.startswith(f"applying stopped at index {index}: apply of ['double'] raised KeyError: 'double' at ")
        assert told.endswith(FIX_MACHINE)
        assert "if other nodes got past this index, give this node their code" in told
        assert [line["event"] for line in journal if told in str(line)] == ["the machine has failed"]

        await cluster.restart("n3")
        await cluster.ready()
        assert await balance(cluster, "n3") == 13
