"""How a leader hands over (rule 4; section 3.10 of the Raft thesis): when an operator asks, and when it is unfit.

    asked, or unfit and a voter is fitter --> appends no more, waits until all is committed and on the target's disk
        --> sends it `Campaign` --> another is promised: the leadership is over
        timeout, an operator asked     --> this leader continues
        timeout, this leader is unfit  --> it asks the target anyway, steps down, and holds back (`levels`)

An unfit leader looks for the fittest voter: heard, at a lower level for two election timeouts, and not far behind; if
it found rot in its log, one that has all that is committed. If there is none, it continues: an unfit leader is better
than none. A stuck leader (COMMITS_NOTHING) can complete nobody's log, so it steps down at once. Without a commit in
between, it does so again only for a voter that was not available the last time, or after 10 election timeouts, then 20,
and so on: the fault may lie with the others.

A slow or late leader still works, slowly. It hands over at most once in ten election timeouts, so that leadership does
not move around between nodes that are all at their limits. This limit does not apply if its fault has persisted since
it last handed over, or if it cannot serve at all.

A member without a vote deposes nobody, whatever it has promised. But it cannot follow a leader of a lower epoch. If
that lasts for ten election timeouts, the leader hands over once: the next epoch is above what it has seen (rule 3). A
leader without another voter steps down and is elected again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..actions import Send, TransferEnded
from ..downstreams import Downstreams
from ..members import Member
from ..messages import Campaign, HeartbeatEcho, Promise
from ..state import State
from .levels import Level

HELD_TIMEOUTS = 2  # How long a voter must have been fitter; also what a transfer to it may take.
PAUSE_TIMEOUTS = 10
INCOMPLETE_TIMEOUTS = 4  # After that, a leader that serves nothing looks also at voters that lag.


class HeardLevel(NamedTuple):
    """The level of a voter by its last echo, and since when it has been that."""

    level: int
    since: int


def name_of(level: int) -> str:
    """A level in words; of levels that only a later version has, the number."""
    try:
        return Level(level).name.lower().replace("_", " ")
    except ValueError:
        return f"level {level}"


@dataclass(slots=True)
class Transfer:
    """A transfer in progress: writes wait until the target has everything and gets `Campaign`, or until the timeout."""

    target: str
    until: int
    is_chosen: bool  # By this leader, not by an operator who named it.
    for_fitness: bool = False
    campaign_sent: bool = False


class Handover:
    """What a leadership knows about the fitness of the others, and its transfer."""

    def __init__(
        self,
        state: State,
        promise: Promise,
        downstreams: Downstreams,
        heard: Callable[[], Callable[[Member], bool]],
    ) -> None:
        """`heard` returns a function that says whether a member was heard in the last election timeout."""
        self._state = state
        self._heard = heard
        self._promise = promise
        self._downstreams = downstreams
        self._levels: dict[tuple[str, bytes], HeardLevel] = {}
        self.transfer: Transfer | None = None
        self._was_full = False
        self.gives_up = ""
        """Why this leader must step down; empty if it need not."""
        self.begins_anew = ""
        """Why this leader, the only voter, must campaign again; empty if it need not."""
        self._outrun_since: dict[tuple[str, bytes], int] = {}  # The members that have promised a higher epoch.
        self._was_outrun = False

    @property
    def target(self) -> str | None:
        """The target of the transfer in progress; no write is appended meanwhile."""
        return self.transfer.target if self.transfer else None

    @property
    def campaigns(self) -> str | None:
        """The node that was asked to campaign instead of this one."""
        return self.transfer.target if self.transfer and self.transfer.campaign_sent else None

    def echoed(self, sender: str, disk_id: bytes, echo: HeartbeatEcho) -> None:
        """Note a voter's level, or whether another member has promised a higher epoch."""
        state, disk = self._state, (sender, disk_id)
        if not state.members.is_voter(*disk):
            if echo.held_epoch > self._promise.epoch and state.members.names(*disk):
                self._outrun_since.setdefault(disk, state.now)
            else:
                self._outrun_since.pop(disk, None)
            return
        known = self._levels.get(disk)
        if known is None or known.level != echo.fitness:
            self._levels[disk] = HeardLevel(echo.fitness, state.now)

    def _level_of(self, voter: Member) -> int | None:
        known = self._levels.get((voter.node_id, voter.disk_id))
        return None if known is None else known.level

    # A transfer

    def begin(self, target: str | None, *, serving: bool) -> None:
        """Stop appending writes, which then wait; `advance` asks the target to campaign once it has everything.

        If it does not catch up within an election timeout, or no other leader is heard within two more, this leader
        continues and appends the waiting writes. If the transfer succeeds, they are refused as not written. Without a
        target it goes to the fittest voter, of equally fit ones to the most up-to-date one.
        """
        state, is_chosen = self._state, target is None
        others = [voter for voter in state.members.voters() if state.is_linked(voter)]
        if target is None and others:
            target = max(others, key=self._merit).node_id
        if self.transfer or not serving or target not in [voter.node_id for voter in others]:
            why = "another is under way" if self.transfer else f"{target or 'no other voter'} is not connected"
            state.act(TransferEnded(why if serving else "this leader does not serve yet"))
            return
        self.transfer = Transfer(target, state.now + state.options.election_timeout_us, is_chosen)

    def _merit(self, voter: Member) -> tuple[int, int, str]:
        return (-(self._level_of(voter) or 0), self._downstreams.durable_on(voter), voter.node_id)

    def advance(self) -> None:
        """Send `Campaign` once all that was appended is committed, and durable on the target's disk.

        A target that an operator chose must be as fit as any voter. Its first echo has its level.
        """
        state, transfer = self._state, self.transfer
        if transfer is None or transfer.campaign_sent or transfer.target not in state.links:
            return
        if not transfer.is_chosen:
            level = next((self._level_of(v) for v in state.members.voters() if v.node_id == transfer.target), None)
            if level is None:
                return
            if fitter := self._fitter_than(level, besides=transfer.target):
                self._end(f"{transfer.target} is not fit to lead ({name_of(level)}), {fitter} is fitter")
                return
        end = state.end_index
        if self._downstreams.has_acknowledged(transfer.target, end) and state.commit_index == end:
            # The target campaigns for one election timeout from when it receives this: this leader waits longer.
            transfer.campaign_sent, transfer.until = True, state.now + 2 * state.options.election_timeout_us
            state.fitness.handed_over(state)
            state.act(Send(transfer.target, Campaign(self._promise)))

    def _fitter_than(self, level: int, *, besides: str) -> str | None:
        state, is_heard = self._state, self._heard()
        for voter in state.members.voters():
            known = state.fitness.level if state.is_me(voter) else self._level_of(voter)
            if voter.node_id != besides and known is not None and known < level and is_heard(voter):
                return voter.node_id
        return None

    def _end(self, reason: str) -> None:
        transfer, self.transfer = self.transfer, None
        if transfer and not transfer.for_fitness:  # Otherwise nobody asked.
            self._state.act(TransferEnded(reason))

    # An unfit leader

    def tick(self) -> None:
        """End a transfer whose time is up; begin one if this leader is unfit and another is fitter."""
        state, transfer, fitness = self._state, self.transfer, self._state.fitness
        was_full, self._was_full = self._was_full, fitness.holds(Level.NO_ROOM)
        if self._was_full and not was_full:
            self._levels.clear()  # Levels that they sent before they heard of it do not say whether they have room.
        if transfer is not None:
            if state.now >= transfer.until:
                self._end(f"{transfer.target} did not take over in time")
                voters = self._fitter(fitness.outdone_below)  # The target may be unfit or down by now.
                if transfer.for_fitness and voters:
                    self.gives_up = f"{fitness.reason}, and {max(voters, key=self._merit).node_id} is fitter"
            return
        if self._is_outrun:
            self._was_outrun = True
            if others := self._others():
                until = state.now + HELD_TIMEOUTS * state.options.election_timeout_us
                self.transfer = Transfer(max(others, key=self._merit).node_id, until, is_chosen=True, for_fitness=True)
            elif len(state.members.voters()) == 1:
                self.begins_anew = "a member has promised a higher epoch"
            return
        if fitness.is_stuck and (voters := self._fitter(Level.NO_ROOM)):  # Who has no room would commit nothing either.
            successors = frozenset(voter.node_id for voter in voters)
            if fitness.may_give_up_stuck(state, state.commit_index, successors):
                fitness.gave_up_stuck(state, state.commit_index, successors)
                self.gives_up = f"{fitness.reason}, and {max(voters, key=self._merit).node_id} is fitter"
                return
        if not fitness.could_serve_unstuck and fitness.may_hand_over(state, PAUSE_TIMEOUTS):
            patience = state.options.election_timeout_us
            serves_nothing = fitness.level >= Level.NO_ROOM
            is_late = serves_nothing and state.awake - fitness.unfit_since > INCOMPLETE_TIMEOUTS * patience
            voters = [voter for voter in self._fitter(fitness.outdone_below) if is_late or self._lacks_little(voter)]
            if voters:
                until, fittest = state.now + HELD_TIMEOUTS * patience, max(voters, key=self._merit)
                self.transfer = Transfer(fittest.node_id, until, is_chosen=True, for_fitness=True)

    @property
    def _is_outrun(self) -> bool:
        """Whether a member without a vote could not follow for long; once per leadership."""
        state = self._state
        oldest = state.now - PAUSE_TIMEOUTS * state.options.election_timeout_us
        waits = any(since <= oldest and state.members.names(*disk) for disk, since in self._outrun_since.items())
        return waits and not self._was_outrun

    def _fitter(self, below: int) -> list[Member]:
        """The voters below a level: heard, at theirs for long enough, and not fetching a snapshot.

        A leader that refuses commands because of its code does not wait: the others' codes do not vary.
        """
        state = self._state
        held_timeouts = 0 if state.fitness.other_code else HELD_TIMEOUTS
        held_since = state.now - held_timeouts * state.options.election_timeout_us

        def is_fitter(voter: Member) -> bool:
            if state.fitness.is_rotten and self._downstreams.durable_on(voter) < state.commit_index:
                return False  # It cannot win, and perhaps this leader cannot read what it lacks.
            known = self._levels.get((voter.node_id, voter.disk_id))
            return known is not None and known.level < below and known.since <= held_since

        return [voter for voter in self._others() if is_fitter(voter)]

    def _others(self) -> list[Member]:
        """The other voters that could take over: linked, heard, and not fetching a snapshot."""
        state, is_heard, fetching = self._state, self._heard(), self._downstreams.fetching
        return [
            voter
            for voter in state.members.voters()
            if state.is_linked(voter) and is_heard(voter) and voter.node_id not in fetching and not state.is_me(voter)
        ]

    def _lacks_little(self, voter: Member) -> bool:
        match = self._downstreams.match_index(voter.node_id, voter.disk_id)
        return match is not None and self._state.log.bytes_from(match) <= self._state.options.promotable_bytes

    def ask_successor(self) -> None:
        """Before an unfit leader steps down: ask the best of the others at once, so that nobody waits for a timeout.

        Its log may lack uncommitted records, so it may lose; then the others campaign after their timeouts.
        """
        state = self._state
        fitter = [voter for voter in self._others() if (self._level_of(voter) or 0) < state.fitness.level]
        if fitter:
            state.fitness.handed_over(state)
            state.act(Send(max(fitter, key=self._merit).node_id, Campaign(self._promise)))
