"""A stranger that knows the codecs and poses as a member: its messages must neither halt a node nor lose a record.

It sends messages that a node believes by design (a vote request, a heartbeat of a higher epoch), messages that a node
must refuse (rules 18 and 19), and answers that end leaderships. It does not vote, acknowledge or echo in a member's
name or report a clock: if it could do so for a majority, it would decide what is committed, and only a secret prevents
that.
"""

from random import Random

from quire.replication.core import Promise, events
from quire.replication.core.messages import (
    Campaign,
    CoreMessage,
    Heartbeat,
    HeartbeatEcho,
    Last,
    PreVote,
    PreVoteAnswer,
    VoteAnswer,
    VoteRequest,
)
from quire.replication.net.wire import decode_peer, encode

from .checks import Checks
from .node.node import Node

WORDS = (
    "pre_vote",
    "pre_vote_answer",
    "vote_request",
    "vote_request",
    "vote_answer",
    "heartbeat",
    "heartbeat",
    "second_leader",
    "second_leader",
    "echo",
    "echo",
    "campaign",
)
HIGHEST = 2**64 - 1
IMPOSSIBLE = (2**63, HIGHEST)
ABOVE = (0, 1, 1, 2, 2**31, 2**32, 2**32 + 1, 2**33, 2**40)
OFTEN_ABOVE = 0.6
"""How often an epoch is chosen relative to the receiving node's."""


class Stranger:
    """Sends messages to one node at a time, in the name of another member."""

    def __init__(self, seed: int, nodes: list[Node], checks: Checks) -> None:
        self._random = Random(f"{seed}/stranger")
        self._nodes = nodes
        self._checks = checks

    def speak(self, target: Node, word: str) -> None:
        """Send a message of this kind to a running node."""
        other = self._random.choice([node for node in self._nodes if node is not target])
        if word == "vote_request" and not target.counts:
            return  # Nobody asks an observer.
        message, self._checks.is_lied_to = self._message(target, other, word), True
        if isinstance(message, Heartbeat):
            self._checks.forged.add((message.promise.epoch, message.promise.candidate, message.promise.incarnation))
        heard = decode_peer(encode(message))
        if not isinstance(heard, CoreMessage):
            raise AssertionError(f"{heard} is not for the core")
        disk_id = other.disk_id if self._random.random() < 0.7 else self._random.randbytes(16)
        target.run(target.life, target.step, events.Received(other.node_id, disk_id, heard))

    def _message(self, target: Node, other: Node, word: str) -> CoreMessage:
        random = self._random
        held = target.running.core.status().promise
        ours = held.epoch
        epoch, last = self._epoch(ours), Last(random.choice((0, self._epoch(ours))), random.choice((1, 2**40, HIGHEST)))
        promise = Promise(epoch, other.node_id, random.getrandbits(63))
        held = held if held.candidate else promise  # Nobody's promise is in no message.
        clock = random.choice((0, 2**63, HIGHEST))
        match word:
            case "pre_vote":
                return PreVote(
                    random.choice((1, HIGHEST)), last, random.choice((None, promise)), random.choice((0, HIGHEST))
                )
            case "pre_vote_answer":
                return PreVoteAnswer(random.choice((1, 2, HIGHEST)), random.random() < 0.5, epoch, last, clock)
            case "vote_request":
                return VoteRequest(promise, last)
            case "vote_answer":
                return VoteAnswer(random.choice((promise, held)), False, epoch, clock)
            case "heartbeat":
                return Heartbeat(promise, random.choice((1, HIGHEST)), clock, random.choice((0, HIGHEST)))
            case "second_leader":
                return Heartbeat(Promise(ours, other.node_id, promise.incarnation), 1, 0)
            case "echo":
                return HeartbeatEcho(random.choice((ours, epoch)), random.choice((0, HIGHEST)), epoch, HIGHEST, clock)
            case "campaign":
                return Campaign(random.choice((None, promise, held)))
            case _:
                raise ValueError(word)

    def _epoch(self, ours: int) -> int:
        """An epoch to send. A node without a promise would believe an epoch from which it could not recover."""
        if not ours:
            return self._random.choice((0, 1, 2, 2**32, *IMPOSSIBLE))
        if self._random.random() < OFTEN_ABOVE:
            return min(ours + self._random.choice(ABOVE), HIGHEST)
        return self._random.choice((0, ours, 2**63 - 1, *IMPOSSIBLE))
