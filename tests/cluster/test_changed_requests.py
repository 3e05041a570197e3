"""Requests with one thing changed: none is answered 500, and none leaves anything in the journal or in memory."""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from quire.cluster.http.app import ROUTES
from tests.cluster.logs import ServedLog, served
from tests.cluster.malformed.asked import NODE, STANDALONE, Known, changes_of_request
from tests.cluster.malformed.case import Ask
from tests.cluster.malformed.harmless import GROWTH_BYTES, no_faults, resident
from tests.cluster.running import Reply, RunningCluster, running_cluster

SEED = 38
REQUESTS = 10_000
REMOVAL = ("DELETE", "/members/n2")
"""A good request: the node would stop."""
Asking = Callable[[Ask], Awaitable[Reply]]
SHARE = float(os.environ.get("CHANGED_MESSAGES", "0.3"))  # `make soak-messages` makes all of them.
SOME_OR_MORE = pytest.mark.parametrize("keep", [0.02, pytest.param(SHARE, marks=pytest.mark.full)])


def test_every_route_of_a_node_is_asked() -> None:
    assert {(route.method, route.path) for route in ROUTES} == {(known.method, known.path) for known in NODE}


async def ask_all(ask: Asking, known: Sequence[Known], keep: float) -> Counter[int]:
    """The statuses of the answers to all changes of these requests."""
    statuses: Counter[int] = Counter()
    for number, route in enumerate(known):
        chance = random.Random(f"{SEED} {number}")
        for what, changed in changes_of_request(route, chance):
            if chance.random() < keep and (changed.method, changed.path) != REMOVAL:
                reply = await ask(changed)
                assert reply.status not in (500, 502), (what, changed, reply)
                statuses[reply.status] += 1
    return statuses


@SOME_OR_MORE
async def test_a_request_with_one_thing_changed_is_never_answered_500(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    statuses: Counter[int] = Counter()
    with no_faults(caplog):
        async with running_cluster(tmp_path) as cluster:
            for node_id in ("n1", "n2"):
                before = resident()
                statuses += await ask_all(partial(asked, cluster, node_id), NODE, keep)
                if statuses.total() > REQUESTS // 2 and node_id == "n2":  # n1 was the warm-up.
                    assert resident() - before < GROWTH_BYTES
            assert all(running.node.health.failure is None for running in cluster.nodes.values())
            await cluster.ready()
            leader = next(node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader)
            await cluster.commands(leader, ["add", 1])

    assert {200, 400} <= statuses.keys()
    assert statuses.total() >= REQUESTS * keep


@SOME_OR_MORE
async def test_a_standalone_log_never_answers_500_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    with no_faults(caplog):
        async with served(tmp_path) as log:
            asking = partial(asked_of_log, log)
            statuses = await ask_all(asking, STANDALONE, keep)
            assert (await log.append(b"raw bytes")).status == 200

    assert {200, 400} <= statuses.keys()


async def asked(cluster: RunningCluster, node_id: str, ask: Ask) -> Reply:
    return await cluster.ask(node_id, ask.method, ask.path, ask.body, ask.content_type, ask.headers)


async def asked_of_log(log: ServedLog, ask: Ask) -> Reply:
    sent = {**ask.headers, **({} if ask.content_type is None else {"Content-Type": ask.content_type})}
    return await log.call(ask.method, ask.path, data=ask.body, headers=sent)
