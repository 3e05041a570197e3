"""Rule 18: how high an epoch in a message may be.

*Ours* is the epoch that this node has promised. It covers its log, and is on disk or on its way there; epochs that a
node has only heard of do not count.

    0 ........... ours ........ ours + EPOCH_REACH ............. EPOCH_LIMIT ............. 2^64
    |        believed              |        out of reach             |      out of range

Epochs only grow, so accepting one cannot be undone: after the highest one, nobody could ever lead again. A message with
an epoch out of range or out of reach is dropped as a whole. A node that has promised nothing and is not a voter, such
as one with a new disk, has only the limit.

Nodes whose epochs drifted apart, because of a lying node or because they were away while one was active, must be able
to recover. So a node that drops a message for an epoch out of reach may promise nobody an epoch that is EPOCH_STEP
higher (`reaching`), which brings the other one nearer. That has less effect than a vote request within reach, and costs
two syncs: the whole range takes 2^32 of them.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import assert_never

from ..messages import (
    Campaign,
    CoreMessage,
    Heartbeat,
    HeartbeatEcho,
    Open,
    PreVote,
    PreVoteAnswer,
    Promise,
    Removal,
    Snapshot,
    VoteAnswer,
    VoteRequest,
)

EPOCH_LIMIT = 1 << 63
EPOCH_REACH = 1 << 32
EPOCH_STEP = EPOCH_REACH // 2  # So that nodes that have promised less than this one still believe its next epoch.
NUMBER_LIMIT = 1 << 63
"""Of indices and clocks: what is added to one on the way to the disk must fit 64 bits, too."""


class Refusal(StrEnum):
    """Why a message was dropped; the labels of a metric."""

    OUT_OF_RANGE = "out_of_range"
    OUT_OF_REACH = "out_of_reach"
    SECOND_LEADER = "second_leader"
    UNSENT_HEARTBEAT = "unsent_heartbeat"
    NO_BOUNDARY = "no_boundary"


def judge(ours: int, message: CoreMessage | Open | Snapshot, *, is_new: bool = False) -> Refusal | None:
    """Why a node that has promised epoch `ours` drops this message; None if it does not. `is_new`: only the limit."""
    highest = highest_epoch(message)
    if highest >= EPOCH_LIMIT or max(_numbers_of(message), default=0) >= NUMBER_LIMIT:
        return Refusal.OUT_OF_RANGE
    if isinstance(message, VoteRequest | Heartbeat) and not message.promise.epoch:
        return Refusal.OUT_OF_RANGE  # Epoch 0 is the genesis: nobody leads it.
    if isinstance(message, Snapshot) and message.crc32c >= 1 << 32:
        return Refusal.OUT_OF_RANGE
    if not is_new and highest > ours + EPOCH_REACH:
        return Refusal.OUT_OF_REACH
    return None


def highest_epoch(message: CoreMessage | Open | Snapshot) -> int:
    """The highest epoch in a message, 0 if it has none."""
    return max(_epochs_of(message), default=0)


def _epochs_of(message: CoreMessage | Open | Snapshot) -> Iterator[int]:
    match message:
        case PreVote(_, last, transferred_by):
            yield last.epoch
            yield from _of_promise(transferred_by)
        case PreVoteAnswer(_, _, held_epoch, last):
            yield held_epoch
            yield last.epoch
        case Campaign(transferred_by):
            yield from _of_promise(transferred_by)
        case VoteRequest(promise, last):
            yield promise.epoch
            yield last.epoch
        case VoteAnswer(asked, _, held_epoch):
            yield asked.epoch
            yield held_epoch
        case Heartbeat(promise):
            yield promise.epoch
        case HeartbeatEcho(epoch, _, held_epoch):
            yield epoch
            yield held_epoch
        case Open(promise, epochs):
            yield promise.epoch
            yield from (epoch for epoch, _ in epochs)
        case Snapshot(_, epoch, epochs=epochs):
            yield epoch
            yield from (of for of, _ in epochs)
        case Removal():
            pass
        case _:
            assert_never(message)


def _of_promise(promise: Promise | None) -> Iterator[int]:
    if promise is not None:
        yield promise.epoch


def _numbers_of(message: CoreMessage | Open | Snapshot) -> Iterator[int]:
    """Every index and clock in a message."""
    match message:
        case PreVote(_, last) | VoteRequest(_, last):
            yield last.index
        case PreVoteAnswer(_, _, _, last, clock):
            yield last.index
            yield clock
        case VoteAnswer(clock=clock) | Heartbeat(clock=clock) | HeartbeatEcho(clock=clock):
            yield clock
        case Open(_, epochs, highest_index, durable_index, fetching):
            yield from (highest_index, durable_index, fetching)
            yield from (first_index for _, first_index in epochs)
        case Snapshot(index, _, timestamp, _, members_index, epochs):
            yield from (index, timestamp, members_index or 0)
            yield from (first_index for _, first_index in epochs)
        case Removal(index):
            yield index
        case Campaign():
            pass
        case _:
            assert_never(message)
