"""Invariants as code: what holds after every step, and what holds between one step and the next (as in LogCabin).

The simulator and the tests check them after each step; a node does if it is told to (`--check-invariants`). A violation
is an error in this program. It names the rule and the values, and is never caught: the node stops.
"""

from typing import NamedTuple

from .core import Core
from .election import Phase
from .leading import Leading
from .messages import Promise


class InvariantBroken(Exception):
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


def _require(holds: bool, rule: str, *values: object) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {', '.join(map(str, values))}")


def check_point(core: Core) -> Point:
    """Check what holds at any time; return what `check_step` compares.

    Raises:
        InvariantBroken: with the rule and its values.
    """
    state, leading, following, candidate = core.state, core.leading, core.following, core.candidate
    highest, promise, stored = state.log.highest_index, state.promise, state.stored_promise
    _require(not (leading and following), "a node does not lead and follow at once", state.me.node_id)
    _require(state.commit_index <= highest, "rule 9: nothing committed was cut", state.commit_index, highest)
    _require(promise.epoch >= state.log.last_epoch, "rule 1: the promise covers the log", promise)
    _require(promise.epoch >= stored.epoch, "rule 2: a queued promise counts", promise)
    # At the start the log's last epoch may be above the stored promise: then nobody is promised.
    _require(
        promise == stored or not promise.candidate or core.writer.is_exclusive,
        "rule 2: nothing else uses the disk while a promise is written",
        promise,
        stored,
    )
    _require(
        state.reported_apply <= min(state.commit_index, state.log.durable.index),
        "rule 7: only what is committed and durable is applied",
        state.reported_apply,
        state.commit_index,
        state.log.durable.index,
    )
    _require(
        candidate.phase is not Phase.REQUESTING or candidate.wanted == stored,
        "rule 5: votes are asked for after the own promise is durable",
        candidate.wanted,
        stored,
    )
    if leading:
        _require(candidate.phase is Phase.IDLE, "rule 4: a leader does not campaign", candidate.phase)
        _check_leader(core, leading)
    if following:
        _require(following.leader == promise, "rule 1: it follows whom it promised", following.leader)
        if following.stream:
            _require(following.stream.matched <= highest, "rule 8: what matches is here", following.stream)
    return Point(promise, stored, following.leader if following else None, state.commit_index, state.reported_apply)


def _check_leader(core: Core, leading: Leading) -> None:
    state = core.state
    _require(leading.promise == state.stored_promise, "rule 1: a leader holds its own promise", leading.promise)
    _require(not core.writer.is_exclusive, "rule 2: a leader neither promises, truncates nor installs", leading.promise)
    _require(state.is_voter, "rule 15: a leader is a voter of its own log", state.me.node_id, state.log.members_index)
    _require(state.commit_index <= state.log.durable.index, "rule 7: never above its own", state.commit_index)
    for stream in leading.downstreams.streams.values():
        shipped = stream.next_index
        _require(stream.match_index <= shipped <= state.log.highest_index, "rule 6: ships what it wrote", stream)
        _require(state.log.lowest_index <= shipped, "rule 16: ships what is there", stream)
        _require(
            stream.announced_commit <= state.commit_index,
            "rule 7: announces what is committed",
            stream.announced_commit,
        )


def check_step(before: Point, after: Point) -> None:
    """Check what holds between one step and the next.

    Raises:
        InvariantBroken: with both points.
    """
    _require(after.promise.epoch >= before.promise.epoch, "rule 1: a promise never falls", before, after)
    _require(after.stored_promise.epoch >= before.stored_promise.epoch, "rule 1: on disk neither", before, after)
    # Rule 1: within an epoch a promise changes only to the leader that was elected in it, who is then followed.
    is_same = after.promise == before.promise
    _require(
        is_same or after.promise.epoch > before.promise.epoch or after.following == after.promise,
        "rule 1: an epoch is promised once",
        before,
        after,
    )
    _require(after.commit_index >= before.commit_index, "commit_index never falls", before, after)
    _require(after.apply_index >= before.apply_index, "rule 7: what is applied is never taken back", before, after)
