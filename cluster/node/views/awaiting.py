"""Which nodes this one waits for, as a sentence: members to form the cluster with, or voters to elect a leader.

The sentence is the same in `/readyz`, in `/status` and in the journal, where it is logged at most every SAY_AGAIN_S.
"""

import asyncio
import shlex
from collections.abc import Callable, Mapping

import structlog

from quire.replication.core.status import Status

from ...config.serve import ServeConfig
from ..components import NodeView
from ..majority import no_majority

journal = structlog.get_logger(__name__)

SAY_AGAIN_S = 10.0


def forming_sentence(config: ServeConfig, awaited: str) -> str:
    """The sentence of a node whose cluster is not formed yet; `awaited` is `Forming.awaited`."""
    if config.join:
        member = f"{config.node}={config.members[config.node]}"
        add = shlex.join(["quire", "members", "add", member, "--server", config.join[0]])
        return f"this node is not a member yet: run `{add}`; it waits for {awaited or ', '.join(config.join)}"
    return f"the cluster is not formed yet; it forms once all members are waiting: {awaited or 'there is no other'}"


def no_leader_sentence(status: Status, failures: Mapping[str, str]) -> str:
    """The sentence of a node that hears no leader: whether it reaches each other voter, and what that one answered.

    `failures` has a reason for each peer that cannot be dialled.
    """
    others = [voter for voter in status.members.voters() if not status.is_me(voter)]
    parts = [f"{voter.node_id}: {_of_voter(status, failures, voter.node_id, voter.disk_id)}" for voter in others]
    parts.insert(0, no_majority(status))
    promised = status.promise
    if promised.candidate:
        parts.insert(0, f"promised epoch {promised.epoch} to {promised.candidate}")
    return "; ".join(["no leader is heard", *filter(None, parts)])


def _of_voter(status: Status, failures: Mapping[str, str], node_id: str, disk_id: bytes) -> str:
    if node_id not in status.links:
        return failures.get(node_id, "not reached yet")
    if status.links[node_id] != disk_id:
        return "connected with another disk, which has no vote"
    answer = status.pre_votes.get(node_id)
    if answer is None:
        return "connected, not asked for its vote yet, or has not answered"
    if answer.granted:
        return f"connected, would vote for this node, holds epoch {answer.held_epoch}"
    why = "its log is longer" if answer.is_ahead else "it hears a leader, or lets another candidate go first"
    return f"connected, refused the pre-vote ({why}), holds epoch {answer.held_epoch}"


class Reminder:
    """When a sentence is logged: once it has been true for `patience_s`, and again every SAY_AGAIN_S."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None
        self._said_at: float | None = None

    def is_due(self, now: float, *, holds: bool) -> bool:
        """Whether to log it now; call this at every check."""
        if not holds:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._patience_s:
            return False
        if self._said_at is not None and now - self._said_at < SAY_AGAIN_S:
            return False
        self._said_at = now
        return True


async def log_waits(node: NodeView, election_timeout_s: float, look_s: float, clock: Callable[[], float]) -> None:
    """Log which nodes this one waits for: for a cluster at once, for a leader after an election timeout."""
    forming, leaderless = Reminder(0.0), Reminder(election_timeout_s)
    while True:
        now, awaited = clock(), node.forming.awaited() if node.forming else ""
        if forming.is_due(now, holds=bool(awaited)):
            journal.info("waiting for members", reason=forming_sentence(node.config, awaited))
        is_leaderless = node.formed is not None and node.leadership.leader_id is None
        if leaderless.is_due(now, holds=is_leaderless) and node.formed is not None:
            replica = node.formed.replica
            text = no_leader_sentence(replica.core.status(), replica.network.reports.failures)
            journal.warning("waiting for a leader", reason=text)
        await asyncio.sleep(look_s)
