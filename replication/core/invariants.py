"""Invariants as code: what holds after every step, and between one step and the next.

Checked after every step by the simulators of `tests/sim` (LogCabin's habit). A violation is an error in this
program; it names its values and is never caught.
"""

from typing import NamedTuple

from .core import Core
from .messages import Promise


class InvariantBroken(Exception):
    """The rule in words, with the values that break it."""


class Point(NamedTuple):
    """What must not go back between two steps of one run."""

    promise: Promise
    stored_promise: Promise
    commit_index: int


def _require(holds: bool, rule: str, *values: object) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {', '.join(map(str, values))}")


def check_point(core: Core) -> Point:
    """Check what holds at any time; return what `check_step` compares.

    Raises:
        InvariantBroken: with the rule and its values.
    """
    state, leading, following = core.state, core.leading, core.following
    highest = state.log.highest_index
    _require(not (leading and following), "a node does not lead and follow at once", state.me.node_id)
    _require(state.commit_index <= highest, "rule 9: nothing committed was cut", state.commit_index, highest)
    _require(state.promise.epoch >= state.log.last_epoch, "rule 1: the promise covers the log", state.promise)
    _require(state.promise.epoch >= state.stored_promise.epoch, "rule 2: a queued promise counts", state.promise)
    if leading:
        _require(leading.promise == state.stored_promise, "rule 1: a leader holds its own promise", leading.promise)
        _require(
            state.is_voter, "rule 15: a leader is a voter of its own log", state.me.node_id, state.log.members_index
        )
        _require(state.commit_index <= state.log.durable.index, "rule 7: never above its own", state.commit_index)
        for stream in leading.downstreams.streams.values():
            _require(stream.match_index <= stream.next_index <= highest, "rule 6: ships what it wrote", stream)
            _require(state.log.lowest_index <= stream.next_index, "rule 16: ships what is there", stream)
    if following:
        _require(following.leader == state.promise, "rule 1: it follows whom it promised", following.leader)
        if following.stream:
            _require(following.stream.matched <= highest, "rule 8: what matches is here", following.stream)
    return Point(state.promise, state.stored_promise, state.commit_index)


def check_step(before: Point, after: Point) -> None:
    """Check what may not go back.

    Raises:
        InvariantBroken: with both points.
    """
    _require(after.promise.epoch >= before.promise.epoch, "rule 1: a promise never falls", before, after)
    _require(after.stored_promise.epoch >= before.stored_promise.epoch, "rule 1: on disk neither", before, after)
    _require(after.commit_index >= before.commit_index, "commit_index never falls", before, after)
