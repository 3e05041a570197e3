"""How fit this node is to lead. The rule: a permanent fault on a minority of nodes never stops a healthy majority.

Every node may hear a leader that commits nothing, answers nothing or accepts no write, because its disk is full or slow
or its machine has failed. Heartbeats do not show that, so each node measures itself and sends its level in pre-votes,
heartbeats and echoes. The level decides who campaigns and who hands over, never who gets a promise: an unfit node still
votes and replicates.

    level             entered when                                               left when
    APPLY_LAG         an operator drained the node                                no longer, or it restarts
                      a read found rot in its log                                 it restarts
                      a committed record has waited APPLY_TIMEOUTS to be applied  below half of that; machine fails
                      what was committed before a start or an install is not      it is applied: at once
                      applied: from the first measure
    SLOW_DISK         a flush takes over half an election timeout, on average     below half of that
    NO_ROOM           an append was refused, or the leader lacks room and a       a probe finds room for
                      probe found none here, either                               what was refused
    COMMITS_NOTHING   it leads, hears a majority, and what a majority holds of    something was committed
                      what it appended has not grown for STUCK_TIMEOUTS
    MACHINE_FAILED    the machine failed, or cannot run the logged version        the machine runs again
                      its code is not a majority's (`codes`)                      it is, or no code is
    DISK_HANGS        the disk has not answered for an election timeout           it answered

Disks fill up together, and a follower appends what a leader has found room for. So a follower that hears a leader
without room probes its own disk before it echoes a better level: otherwise leadership would move around among nodes
that are equally full, and each move would use a record of the reserve. An append that finds room does not end the
level: it may have been smaller than the refused one, or have used the reserve.

Each level is left only after two election timeouts on the better side, so that a node at the limit does not switch back
and forth. The higher the level, the less such a leader can do. 6 and 7 are reserved for digests and holes.

Times count only while this process runs (`State.awake`): a pause of the process is not a slow disk or a late machine.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from ..events import AppendResult, Measured, Reason, RoomProbed

APPLY_TIMEOUTS = 3  # Longer than an election, which delays applying everywhere; short of what callers wait for.
STUCK_TIMEOUTS = 3
CALM_TIMEOUTS = 2
PROBE_TIMEOUTS = 4  # How often a full disk is probed for room without an append.
FLUSH_MEMORY_TIMEOUTS = 10  # After this long without a flush nothing is known about the disk.
FLUSH_WEIGHT = (
    4  # A flush counts 1/4 in the average: a single long one, for whatever reason, does not make a slow disk.
)
HOLD_OFF_TIMEOUTS = 4
DRAINED = "an operator drained this node"
ROTTEN = "its log has rot"
REPLACE_DISK = (
    "move the whole directory away, once a majority of the other nodes is known to run, and start with an empty one: "
    "the node rejoins as a new member"
)
"""The next step when a voter's files are damaged. Never move a single file: each proves something about the others."""
FAILED = "its machine has failed"
GIVE_UP_TIMEOUTS = (
    10  # After this long a leader that is still stuck steps down again; then after twice as long, and so on.
)
MAX_DOUBLINGS = 4


class Level(IntEnum):
    """Why a node is unfit; its level is the highest that applies. On the wire, 0 is also what old peers send."""

    FIT = 0
    APPLY_LAG = 1
    SLOW_DISK = 2
    NO_ROOM = 3
    COMMITS_NOTHING = 4
    MACHINE_FAILED = 5
    DISK_HANGS = 8


@dataclass(frozen=True, slots=True)
class FitnessStatus:
    """A node's level. `reason` is empty if it is fit; `since` is by its wall clock, 0 if it was fit from the start.

    `lower` are the other levels that apply, the highest first; the lowest several times if it has several reasons.
    """

    level: Level
    reason: str
    since: int
    lower: tuple["FitnessStatus", ...] = ()


@dataclass(slots=True)
class Holding:
    """A level that applies. `calm_since`: since when its measure has been below half the limit; None if it is not."""

    reason: str
    since: int
    clock: int
    calm_since: int | None = None


class Moment(Protocol):
    """The time of a step, by two clocks in microseconds."""

    @property
    def awake(self) -> int:
        """By the monotonic clock, without the pauses of this process."""
        ...

    @property
    def clock(self) -> int:
        """By the wall clock."""
        ...


class Fitness:
    """The levels that apply to this node, and how long it holds back after it led while unfit."""

    def __init__(self, patience_us: int) -> None:
        """All bounds are multiples or parts of `patience_us`, an election timeout."""
        self._patience_us = patience_us
        self._holding: dict[Level, Holding] = {}
        self._unfit_since = 0
        self._changed_clock = 0
        self._flush_us = 0
        self._flushed_at = 0
        self._unapplied = (0, 0)  # An index that was to be applied, and since when.
        self._has_backlog = False  # Of what was committed before a start or an install.
        self._probe_at = 0
        self._has_reserve = True
        self._refused_frames = False  # Whether this follower could not append what it was shipped.
        self._hears_full = False  # Whether the leader that is heard lacks room,
        self._has_asked = False  # and whether the own disk was asked since.
        self._stuck_at = 0  # commit_index when COMMITS_NOTHING was entered
        # When this node stepped down last because it was stuck: commit_index, the time, who might have led instead; and
        # how often since something was committed.
        self._gave_up_at = -1
        self._gave_up_when = 0
        self._gave_up_for: frozenset[str] = frozenset()
        self._give_ups = 0
        self._set_aside: dict[str, Holding] = {}
        self._machine_failed = False
        self._differs = False  # Whether its code is not a majority's, as of the last look.
        self.other_code = ""
        """Why its results are perhaps not a majority's: empty if they are. A leader refuses commands with this reason.

        It lasts as long as the level: a link that breaks for a moment must not let such a leader answer.
        """
        self._handed_over_at: int | None = None
        self._hold_off_until = 0
        self._hold_offs = 0

    @property
    def level(self) -> Level:
        """The highest level that applies."""
        return max(self._applying, default=Level.FIT)

    @property
    def _applying(self) -> dict[Level, Holding]:
        """The levels that apply. A node that is set aside is at the lowest, for another reason than its measure."""
        if not self._set_aside:
            return self._holding
        return {Level.APPLY_LAG: next(iter(self._set_aside.values())), **self._holding}

    @property
    def reason(self) -> str:
        """Why it is not fit, in one sentence; empty if it is."""
        applying = self._applying
        return applying[max(applying)].reason if applying else ""

    @property
    def unfit_since(self) -> int:
        """Since when, by `State.awake`, some level has applied without interruption."""
        return self._unfit_since

    def status(self) -> FitnessStatus:
        """A copy for others."""
        by_measure = sorted(self._holding.items(), reverse=True)
        held = [
            FitnessStatus(level, holding.reason, holding.clock)
            for level, holding in (*by_measure, *((Level.APPLY_LAG, aside) for aside in self._set_aside.values()))
        ]
        return replace(held[0], lower=tuple(held[1:])) if held else FitnessStatus(Level.FIT, "", self._changed_clock)

    def holds(self, level: Level) -> bool:
        """Whether this level applies, perhaps besides higher ones."""
        return level in self._holding

    @property
    def is_stuck(self) -> bool:
        """Whether it commits nothing now; the level lasts a while longer."""
        held = self._holding.get(Level.COMMITS_NOTHING)
        return held is not None and held.calm_since is None

    @property
    def is_rotten(self) -> bool:
        """Whether a read found rot in its log."""
        return ROTTEN in self._set_aside

    @property
    def could_serve_unstuck(self) -> bool:
        """Whether it is at COMMITS_NOTHING, and at no other level that prevents it from serving."""
        grave = [level for level in self._holding if level >= Level.NO_ROOM]
        return grave == [Level.COMMITS_NOTHING]

    @property
    def outdone_below(self) -> Level:
        """The level below which another node leads better: one without room would not commit anything either."""
        return Level.NO_ROOM if self.level is Level.COMMITS_NOTHING else self.level

    @property
    def lacks_room(self) -> str:
        """Why this follower cannot append shipped frames, in one sentence; empty once a probe found room.

        A follower that only knows that its disk is full still gets everything: the next frame may find room.
        """
        held = self._holding.get(Level.NO_ROOM)
        return held.reason if self._refused_frames and held is not None and held.calm_since is None else ""

    @property
    def may_campaign(self) -> bool:
        """Whether its disk allows it: a hung one stores no promise, a full one without reserve no `epoch_start`."""
        return self.level is not Level.DISK_HANGS and (self._has_reserve or not self.holds(Level.NO_ROOM))

    # Measures

    def measured(self, moment: Moment, event: Measured, *, to_apply: int, backlog_end: int) -> None:
        """Take what the driver measured since the last time.

        All below `to_apply` may be applied; of that, all below `backlog_end` was committed before a start or an
        install.
        """
        patience = self._patience_us
        self._machine_failed = event.machine_failed
        self._judge_machine(moment)
        if event.machine_failed:
            self._unapplied, self._has_backlog = (0, 0), False
            # It is a consequence of the failure, and its advice does not help then.
            self._holding.pop(Level.APPLY_LAG, None)
        elif not self._catches_up(moment, event.applied_index, min(backlog_end, to_apply)):
            self._measure_applying(moment, event.applied_index, to_apply)
        for took_us in event.flushes_us:
            self._flush_us += (min(took_us, patience) - self._flush_us) // FLUSH_WEIGHT
            self._flushed_at = moment.awake
        if moment.awake - self._flushed_at > FLUSH_MEMORY_TIMEOUTS * patience:
            self._flush_us = 0
        milliseconds = self._flush_us // 1_000
        reason = f"a flush takes {milliseconds} ms on average: the disk is slow"
        self._compare(moment, Level.SLOW_DISK, self._flush_us, patience // 2, reason)

    def code_judged(self, moment: Moment, other_code: str, *, is_majority: bool) -> None:
        """Take why this node's code is not a majority's; empty if it is (`is_majority`), or may be.

        Once it is a majority's the level is left at once: codes are no measure that varies around a bound.
        """
        self._differs = bool(other_code)
        if other_code:
            self.other_code = other_code
        elif is_majority and self.other_code:
            self.other_code = ""
            del self._holding[Level.MACHINE_FAILED]
            self._changed_clock = moment.clock
        self._judge_machine(moment)

    def _judge_machine(self, moment: Moment) -> None:
        reason = FAILED if self._machine_failed else self.other_code
        self._note(moment, Level.MACHINE_FAILED, self._machine_failed or self._differs, reason)

    def _measure_applying(self, moment: Moment, applied_index: int, to_apply: int) -> None:
        index, since = self._unapplied
        if applied_index >= index:
            # Records committed meanwhile have waited for less time than those that were just applied.
            index, since = self._unapplied = to_apply, moment.awake
        waited = moment.awake - since if applied_index < index else 0
        reason = f"committed records wait to be applied, at {applied_index} for {waited // 1_000} ms"
        self._compare(moment, Level.APPLY_LAG, waited, APPLY_TIMEOUTS * self._patience_us, reason)

    def _catches_up(self, moment: Moment, applied_index: int, end: int) -> bool:
        """Whether records below `end` are not applied: here, and committed before a start or an install.

        Once they are applied the level is left at once: the backlog does not return, so the node does not switch back.
        """
        if applied_index < end:
            count = f"{end - applied_index:,} records"
            reason = f"{count} that were committed before this node started or installed a snapshot are not applied yet"
            self._note(moment, Level.APPLY_LAG, True, reason)
        elif self._has_backlog:
            self._changed_clock = moment.clock
            del self._holding[Level.APPLY_LAG]
        self._has_backlog = applied_index < end
        return self._has_backlog

    def set_aside(self, moment: Moment, reason: str, *, holds: bool) -> None:
        """Another node leads better for this reason (DRAINED, ROTTEN), or no longer does."""
        if holds and reason not in self._set_aside:
            if not self._applying:
                self._unfit_since = moment.awake
            self._set_aside[reason] = Holding(reason, moment.awake, moment.clock)
        elif not holds and self._set_aside.pop(reason, None) is not None:
            self._changed_clock = moment.clock

    def append_refused(self, moment: Moment, result: AppendResult) -> None:
        """Take the result of an append that was refused. Any other says nothing about the room: see above."""
        if result.refused is Reason.DISK_FULL:
            self._has_reserve = self._has_reserve and not result.is_system
            self._refused_frames |= bool(result.stream_id)
            self._no_room(moment)

    def lacked_room(self, moment: Moment) -> None:
        """Note that the disk had no room for the beginning of a log."""
        self._refused_frames = True
        self._no_room(moment)

    def echoed(self, moment: Moment, leader_level: int) -> Level:
        """The level to echo to a leader with that level: at least its NO_ROOM until this disk was probed, too."""
        hears_full, self._hears_full = self._hears_full, leader_level == Level.NO_ROOM
        if self._hears_full and not hears_full:
            self._has_asked, self._probe_at = False, moment.awake
        return max(self.level, Level.NO_ROOM) if self._hears_full and not self._has_asked else self.level

    def room_probed(self, moment: Moment, event: RoomProbed) -> None:
        """Take the answer to a `ProbeRoom`."""
        self._has_asked = True
        if event.has_room:
            self._room_found(moment)
        else:
            self._has_reserve = event.has_reserve
            self._no_room(moment)

    def _no_room(self, moment: Moment) -> None:
        if not self.holds(Level.NO_ROOM) or self._holding[Level.NO_ROOM].calm_since is not None:
            self._probe_at = moment.awake + PROBE_TIMEOUTS * self._patience_us
        self._note(moment, Level.NO_ROOM, True, "the disk of the log is full")

    def _room_found(self, moment: Moment) -> None:
        self._has_reserve, self._refused_frames = True, False
        self._note(moment, Level.NO_ROOM, False, "")

    def tick(self, moment: Moment, *, commit_index: int, disk_hangs: bool, stuck_us: int | None) -> bool:
        """Enter levels that depend on time, and leave those whose measure has been good for long enough.

        Return whether to probe the disk for room: it may have some again, or the leader's has none. `stuck_us` is for
        how long a leader has committed none of its appended records; None if this node does not lead.
        """
        patience = self._patience_us
        self._note(moment, Level.DISK_HANGS, disk_hangs, "the disk has not answered for an election timeout")
        self._judge_leading(moment, commit_index, stuck_us)
        for level, holding in list(self._holding.items()):
            if holding.calm_since is not None and moment.awake - holding.calm_since >= CALM_TIMEOUTS * patience:
                del self._holding[level]
                self._changed_clock = moment.clock
        if not self.holds(Level.MACHINE_FAILED):
            self.other_code = ""
        if not self._applying:
            self._hold_offs = self._hold_off_until = 0
        probes = (self.holds(Level.NO_ROOM) or self._hears_full) and moment.awake >= self._probe_at
        if probes:
            self._probe_at = moment.awake + PROBE_TIMEOUTS * patience
        return probes

    def _judge_leading(self, moment: Moment, commit_index: int, stuck_us: int | None) -> None:
        """A node that was stuck as the leader keeps that level until it hears of a commit: nothing else clears it."""
        if stuck_us is not None:
            reason = "it leads, hears a majority, and commits nothing of what it appends"
            bound = STUCK_TIMEOUTS * self._patience_us
            if stuck_us > bound and not self.holds(Level.COMMITS_NOTHING):
                self._stuck_at = commit_index
            self._compare(moment, Level.COMMITS_NOTHING, stuck_us, bound, reason)
        elif commit_index > self._stuck_at:
            self._note(moment, Level.COMMITS_NOTHING, False, "")

    def _compare(self, moment: Moment, level: Level, measure: int, bound: int, reason: str) -> None:
        if measure > bound:
            self._note(moment, level, True, reason)
        elif 2 * measure < bound:
            self._note(moment, level, False, "")
        elif level in self._holding:
            self._holding[level].calm_since = None

    def _note(self, moment: Moment, level: Level, is_ill: bool, reason: str) -> None:
        holding = self._holding.get(level)
        if is_ill and holding is None:
            if not self._holding:
                self._unfit_since = moment.awake
            self._holding[level] = Holding(reason, moment.awake, moment.clock)
        elif is_ill and holding is not None:
            holding.reason, holding.calm_since = reason, None
        elif holding is not None and holding.calm_since is None:
            holding.calm_since = moment.awake

    # An unfit leadership

    def handed_over(self, moment: Moment) -> None:
        """Another node was asked to lead instead of this one."""
        self._handed_over_at = moment.awake

    def may_hand_over(self, moment: Moment, pause_timeouts: int) -> bool:
        """Whether an unfit leader may look for another.

        Not before it can know whether all nodes became unfit at the same time; and not again too soon, unless its fault
        has persisted or is severe.
        """
        at, patience = self._handed_over_at, self._patience_us
        applying = self._applying
        if not applying or moment.awake - applying[max(applying)].since < patience // 2:
            return False
        if at is None or self.level >= Level.NO_ROOM or self._unfit_since <= at:
            return True
        return moment.awake - at >= pause_timeouts * patience

    def may_give_up_stuck(self, moment: Moment, commit_index: int, successors: frozenset[str]) -> bool:
        """Whether a stuck leader may step down, for one of these voters.

        It may do so once, and again once something was committed or if one of them was not available the last time.
        Otherwise the fault may lie with the others, and epochs must not climb: it retries after a pause, which doubles.
        """
        if commit_index > self._gave_up_at or not successors <= self._gave_up_for:
            return True
        pause = GIVE_UP_TIMEOUTS << min(self._give_ups, MAX_DOUBLINGS)
        return moment.awake - self._gave_up_when >= pause * self._patience_us

    def gave_up_stuck(self, moment: Moment, commit_index: int, successors: frozenset[str]) -> None:
        """Note that this stuck leader steps down for one of these voters."""
        self._give_ups = 0 if commit_index > self._gave_up_at else self._give_ups + 1
        self._gave_up_at, self._gave_up_when, self._gave_up_for = commit_index, moment.awake, successors

    def hold_off(self, moment: Moment) -> None:
        """Do not campaign, alone or at a candidate's request, for a while: longer each time until this node is fit."""
        span = HOLD_OFF_TIMEOUTS << min(self._hold_offs, MAX_DOUBLINGS)
        self._hold_off_until = moment.awake + span * self._patience_us
        self._hold_offs += 1

    def holds_off(self, moment: Moment) -> bool:
        """Whether this node holds back after it led while unfit."""
        return moment.awake < self._hold_off_until
