"""Rules 1, 3, 4, 5 and 13: a candidate asks, voters answer, a majority of durable promises makes a leader.

    IDLE --a reason to campaign--> PRE_VOTE --a majority would promise--> PROMISING --own promise durable--> REQUESTING
    REQUESTING --a majority promised--> leads
    PRE_VOTE --a better log answered--> sends it `Campaign`, asks again      PRE_VOTE --a leader is heard again--> IDLE
    any --another is promised, a leader is followed, or time is up--> IDLE

A node has a reason to campaign (rule 13) as long as one of these holds: the control plane nominates it and it is fit to
lead (`fitness`); a `Campaign` asked it to; no leader was heard for three election timeouts, six if it is unfit, one if
it is fit and the node that was promised last was lost soon after. Each is a level that every tick reads, not an event,
so nothing depends on one message. No reason is trusted: only promises make a leader. A node whose disk hangs, or has no
room for an `epoch_start`, has no reason.

Answers are kept by node id; `core` passes on only those of voters with their own disks.

Only the voters in the candidate's own log, with the disks named there, are asked and counted. Whether the asked node
itself knows that it or the candidate is a voter does not matter (section 4.1 of the Raft thesis): the record that made
it one may not have reached it, and without its vote nobody could be elected.

The voter's half is in `answer_pre_vote` (no effect) and `refusal` (at the head of the writer queue).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b

from .actions import Send
from .belief import EPOCH_LIMIT
from .fitness import Level
from .members import Member
from .messages import Campaign, Last, PreVote, PreVoteAnswer, Promise, VoteAnswer, VoteRequest
from .state import State
from .status import PreVoteStatus

FALLBACK_TIMEOUTS = 3  # Rule 13: after three election timeouts without a leader any voter that is fit may campaign.
IN_VAIN_TIMEOUTS = 1  # The others refuse such a node for a while (`Relapses`): there is nothing to wait for.
UNFIT_FALLBACK_TIMEOUTS = 6  # By then a fit voter has had time for two campaigns.
RIVAL_TIMEOUTS = 3  # How long a fitter candidate's pre-vote counts against the others.
RIVAL_PATIENCE_TIMEOUTS = 6  # A fitter candidate that has asked for this long is not going to be elected.
MAX_BACKOFF_DOUBLINGS = 3
SHORT_TIMEOUTS = 5  # A promise that was lost or followed by another within this time did not lead to a stable leader.
RELAPSES = 2
HOLD_OFF_LIMIT_TIMEOUTS = UNFIT_FALLBACK_TIMEOUTS + 2
"""After this long without a leader no node holds back, even if it often led while unfit: the others cannot lead."""


class Phase(Enum):
    """The stage of a campaign."""

    IDLE = auto()
    PRE_VOTE = auto()
    PROMISING = auto()
    REQUESTING = auto()


@dataclass(slots=True)
class Rival:
    """A candidate that asked for a pre-vote: its last request, and since when it has asked without a long pause."""

    fitness: int
    last: Last
    heard_at: int
    began: int


class Rivals:
    """The voters that campaign at the same time. Of those with equal logs, the fitter one goes first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rivals: dict[str, Rival] = {}  # At most one for each voter.

    def heard(self, sender: str, disk_id: bytes, message: PreVote) -> None:
        """Note a voter's pre-vote."""
        state, rival = self._state, self._rivals.get(sender)
        if not message.attempt or not state.members.is_voter(sender, disk_id):
            return  # Number 0 comes from a leader, which only asks for the clock.
        is_new = rival is None or state.now - rival.heard_at > RIVAL_TIMEOUTS * state.options.election_timeout_us
        began = state.now if is_new or rival is None else rival.began
        self._rivals[sender] = Rival(message.fitness, message.last, state.now, began)

    def fitter_than(self, sender: str, message: PreVote) -> str | None:
        """A fitter candidate whose log is no shorter, and which has asked recently but not for too long."""
        now, patience = self._state.now, self._state.options.election_timeout_us
        for node_id, rival in self._rivals.items():
            if node_id == sender or rival.fitness >= message.fitness or rival.last < message.last:
                continue
            if now - rival.heard_at <= RIVAL_TIMEOUTS * patience and (
                now - rival.began <= RIVAL_PATIENCE_TIMEOUTS * patience
            ):
                return node_id
        return None

    def forget(self) -> None:
        """A leader was elected, or the members changed."""
        self._rivals.clear()


class Relapses:
    """Makes a node that crashes soon after each start wait, so that it does not win epoch after epoch.

    If such a node is nominated, nobody else could lead: each promise makes the others wait. So it is passed over until
    the others had time to elect one of theirs: if its link broke soon after the promise, or if two of its processes
    were promised within a short time. What it committed in between does not count: it serves too little.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._last = Promise(0, "", 0)
        self._promised_at = 0
        self._is_lost = False
        self._times = 0

    def promised(self, promise: Promise) -> None:
        """Note what this node promises."""
        now, last = self._state.now, self._last
        is_again = promise.candidate == last.candidate and promise.incarnation != last.incarnation
        self._times = self._times + 1 if is_again and self._is_recent else 1
        self._last, self._promised_at, self._is_lost = promise, now, False

    @property
    def _is_recent(self) -> bool:
        return self._state.now - self._promised_at < SHORT_TIMEOUTS * self._state.options.election_timeout_us

    def link_lost(self, node_id: str) -> None:
        """Note that a node's process may have ended."""
        if node_id == self._last.candidate and self._is_recent:
            self._is_lost = True

    @property
    def is_in_vain(self) -> bool:
        """Whether the node that was promised last was lost soon after that, not long ago."""
        return self._is_lost and self._is_recent

    def makes_way(self, sender: str) -> bool:
        """Whether a candidate was recently promised an epoch and did not become a stable leader."""
        return sender == self._last.candidate and self._is_recent and (self.is_in_vain or self._times >= RELAPSES)


def answer_pre_vote(
    state: State, sender: str, message: PreVote, live: Promise | None, seen: int, *, makes_way: bool
) -> None:
    """Answer a pre-vote. `live` is the promise of the leader that this node hears, itself included.

    `seen` is the highest epoch of which a leader knows. It tells a candidate, so that the next epoch is above what a
    member without a vote has promised (rule 3); number 0 comes from a leader, which no such epoch deposes.

    `makes_way`: another candidate goes first, because it is fitter or because this one crashed repeatedly. This affects
    only pre-votes: a node that asks for the promise itself has a majority, which one vote less would only split.

    Rule 4: a node that hears a live leader refuses, unless the candidate shows that leader's own `Campaign`. A leader
    that campaigns has stepped down, so that it was heard earlier is no reason to refuse.
    """
    free = live is None or live.candidate == sender or live == message.transferred_by
    chosen = not makes_way or message.transferred_by is not None  # The leader that transfers has compared them.
    granted = free and chosen and message.last >= state.durable
    held, last, level = state.promise.epoch, state.durable, state.fitness.level
    held = max(held, seen) if message.attempt else held
    state.act(Send(sender, PreVoteAnswer(message.attempt, granted, held, last, state.clock, level)))


def answer_vote(state: State, sender: str, request: VoteRequest, *, granted: bool) -> None:
    """Answer a vote request, unless it is this node's own."""
    if sender != state.me.node_id:
        state.act(Send(sender, VoteAnswer(request.promise, granted, state.promise.epoch, state.clock)))


def refusal(state: State, request: VoteRequest) -> str | None:
    """Why this node refuses to promise, or None. Called at the head of the writer queue, while nothing is flushed.

    A candidate's own request is treated the same: if its log grew since it asked, it is refused and campaigns again.
    """
    asked = request.promise
    if asked == state.promise:
        return None  # Rule 1: the same triple again.
    if asked.epoch <= state.promise.epoch:
        return f"promised epoch {state.promise.epoch} to {state.promise.candidate or 'nobody'}"
    # Raft 5.4.1: the voter denies its vote if its own log is more up-to-date than that of the candidate.
    if request.last < state.durable:
        return f"holds {tuple(state.durable)}, the candidate {tuple(request.last)}"
    return None


class Candidate:
    """Whether this node should campaign, and its campaigns."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.rivals = Rivals(state)
        self.relapses = Relapses(state)
        # The reasons to campaign (rule 13), and what holds it back.
        self.nominated = False
        self._requested_by = ""
        self._requested_until = 0
        self._leader_heard_at: int | None = None
        self._hold_until = 0
        self._failures = 0
        self._draws = 0
        # The campaign under way.
        self.phase = Phase.IDLE
        self.attempt = 0
        self.reason = ""
        self._phase_began = 0
        self._asked_at = 0
        self.transferred_by: Promise | None = None  # of the leader that asked this node to campaign
        self.pre_votes: dict[str, PreVoteAnswer] = {}
        self._newest_answers: dict[str, PreVoteAnswer] = {}  # To any attempt. For status only: no rule reads them.
        self.wanted: Promise | None = None  # The promise that it asks for, from PROMISING on.
        self.grants: set[str] = set()
        self.refusals: set[str] = set()
        # Of all campaigns (rule 3).
        self.highest_epoch = 0

    # Whether to campaign (rule 13)

    def _campaign_reason(self) -> str:
        """Why this node should campaign now; empty if it should not."""
        now, patience, fitness = self.state.now, self.state.options.election_timeout_us, self.state.fitness
        if not self.state.is_voter:
            return ""
        if now < self._requested_until:
            return f"{self._requested_by} asked it to"
        if now < self._hold_until or self._holds_off:
            return ""
        is_fit = fitness.level is Level.FIT
        if self.nominated and is_fit:
            return "the control plane nominated it"
        timeouts = FALLBACK_TIMEOUTS if is_fit else UNFIT_FALLBACK_TIMEOUTS
        waited_us = self._waited_us - self._jitter(patience)
        if waited_us >= timeouts * patience:
            return f"no leader was heard for {'three' if is_fit else 'six'} election timeouts"
        if is_fit and self.relapses.is_in_vain and waited_us >= IN_VAIN_TIMEOUTS * patience:
            return "the node that was promised last was lost soon after"
        return ""

    @property
    def _waited_us(self) -> int:
        """How long no leader was heard."""
        return 0 if self._leader_heard_at is None else self.state.now - self._leader_heard_at

    @property
    def _holds_off(self) -> bool:
        """Whether it led while unfit and now lets others lead."""
        limit = HOLD_OFF_LIMIT_TIMEOUTS * self.state.options.election_timeout_us
        return self.state.fitness.holds_off(self.state) and self._waited_us < limit

    def _jitter(self, span: int) -> int:
        """A number in [0, span) that differs between nodes, and on one node between failed campaigns.

        Derived from the incarnation, which is random at each start: the core itself has no randomness, so runs with
        the same incarnations are the same.
        """
        drawn = blake2b(b"%d %d" % (self.state.me.incarnation, self._draws), digest_size=8).digest()
        return int.from_bytes(drawn, "little") % span

    def _hold(self, at_least: int, span: int) -> None:
        """Let others go first, for a time that differs between nodes, so that two rivals do not collide again."""
        self._draws += 1
        self._hold_until = self.state.now + at_least + self._jitter(span)

    def heard_leader(self, heard_at: int) -> None:
        """A leader is alive. Once it is lost, nothing holds this node back."""
        self._leader_heard_at = heard_at
        self._hold_until = self._failures = 0
        self._newest_answers.clear()
        self.rivals.forget()

    def yield_to_another(self) -> None:
        """Another candidate was promised, or is ahead: give it time (Raft resets its timer when it grants a vote)."""
        self.give_up()
        half = self.state.options.election_timeout_us // 2
        self._hold(half, half)

    def _fail(self) -> None:
        """The campaign found no majority: back off, longer each time, so that one of two rivals succeeds."""
        self.give_up()
        self._hold(0, self.state.options.election_timeout_us << min(self._failures, MAX_BACKOFF_DOUBLINGS))
        self._failures += 1

    def campaign_requested(self, sender: str, transferred_by: Promise | None) -> None:
        """A `Campaign` arrived: campaign now and for one election timeout; if its sender leads, show its promise."""
        if self.phase not in (Phase.IDLE, Phase.PRE_VOTE):
            return
        if transferred_by is None and self._holds_off:
            return  # It has shown that it cannot lead; a leader that transfers knows its level.
        self._requested_by, self.transferred_by = sender, transferred_by
        self._requested_until = self.state.now + self.state.options.election_timeout_us
        if self.phase is Phase.IDLE or transferred_by is not None:
            self._begin(self._campaign_reason())

    # A campaign

    def tick(self) -> None:
        """Begin, continue or abandon a campaign."""
        state = self.state
        if self._leader_heard_at is None:
            self._leader_heard_at = state.now  # A start counts as the loss of a leader.
        age = state.now - self._phase_began
        if self.phase in (Phase.PROMISING, Phase.REQUESTING):
            if age < state.options.election_timeout_us:
                return
            self._fail()
        why = self._campaign_reason()
        if not why:
            self.give_up()
        elif self.phase is Phase.IDLE or age >= state.options.election_timeout_us:
            self._defer_to_best(waited=True)
            self._begin(why)
        elif state.now - self._asked_at >= state.options.heartbeat_us:  # Pre-votes have no effect: repeat them freely.
            self._defer_to_best(waited=True)
            self._ask_pre_votes()

    def _begin(self, why: str) -> None:
        self.phase, self._phase_began, self.wanted, self.reason = Phase.PRE_VOTE, self.state.now, None, why
        self.attempt += 1
        self.pre_votes = {}
        self._ask_pre_votes()

    def _ask_pre_votes(self) -> None:
        """Ask, or ask again: each voter's newest answer counts, even on a slow network."""
        state, number = self.state, self.attempt
        self._asked_at = state.now
        last, level = state.durable, state.fitness.level
        self.pre_votes[state.me.node_id] = PreVoteAnswer(number, True, state.promise.epoch, last, state.clock, level)
        self._send_voters(PreVote(number, last, self.transferred_by, level))

    def _send_voters(self, message: PreVote | VoteRequest) -> None:
        state = self.state
        for voter in state.members.voters():
            # A node that came back with another disk is not a voter of this log: it is not asked.
            if not state.is_me(voter) and state.links.get(voter.node_id, voter.disk_id) == voter.disk_id:
                state.act(Send(voter.node_id, message))

    def pre_vote_answered(self, sender: str, answer: PreVoteAnswer) -> None:
        """Count an answer to this campaign. A refusal counts too: it shows the highest epoch (rule 3)."""
        self.highest_epoch = max(self.highest_epoch, answer.held_epoch)
        if answer.attempt:  # Number 0 answers a leader, which only asks for the clock.
            self._newest_answers[sender] = answer
        if self.phase is Phase.PRE_VOTE and answer.attempt == self.attempt:
            self.pre_votes[sender] = answer
            self._defer_to_best(waited=False)

    @property
    def answers(self) -> dict[str, PreVoteStatus]:
        """Each voter's last answer since no leader is heard."""
        durable = self.state.durable
        return {
            node_id: PreVoteStatus(answer.granted, answer.held_epoch, answer.last > durable)
            for node_id, answer in self._newest_answers.items()
        }

    def _is_majority(self, nodes: Collection[str]) -> bool:
        return self.state.members.is_majority(lambda member: member.node_id in nodes)

    def _would_win(self) -> bool:
        return self._is_majority([node for node, vote in self.pre_votes.items() if vote.granted])

    def _defer_to_best(self, *, waited: bool) -> None:
        """Rule 4: a candidate that is not the best of a majority asks the best to campaign instead.

        It does so when every linked voter has answered or has had time to (`waited`). A voter that refuses although its
        log is no better hears a leader; it is not counted, since it would not promise the best one either.
        """
        state = self.state
        if self.phase is not Phase.PRE_VOTE or self._would_win():
            return
        free = {node: vote for node, vote in self.pre_votes.items() if vote.granted or vote.last > state.durable}
        others = [node for node in sorted(free) if node != state.me.node_id]
        silent = [v for v in state.members.voters() if state.is_linked(v) and v.node_id not in self.pre_votes]
        if others and self._is_majority(free) and (waited or not silent):
            state.act(Send(self._best(others, free), Campaign(None)))

    def _best(self, others: list[str], free: Mapping[str, PreVoteAnswer]) -> str:
        """The fittest of those that a majority would promise; of equally fit ones, the one with the longest log."""

        def would_win(node: str) -> bool:
            return self._is_majority([voter for voter, vote in free.items() if vote.last <= free[node].last])

        return max(others, key=lambda node: (would_win(node), -free[node].fitness, free[node].last))

    def begin_vote(self) -> VoteRequest | None:
        """Once a majority would promise: choose the epoch, and return the request to this node itself; None before."""
        state = self.state
        if self.phase is not Phase.PRE_VOTE or not self._would_win():
            return None
        # Rule 3: 1 + the highest seen in pre-votes.
        held = [answer.held_epoch for answer in self.pre_votes.values()]
        epoch = 1 + max(self.highest_epoch, state.promise.epoch, *held)
        if epoch >= EPOCH_LIMIT:  # Rule 18: a node that reports it has promised it, and 2^31 such steps lead here.
            text = f"the epochs are used up: this node has promised {state.promise.epoch}, and no higher one exists"
            state.alarm("epochs", text)
            self._fail()
            return None
        self.wanted = Promise(epoch, state.me.node_id, state.me.incarnation)
        self.phase, self._phase_began = Phase.PROMISING, state.now
        return VoteRequest(self.wanted, state.durable)

    def own_vote_stored(self) -> None:
        """Ask the others. Rule 5: the durable last is taken now that this node's own promise is durable."""
        if self.wanted is None or self.state.stored_promise != self.wanted:
            return
        self.phase, self.grants, self.refusals = Phase.REQUESTING, {self.state.me.node_id}, set()
        self._send_voters(VoteRequest(self.wanted, self.state.durable))

    def vote_answered(self, sender: str, answer: VoteAnswer) -> None:
        """Count a vote. A higher epoch or too many refusals end the campaign."""
        self.highest_epoch = max(self.highest_epoch, answer.held_epoch)
        if self.phase is not Phase.REQUESTING or answer.asked != self.wanted:
            return
        if answer.granted:
            self.grants.add(sender)
        elif answer.held_epoch > answer.asked.epoch:
            self.yield_to_another()
        else:
            self.refusals.add(sender)
        self.end_if_hopeless()

    def end_if_hopeless(self) -> None:
        """Back off as soon as no majority is possible: voters without a link were not asked and will not answer."""

        def may_promise(member: Member) -> bool:
            if self.state.is_me(member) or member.node_id in self.grants:
                return True
            return member.node_id not in self.refusals and self.state.is_linked(member)

        if self.phase is Phase.REQUESTING and not self.state.members.is_majority(may_promise):
            self._fail()

    def take_election(self) -> Promise | None:
        """Once a majority has promised: end the campaign, and return the promise to lead under; None before."""
        if self.phase is not Phase.REQUESTING or self.wanted != self.state.promise:
            return None
        if not self._is_majority(self.grants):
            return None
        wanted = self.wanted
        self.give_up()
        return wanted

    def stop_pre_vote(self) -> None:
        """A leader is heard, or the disk hangs: end a campaign that has not raised its epoch yet (rule 4)."""
        if self.phase is Phase.PRE_VOTE:
            self.give_up()

    def give_up(self) -> None:
        """End this campaign; its epoch is never used again (rule 3)."""
        self.phase, self.wanted = Phase.IDLE, None
        self.transferred_by, self._requested_until = None, 0
