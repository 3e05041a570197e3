"""Elections over cut links, where what a leader sends and what it receives go over different links.

n1 reaches the others through one proxy each, and they reach n1 through others. What n1 dials carries its heartbeats,
its votes and its control plane; what the others dial to it carries their streams, their echoes and theirs.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.faults.toxiproxy import Link, ToxiproxyServer
from tests.processes.cluster import Cluster, Clusters
from tests.processes.history import recording
from tests.processes.test_failover import DEFAULTS, ELECTION_TIMEOUT_S, answer_on, epoch_of, sent

OTHERS = ("n2", "n3")


@dataclass(frozen=True)
class Linked:
    """A cluster whose n1 leads; `from_n1` and `to_n1` are the proxies."""

    cluster: Cluster
    from_n1: list[Link]
    to_n1: list[Link]

    async def cut(self, links: Iterable[Link]) -> None:
        for link in links:
            await link.cut()

    async def heal(self) -> None:
        for link in (*self.from_n1, *self.to_n1):
            await link.heal()


async def linked(clusters: Clusters, toxiproxy: ToxiproxyServer) -> Linked:
    cluster = clusters.make(flags=DEFAULTS)
    from_n1 = [await toxiproxy.add_link(f"n1-{other}", cluster[other].address) for other in OTHERS]
    to_n1 = [await toxiproxy.add_link(f"{other}-n1", cluster["n1"].address) for other in OTHERS]
    for other, there, back in zip(OTHERS, from_n1, to_n1, strict=True):
        cluster["n1"].flags += ["--link", f"{other}={there.address}"]
        cluster[other].flags += ["--link", f"n1={back.address}"]
    cluster.start()
    return Linked(cluster, from_n1, to_n1)


@pytest.mark.full
async def test_a_leader_that_is_heard_by_nobody_is_replaced_although_their_data_reaches_it(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy)
    await check_that_n1_is_replaced_while(under_test, under_test.from_n1)


@pytest.mark.full
async def test_a_leader_that_hears_nobody_is_replaced_although_its_heartbeats_are_heard(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy)
    await check_that_n1_is_replaced_while(under_test, under_test.to_n1)


async def check_that_n1_is_replaced_while(under_test: Linked, cut: list[Link]) -> None:
    cluster = under_test.cluster
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        epoch = epoch_of(cluster["n1"])
        await under_test.cut(cut)
        successor = cluster.elected(but=cluster["n1"])
        assert epoch_of(successor) > epoch
        # The others may hear at once that its links broke; it hears that it leads no more after an election timeout.
        cluster.wait_until("n1 steps down", lambda: not cluster["n1"].status()["serving"])
        await under_test.heal()
        cluster.wait_until_ready()
        clients.wait_for_more(cluster)
        clients.check(cluster)


@pytest.mark.full
async def test_a_leader_that_was_paused_and_hears_nobody_afterwards_does_not_answer_from_the_past(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy)
    cluster, paused = under_test.cluster, under_test.cluster["n1"]
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        paused.pause()
        await under_test.cut([*under_test.from_n1, *under_test.to_n1])
        successor = cluster.elected(but=paused)
        successor.apply(["add", 1], ["sub", 1])
        over = time.monotonic() + ELECTION_TIMEOUT_S  # The others heard at once that its links broke.
        cluster.wait_until("its timeout is over", lambda: time.monotonic() > over)
        asked = [sent(paused, "GET", f"/state?consistency={word}") for word in ("leader", "linearizable", "leader")]

        paused.resume()

        assert [answer_on(connection)[0] for connection in asked] == [503] * 3
        await under_test.heal()
        cluster.wait_until_ready()
        clients.wait_for_more(cluster)
        clients.check(cluster)
