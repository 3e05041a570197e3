"""A stranger who knows the secret sends every message with one thing changed: no node ends, and none fails.

The only halts are those of rules 8, 9 and 15, for what a voter's disk is said to hold: what a leader answers to an
opening, and what a follower reports of a frame.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.admission.connections import Connection
from quire.log import FrameHeader
from quire.replication.core.messages import OpenAnswer, Promise
from tests.cluster.malformed.false_leader import FalseLeader
from tests.cluster.malformed.harmless import GROWTH_BYTES, no_faults, resident
from tests.cluster.malformed.peers import (
    ALL_PEER,
    ALL_STREAM,
    FRAME_FIELDS,
    View,
    answer_examples,
    changes_of,
    field_names,
    peer_examples,
    stream_examples,
)
from tests.cluster.malformed.stranger import DEADLINE_S, Stranger
from tests.cluster.malformed.trial import FOLLOWER, LEADER, Trial, World, world
from tests.cluster.running import applied_index
from tests.garbage import garbage

SEED = 38
SOME = 0.002
BROKEN = 40
MESSAGES = 20_000
SHARE = float(os.environ.get("CHANGED_MESSAGES", "0.12"))
"""How many of all changes each part makes; `make soak-messages` makes all."""
RULES = {
    "OpenAnswer": ("told to truncate to", "durable records are gone", "the leader found no rot in its own"),
    "CrcMismatch": ("both verify",),
    "Removal": ("was removed from its cluster at index",),
}
"""The halts that a message may cause, by its type: a part of each reason."""
TIMES: dict[str, Any] = {"election_timeout_ms": 250, "heartbeat_ms": 25}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strange(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    async with world(tmp_path_factory.mktemp("strange"), **TIMES) as found:
        yield found


async def on_links(trial: Trial, keep: float, role: str) -> None:
    for stranger in (trial.world.member, trial.world.outsider):
        await trial.links(stranger, role, keep)


async def on_streams(trial: Trial, keep: float) -> None:
    for stranger in (trial.world.member, trial.world.outsider):
        for role in (LEADER, FOLLOWER):
            await trial.streams(stranger, role, keep)
            await trial.fetches(stranger, role, keep)


async def as_leader(trial: Trial, keep: float) -> None:
    leader = FalseLeader(trial)
    for node_id in ("n1", "n2"):
        await leader.answers(node_id, keep)
        await leader.shipments(node_id, keep)


async def as_source(trial: Trial, keep: float) -> None:
    leader = FalseLeader(trial)
    for node_id in ("n1", "n2"):
        await leader.snapshots(node_id, keep)


Part = tuple[Callable[[Trial, float], Awaitable[None]], frozenset[type], int]
PARTS: dict[str, Part] = {
    "links to a leader": (partial(on_links, role=LEADER), ALL_PEER, 6_500),
    "links to a follower": (partial(on_links, role=FOLLOWER), ALL_PEER, 6_500),
    "streams": (on_streams, ALL_STREAM - {OpenAnswer}, 5_000),
    "answers and shipments": (as_leader, frozenset({OpenAnswer}), 2_000),
    "snapshots": (as_source, frozenset(), 1_500),
}
"""What the stranger does, the messages that it changes, and how many changes there are at least."""


async def goes_on(world: World) -> None:
    """The stranger is gone, the member is back: a command commits, and all nodes are equal."""
    await world.member_returns()
    cluster = world.cluster
    await cluster.ready()
    leader = next(node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader)
    await cluster.commands(leader, ["add", 1])
    [index] = {applied_index(running.node) for running in cluster.nodes.values() if running.node.leadership.is_leader}
    for running in cluster.nodes.values():
        await running.node.components.applying.reached(index)
    async with asyncio.timeout(DEADLINE_S):  # What the stranger reported of the member is forgotten with a true report.
        while any(running.node.digests.differing for running in cluster.nodes.values()):
            await cluster.ready()
    assert len({running.node.components.applying.digest for running in cluster.nodes.values()}) == 1


def only_rules(trial: Trial) -> None:
    """The halts are those of the rules, and only for what the message said is written."""
    others = [
        (change, reason)
        for change, reason in trial.halts
        if not any(part in reason for part in RULES.get(change.partition(".")[0], ()))
    ]
    assert others == []


def test_every_message_has_an_example_and_every_field_its_changes() -> None:
    promise = Promise(1, "n1", 1)
    view = View("n3", 1, promise, ((0, 0), (1, 1)), 3, 1, 1, 1, bytes(64), bytes(16))
    examples: dict[type, list[Any]] = {
        **peer_examples(view),
        **stream_examples(view),
        OpenAnswer: answer_examples(view),
    }
    changed = {
        kind: {change.where for message in messages for change in changes_of(message, random.Random(SEED))}
        for kind, messages in examples.items()
    }

    assert changed.keys() == ALL_PEER | ALL_STREAM
    assert {kind: field_names(kind) - changed[kind] for kind in changed if field_names(kind) - changed[kind]} == {}
    assert frozenset(FrameHeader._fields) - {"crc32c", "length", "payload_crc32c"} == FRAME_FIELDS


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("purpose", ["peer", "stream", "snapshot"])
async def test_a_bad_message_ends_its_own_connection_and_leaves_nothing(strange: World, purpose: str) -> None:
    target = strange.cluster.nodes["n1"].config
    async with strange.member.dialled(target.listen, target.node, purpose) as beside:
        await said_wrong(strange.outsider, target, purpose)
        assert await beside.listens()
    with garbage() as found:
        for _ in range(BROKEN):
            await said_wrong(strange.outsider, target, purpose)

    left = [each for each in found if isinstance(each, Connection)]
    assert len(left) < BROKEN // 2, "each leaves one; the nodes' own links, which are dialled meanwhile, may leave some"


async def said_wrong(stranger: Stranger, target: ServeConfig, purpose: str) -> None:
    async with stranger.dialled(target.listen, target.node, purpose) as line:
        assert not await line.say(b"\x93\x63\x01\x02")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stranger_who_says_something_wrong_ends_no_node(
    strange: World, caplog: pytest.LogCaptureFixture
) -> None:
    with no_faults(caplog):
        trial = Trial(strange, SEED)
        for run, _, _ in PARTS.values():
            await run(trial, SOME)
        await goes_on(strange)

    only_rules(trial)
    assert trial.answers["refused"] > trial.answers["taken"] > 0


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
async def test_changes_of_every_field_of_every_message_end_no_node_and_leave_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    run, kinds, least = PARTS[part]
    with no_faults(caplog):
        async with world(tmp_path, **TIMES) as strange:
            warm = Trial(strange, SEED)
            await run(warm, 0.05)
            only_rules(warm)
            before = resident()

            trial = Trial(strange, SEED + 1)
            await run(trial, SHARE)

            assert resident() - before < GROWTH_BYTES
            await goes_on(strange)

    only_rules(trial)
    assert trial.counted.total() >= 0.9 * SHARE * least
    fields = {(kind.__name__, name) for kind in kinds for name in field_names(kind)}
    assert fields - (trial.counted + warm.counted).keys() == set()


def test_the_parts_are_every_message_and_twenty_thousand() -> None:
    assert {kind for _, kinds, _ in PARTS.values() for kind in kinds} == ALL_PEER | ALL_STREAM
    assert sum(least for _, _, least in PARTS.values()) >= MESSAGES
