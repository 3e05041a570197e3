"""Rules 3, 4 and 5: a nominee asks, voters answer, a majority of durable promises makes a leader.

    IDLE --nominated, no live leader--> PRE_VOTE --majority would--> PROMISING --own promise durable--> REQUESTING
    any --another promise, or time is up--> IDLE                     REQUESTING --majority promised--> leads

The voter's half is in `answer_pre_vote` (no effect) and `decide` (at the head of the writer queue).
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from .actions import Send
from .messages import PreVote, PreVoteAnswer, PromiseAnswer, PromiseRequest
from .promise import Promise
from .state import State


class Phase(Enum):
    """How far an attempt is."""

    IDLE = auto()
    PRE_VOTE = auto()
    PROMISING = auto()
    REQUESTING = auto()


def answer_pre_vote(state: State, sender: str, message: PreVote, live_leader: str | None) -> None:
    """Say what this node would answer. A nominee that asks leads nobody, so it is no live leader of ours."""
    if not state.is_voter:
        return
    granted = live_leader in (None, sender) and message.last >= state.log.durable
    state.act(
        Send(sender, PreVoteAnswer(message.attempt, granted, state.promise.epoch, state.log.durable, state.clock))
    )


def refusal(state: State, request: PromiseRequest) -> str | None:
    """Why this node does not promise, or None. Called at the head of the writer queue: nothing is being flushed."""
    asked = request.promise
    if asked == state.promise:
        return None  # rule 1: the same triple again
    if asked.epoch <= state.promise.epoch:
        return f"promised epoch {state.promise.epoch} to {state.promise.nominee or 'nobody'}"
    # Raft 5.4.1: the voter denies its vote if its own log is more up-to-date than that of the candidate.
    if request.last < state.log.durable:
        return f"holds {tuple(state.log.durable)}, the nominee {tuple(request.last)}"
    return None


@dataclass(slots=True)
class Nominee:
    """This node's own attempts to lead."""

    state: State
    nominated: bool = False
    phase: Phase = Phase.IDLE
    attempt: int = 0
    began: int = 0
    target: Promise | None = None
    pre_votes: dict[str, PreVoteAnswer] = field(default_factory=dict)
    grants: dict[str, int] = field(default_factory=dict)
    highest_epoch: int = 0

    def tick(self) -> None:
        """Begin, or begin again: rule 13, a nomination is a level and not an event."""
        state = self.state
        if not self.nominated or not state.is_voter:
            return
        patience = state.options.election_timeout_us
        if self.phase is Phase.PRE_VOTE:
            patience //= 4  # it changes nothing anywhere, so asking often is free
        if self.phase is Phase.IDLE or state.now - self.began >= patience:
            self._ask_pre_votes()

    def _ask_pre_votes(self) -> None:
        state = self.state
        self.phase, self.began, self.target = Phase.PRE_VOTE, state.now, None
        self.attempt += 1
        mine = PreVoteAnswer(self.attempt, True, state.promise.epoch, state.log.durable, state.clock)
        self.pre_votes = {state.me.node_id: mine}
        self._send_voters(PreVote(self.attempt, state.log.durable))

    def _send_voters(self, message: PreVote | PromiseRequest) -> None:
        for voter in self.state.members.voters():
            if voter.node_id != self.state.me.node_id:
                self.state.act(Send(voter.node_id, message))

    def pre_vote_answered(self, sender: str, answer: PreVoteAnswer) -> None:
        """Count an answer to this attempt; refusals teach the highest epoch, too (rule 3)."""
        self.highest_epoch = max(self.highest_epoch, answer.held_epoch)
        if self.phase is Phase.PRE_VOTE and answer.attempt == self.attempt:
            self.pre_votes[sender] = answer

    def chosen_target(self) -> PromiseRequest | None:
        """The promise to ask of oneself first, once a majority would grant it."""
        state = self.state
        votes = self.pre_votes
        if self.phase is not Phase.PRE_VOTE:
            return None
        if not state.members.is_majority(lambda m: m.node_id in votes and votes[m.node_id].granted):
            return None
        epoch = 1 + max(self.highest_epoch, state.promise.epoch, *(answer.held_epoch for answer in votes.values()))
        self.target = Promise(epoch, state.me.node_id, state.me.incarnation)
        self.phase, self.began = Phase.PROMISING, state.now
        return PromiseRequest(self.target, state.log.durable)

    def own_promise_stored(self) -> None:
        """Ask the others. Rule 5: the durable last is taken now, after the own promise is durable."""
        if self.target is None or self.state.stored_promise != self.target:
            return
        self.phase, self.grants = Phase.REQUESTING, {self.state.me.node_id: self.state.clock}
        self._send_voters(PromiseRequest(self.target, self.state.log.durable))

    def promise_answered(self, sender: str, answer: PromiseAnswer) -> None:
        """Count a promise to exactly this target; a higher epoch somewhere ends the attempt."""
        self.highest_epoch = max(self.highest_epoch, answer.held_epoch)
        if self.phase is not Phase.REQUESTING or answer.asked != self.target:
            return
        if answer.granted:
            self.grants[sender] = answer.clock
        elif answer.held_epoch > answer.asked.epoch:
            self.phase = Phase.IDLE

    def elected(self) -> Promise | None:
        """The promise under which this node leads from now on, once a majority holds it durably."""
        state, grants = self.state, self.grants
        if self.phase is not Phase.REQUESTING or self.target != state.promise:
            return None
        if not state.members.is_majority(lambda m: m.node_id in grants):
            return None
        # Rule 5: a leader far ahead of the others' clocks would freeze the log's time, which never goes back.
        earliest = state.clock - state.options.clock_ahead_us
        if not state.members.is_majority(lambda m: m.node_id in grants and grants[m.node_id] >= earliest):
            return None
        self.phase = Phase.IDLE
        return self.target

    def give_up(self) -> None:
        """Another promise was made or another leader heard: this attempt is over, its epoch is never used again."""
        self.phase, self.target = Phase.IDLE, None
