"""Invariants as code: what holds after every step, and what holds between one step and the next (as in LogCabin).

The simulator and the tests check them after each step (`ReplicaOptions.check_invariants`); a node in service does not.
A violation is an error in this program. It names the rule and the values, and is never caught: the node stops.
"""

from typing import NamedTuple

from ..errors import ReplicationError
from .belief import EPOCH_LIMIT
from .core import Core
from .election import Phase
from .leading import Leading
from .messages import Promise


class InvariantBroken(ReplicationError):
    """The rule in words, with the values that break it."""


class Point(NamedTuple):
    """What `check_step` compares."""

    promise: Promise
    stored_promise: Promise
    following: Promise | None
    commit_index: int
    apply_index: int


class Invariants:
    """The invariants of one core, checked after each of its steps."""

    def __init__(self) -> None:
        self._before: Point | None = None

    def check(self, core: Core) -> None:
        """Check this point, and the step from the last one.

        Raises:
            InvariantBroken: with the rule and its values.
        """
        after = check_point(core)
        if self._before is not None:
            check_step(self._before, after)
        self._before = after


def _broken(rule: str, *values: object) -> InvariantBroken:
    return InvariantBroken(f"{rule}: {', '.join(map(str, values))}")


def check_point(core: Core) -> Point:
    """Check what holds at any time; return what `check_step` compares.

    Raises:
        InvariantBroken: with the rule and its values.
    """
    state, leading, following = core.state, core.leading, core.following
    highest, durable, committed = state.log.highest_index, state.log.durable.index, state.commit_index
    if leading and following:
        raise _broken("a node does not lead and follow at once", state.me.node_id)
    if committed > highest:
        raise _broken("rule 9: nothing committed was truncated", committed, highest)
    _check_promise(core)
    if state.reported_apply > committed or state.reported_apply > durable:
        raise _broken("rule 7: only what is committed and durable is applied", state.reported_apply, committed, durable)
    if leading:
        _check_leader(core, leading, durable)
    if following:
        if following.leader != state.promise:
            raise _broken("rule 1: it follows whom it promised", following.leader)
        if following.stream and following.stream.matched > highest:
            raise _broken("rule 8: what matches is here", following.stream)
    followed = following.leader if following else None
    return Point(state.promise, state.stored_promise, followed, committed, state.reported_apply)


def _check_promise(core: Core) -> None:
    state, candidate = core.state, core.candidate
    promise, stored = state.promise, state.stored_promise
    if promise.epoch < state.log.last_epoch:
        raise _broken("rule 1: the promise covers the log", promise)
    if promise.epoch >= EPOCH_LIMIT:
        raise _broken("rule 18: no epoch is out of range", promise)
    if promise.epoch < stored.epoch:
        raise _broken("rule 2: a queued promise counts", promise)
    # At the start the log's last epoch may be above the stored promise: then nobody is promised.
    if promise is not stored and promise != stored and promise.candidate and not core.writer.is_exclusive:
        raise _broken("rule 2: nothing else uses the disk while a promise is written", promise, stored)
    if candidate.phase is Phase.REQUESTING and candidate.wanted != stored:
        raise _broken("rule 5: votes are asked for after the own promise is durable", candidate.wanted, stored)


def _check_leader(core: Core, leading: Leading, durable: int) -> None:
    state, phase = core.state, core.candidate.phase
    if leading.promise != state.stored_promise:
        raise _broken("rule 1: a leader holds its own promise", leading.promise)
    if core.writer.is_exclusive:
        raise _broken("rule 2: a leader neither promises, truncates nor installs", leading.promise)
    if not state.is_voter:
        raise _broken("rule 15: a leader is a voter of its own log", state.me.node_id, state.log.members_index)
    if state.commit_index > durable:
        raise _broken("rule 7: never above its own", state.commit_index)
    if phase is not Phase.IDLE:
        raise _broken("rule 4: a leader does not campaign", phase)
    lowest, highest = state.log.lowest_index, state.log.highest_index
    for stream in leading.downstreams.streams.values():
        if not stream.match_index <= stream.next_index <= highest:
            raise _broken("rule 6: ships what it wrote", stream)
        if stream.next_index < lowest:
            raise _broken("rule 16: ships what is there", stream)
        if stream.announced_commit > state.commit_index:
            raise _broken("rule 7: announces what is committed", stream.announced_commit)


def check_step(before: Point, after: Point) -> None:
    """Check what holds between one step and the next.

    Raises:
        InvariantBroken: with both points.
    """
    if after.promise.epoch < before.promise.epoch:
        raise _broken("rule 1: a promise never falls", before, after)
    if after.stored_promise.epoch < before.stored_promise.epoch:
        raise _broken("rule 1: on disk neither", before, after)
    # Within an epoch a promise changes only to the leader that was elected in it, and is followed.
    if after.promise is not before.promise and after.promise != before.promise:
        if after.promise.epoch == before.promise.epoch and after.following != after.promise:
            raise _broken("rule 1: an epoch is promised once", before, after)
    if after.commit_index < before.commit_index:
        raise _broken("commit_index never falls", before, after)
    if after.apply_index < before.apply_index:
        raise _broken("rule 7: what is applied is never taken back", before, after)
