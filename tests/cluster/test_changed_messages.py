"""A stranger who knows the secret sends every message with one thing changed: no node ends, and none fails.

The only halts are those of rules 8, 9 and 15, for what a voter's disk is said to hold: what a leader answers to an
opening, and what a follower reports of a frame.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
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
from tests.cluster.malformed.stranger import Stranger
from tests.cluster.malformed.trial import FOLLOWER, LEADER, Trial, World, world
from tests.garbage import garbage

SEED = 38
SOME = 0.003
BROKEN = 10
MESSAGES = 20_000
RULES = {
    "OpenAnswer": ("told to truncate to", "what was durable is gone", "the leader found no rot in its own"),
    "CrcMismatch": ("both verify",),
}
"""The halts that a message may cause, by its type: a part of each reason."""
TIMES: dict[str, Any] = {"election_timeout_ms": 250, "heartbeat_ms": 25}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strange(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    async with world(tmp_path_factory.mktemp("strange"), **TIMES) as found:
        yield found


async def speak(trial: Trial, keep: float, *roles: str) -> None:
    """Everything that a stranger may say to a node of these roles, as a member and as nobody's."""
    for stranger in (trial.world.member, trial.world.outsider):
        for role in roles:
            await trial.links(stranger, role, keep)
            await trial.streams(stranger, role, keep)
            await trial.fetches(stranger, role, keep)


async def lead(trial: Trial, keep: float, *node_ids: str) -> None:
    """Everything that it may say to these nodes when they follow it."""
    leader = FalseLeader(trial)
    for node_id in node_ids:
        await leader.answers(node_id, keep)
        await leader.shipments(node_id, keep)
        await leader.snapshots(node_id, keep)


async def goes_on(world: World) -> None:
    """The stranger is gone, the member is back: a command commits, and all nodes are equal."""
    await world.member_returns()
    cluster = world.cluster
    await cluster.ready()
    leader = next(node_id for node_id, running in cluster.nodes.items() if running.node.is_leader)
    await cluster.commands(leader, ["add", 1])
    [index] = {running.node.applied_index for running in cluster.nodes.values() if running.node.is_leader}
    for running in cluster.nodes.values():
        await running.node.components.applying.reached(index)
        assert not running.node.digests.differing
    assert len({running.node.digest for running in cluster.nodes.values()}) == 1


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
    target, others = strange.cluster.nodes["n1"].config, AsyncExitStack()
    async with others:
        beside = await others.enter_async_context(strange.member.dialled(target.listen, target.node, purpose))
        await said_wrong(strange.outsider, target, purpose)  # What is made once only.
        with garbage() as found:
            for _ in range(BROKEN):
                await said_wrong(strange.outsider, target, purpose)
        assert await beside.listens()

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
        await speak(trial, SOME, LEADER)
        await lead(trial, SOME, "n1")
        await goes_on(strange)

    only_rules(trial)
    assert trial.answers["refused"] > trial.answers["taken"] > 0


@pytest.mark.full
async def test_every_change_of_every_message_ends_no_node_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_faults(caplog):
        async with world(tmp_path, **TIMES) as strange:
            warm = Trial(strange, SEED)
            await speak(warm, 0.05, LEADER, FOLLOWER)
            await lead(warm, 0.05, "n1", "n2")
            only_rules(warm)
            before = resident()

            trial = Trial(strange, SEED + 1)
            await speak(trial, 1.0, LEADER, FOLLOWER)
            await lead(trial, 1.0, "n1", "n2")

            assert resident() - before < GROWTH_BYTES
            await goes_on(strange)

    only_rules(trial)
    assert trial.counted.total() >= MESSAGES
    fields = {(kind.__name__, name) for kind in ALL_PEER | ALL_STREAM for name in field_names(kind)}
    fields |= {("Shipment", f"Frame.{name}") for name in FRAME_FIELDS}
    assert fields - trial.counted.keys() == set()
