"""The core: one node's replication, as a state machine that takes events and returns actions.

It is always in one of three states. The last two are objects, which are dropped when the state ends:

    neither   -> it has followed nobody since its last promise, which may be its own, made in a campaign
    Following -> it heard an elected leader and promised it; lasts until the next promise, even if the leader is silent
    Leading   -> a majority promised this node

Whether a leader is heard now is another question: `live_promise` answers it. In the first two states a node may
campaign (`election`).

`handle` dispatches the event, then runs the writer's jobs as far as the disk allows, then ships. An event may queue a
job, but only the head of the queue promises, truncates or writes a leader's frames. What a leader gets for each of its
clients' commands has shorter steps: they do not look at the log, and nothing follows an event without effect.
"""

from typing import assert_never

from . import actions, events
from .belief import EPOCH_REACH, EPOCH_STEP, Reaching, Refusal, highest_epoch, judge, refuses
from .election import Candidate, answer_pre_vote, answer_vote, refusal
from .following import Following, log_changed
from .leading import Leading, refuse_not_leading, refused_after_halt
from .members import Members
from .membership.departing import Departures
from .messages import (
    Campaign,
    Heartbeat,
    HeartbeatEcho,
    PreVote,
    PreVoteAnswer,
    Promise,
    Removal,
    VoteAnswer,
    VoteRequest,
)
from .state import State
from .status import NodeRole, Status
from .writer import Disk, FollowLeader, HandleVote, InstallSnapshot, ReachOut, TruncateLog, WriteFrames, Writer


class Core:
    """One node's protocol state. Not thread-safe; every call to `handle` is one step."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.writer = Writer()
        self.candidate = Candidate(state)
        self._departures = Departures(state)
        self._reaching = Reaching(state, state.options.election_timeout_us)
        self.leading: Leading | None = None
        self.following: Following | None = None
        self._storing_vote: HandleVote | None = None  # Answered when its promise is on disk.
        self._ticked_at = 0
        # Rule 1: at start the promise is at least the last frame's epoch.
        if state.log.last_epoch > state.promise.epoch:
            state.promise = Promise(state.log.last_epoch, "", 0)

    def handle(self, event: events.Event, now: int, clock: int) -> list[actions.Action]:
        """Take one step at `now` (monotonic) and `clock` (of the wall), microseconds; return what to do, in order."""
        if self.state.halted is not None:
            return refused_after_halt(self.state, event)
        has_ticked = self._begin_step(now, clock, looks=not isinstance(event, events.LEAVES_LOG))
        if self._dispatch(event) or has_ticked:
            self._advance()
        return self._end_step()

    def shipped(self, event: events.Shipped) -> bool:
        """Note a shipment that was taken in the step that asked for it; return whether `ShippingDue` is to follow."""
        return self.leading is not None and self.leading.downstreams.shipped(event)

    def append_done(self, result: events.AppendResult, now: int, clock: int) -> list[actions.Action]:
        """Take the result of an append action, as a step of its own; return what to do, in order.

        Call this after the other actions of the append's step, before any event.
        """
        if self.state.halted is not None:
            return []
        self._begin_step(now, clock, looks=True)
        self._appended(result)
        self._advance()
        return self._end_step()

    def _begin_step(self, now: int, clock: int, *, looks: bool) -> bool:
        """`looks`: whether the log may have changed. Return whether this counted as a tick."""
        self.state.begin_step(now, clock)
        if looks and self.state.look_at_log():
            self.candidate.give_up()  # Its answers are kept by node id, and may now be another disk's.
        if not self.leading or now - self._ticked_at <= self.state.options.election_timeout_us:
            return False
        self._tick()  # This process was frozen: check rule 11 before handling events that waited.
        return True

    def _end_step(self) -> list[actions.Action]:
        state = self.state
        if self._departures.own_removal is not None or self._departures.members is not state.members:
            self._departures.settle()
        if state.halted is not None:
            self._step_down(state.halted)
        taken, state.actions = state.actions, []
        return taken

    # Events

    def _dispatch(self, event: events.Event) -> bool:
        """Handle it; return whether anything may follow from it."""
        if isinstance(event, events.LeaderEvent):
            if self.leading:
                return self.leading.handle(event)
            refuse_not_leading(self.state, event)
        elif isinstance(event, events.FollowerEvent):
            if self.following:
                self.following.handle(event)
        elif isinstance(event, events.DiskEvent):
            self._disk_done(event)
        else:
            self._handle_node_event(event)
        return not isinstance(event, events.Measured)  # That is judged at the tick which follows.

    def _handle_node_event(self, event: events.NodeEvent) -> None:
        match event:
            case events.Received():
                self._received(event)
            case events.StreamClosed(stream_id):
                self._stream_closed(stream_id)
            case events.ExpiryDue():
                self.writer.expiry_due()
            case events.Expired():
                self.writer.answered(self.state.awake)
                if self.leading:
                    self.leading.downstreams.expired()
            case events.LinkUp() | events.LinkDown():
                self._link_changed(event)
            case events.Nominated(nominated):
                self.candidate.nominated = nominated
            case events.Drained() | events.CodeKnown():
                self.state.told(event)
            case events.Stopped(reason):
                self._step_down(reason)
                self.state.halted = reason
            case events.Measured():
                self.state.measured(event)
            case events.Tick():
                self._tick()
            case _:
                assert_never(event)

    def _stream_closed(self, stream_id: int) -> None:
        if self.leading:
            self.leading.downstreams.forget(stream_id)
        if self.following:
            self.following.stream_closed(stream_id)

    def _link_changed(self, event: events.LinkUp | events.LinkDown) -> None:
        if isinstance(event, events.LinkDown):
            self.state.link_down(event)
            self.candidate.end_if_hopeless()
            self.candidate.relapses.link_lost(event.node_id)
            if self.following and self.following.leader.candidate == event.node_id:
                self.following.link_lost()
                self._report_role(f"the link to the leader {event.node_id} broke")
                self._campaign_if_due()
            return
        self.state.link_up(event)
        self._departures.linked(event.node_id, event.disk_id)
        if self.leading:
            self.leading.send_heartbeats()

    def _tick(self) -> None:
        state, hangs = self.state, self._disk_hangs
        self._ticked_at = state.now
        self._departures.tick()
        stuck_us = self.leading.stuck_us if self.leading else None
        if state.fitness.tick(state, commit_index=state.commit_index, disk_hangs=hangs, stuck_us=stuck_us):
            state.act(actions.ProbeRoom())
        if self.following:
            self.following.tick()
            self._report_role(f"the leader {self.following.leader.candidate} was not heard for an election timeout")
        if self.leading and self._disk_hangs:
            self._give_way("the disk has not answered for an election timeout")
        if self.leading:
            self.leading.tick()
            if not self.leading.hears_majority():
                self._step_down("no majority was heard for an election timeout")
            elif self.leading.handover.gives_up:
                self._give_way(self.leading.handover.gives_up)
            elif self.leading.handover.begins_anew:
                self._step_down(self.leading.handover.begins_anew)
        self._campaign_if_due()

    def _campaign_if_due(self) -> None:
        """Rule 13: campaign if this node may and has a reason to."""
        live, state = self.live_promise, self.state
        if live is not None:
            self.candidate.heard_leader(self.following.heard_at if self.following else state.now)
        if self._may_campaign:
            self.candidate.tick()
            self._request_own_vote()
        else:
            self.candidate.stop_pre_vote()

    @property
    def _can_lead(self) -> bool:
        return not self._disk_hangs and self.state.fitness.may_campaign

    @property
    def _may_campaign(self) -> bool:
        """Whether no leader is heard, or the leader asked this node to campaign; and the disk can store an epoch."""
        return self.live_promise in (None, self.candidate.transferred_by) and self._can_lead

    @property
    def _disk_hangs(self) -> bool:
        """Rule 11: a node whose disk has not answered for an election timeout neither leads nor campaigns."""
        return self.writer.hangs(self.state.awake, self.state.options.election_timeout_us)

    def _request_own_vote(self) -> None:
        """Once a majority would promise, ask for this node's own promise first."""
        if (request := self.candidate.begin_vote()) is not None:
            self.writer.submit(HandleVote(self.state.me.node_id, request))

    def _lead_if_elected(self) -> None:
        """Lead once a majority has promised."""
        if self.leading is None and (promise := self.candidate.take_election()) is not None:
            self.leading = Leading(self.state, promise)
            self.leading.start()

    def _believes(self, event: events.Received) -> bool:
        """Rule 18: whether the epochs of a message are within reach; if not, this node may have to move nearer."""
        state = self.state
        if (why := judge(state.promise.epoch, event.message, is_new=state.is_new)) is None:
            return True
        state.refused[why] += 1
        is_far = why is Refusal.OUT_OF_REACH and not self.writer.has_job(ReachOut)
        if is_far and self._reaching.is_due(event, self.live_promise, self.leading.began if self.leading else None):
            self.writer.submit(ReachOut(event.node_id, highest_epoch(event.message)))
        return False

    def _received(self, event: events.Received) -> None:
        state, sender, message = self.state, event.node_id, event.message
        if not self._believes(event):
            return
        match message:
            case Heartbeat():
                self._heartbeat(sender, message)
            case HeartbeatEcho():
                self._echoed(sender, event.disk_id, message)
            case Removal():
                self._departures.told(sender, event.disk_id, message)
            case PreVote():  # The answer promises nothing, so anyone may ask.
                self.candidate.rivals.heard(sender, event.disk_id, message)
                rival = self.candidate.rivals.fitter_than(sender, message)
                makes_way = rival is not None or self.candidate.relapses.makes_way(sender)
                seen = self.candidate.highest_epoch if self.leading else 0
                answer_pre_vote(state, sender, message, self.live_promise, seen, makes_way=makes_way)
            case VoteRequest(promise):
                # Whether this log names the candidate a voter does not matter: its own log may be newer (`election`).
                if promise.candidate == sender and not self.writer.has_job(HandleVote, sender):
                    self.writer.submit(HandleVote(sender, message))
            case _:  # A node whose disk is not a voter's does not count.
                if state.members.is_voter(sender, event.disk_id):
                    if isinstance(message, PreVoteAnswer | VoteAnswer):
                        state.heard_clock(sender, event.disk_id, message.clock)
                    self._received_from_voter(sender, message)

    def _echoed(self, sender: str, disk_id: bytes, echo: HeartbeatEcho) -> None:
        if self.state.members.is_voter(sender, disk_id):
            self._step_down_on_higher_epoch(sender, echo.held_epoch)
            self.state.heard_clock(sender, disk_id, echo.clock)
        elif self.state.members.names(sender, disk_id):  # Who has no vote deposes nobody.
            self.candidate.highest_epoch = max(self.candidate.highest_epoch, echo.held_epoch)
        if self.leading:
            self.leading.echoed(sender, disk_id, echo)

    def _step_down_on_higher_epoch(self, sender: str, held_epoch: int) -> None:
        """Rule 10: a higher epoch in any answer ends a leadership. A transfer's target gets time to win."""
        if held_epoch <= self.state.promise.epoch:
            return
        self.candidate.highest_epoch = max(self.candidate.highest_epoch, held_epoch)
        if self.leading and self.leading.handover.campaigns == sender:
            self._step_down(f"handed over to {sender}")
            self.candidate.yield_to_another()
        self._step_down(f"{sender} holds epoch {held_epoch}")

    def _received_from_voter(self, sender: str, message: PreVoteAnswer | Campaign | VoteAnswer) -> None:
        match message:
            case PreVoteAnswer():
                self._step_down_on_higher_epoch(sender, message.held_epoch)
                if not self._may_campaign:
                    self.candidate.stop_pre_vote()
                self.candidate.pre_vote_answered(sender, message)
                self._request_own_vote()
            case Campaign(transferred_by):
                self._campaign_requested(sender, transferred_by)
            case VoteAnswer():
                self._step_down_on_higher_epoch(sender, message.held_epoch)
                self.candidate.vote_answered(sender, message)
                self._lead_if_elected()
            case _:
                assert_never(message)

    def _campaign_requested(self, sender: str, transferred_by: Promise | None) -> None:
        """Campaign at another node's request: a candidate's, if no leader is heard, or that of the heard leader."""
        if self.live_promise == transferred_by and self.leading is None and self.state.is_voter and self._can_lead:
            if transferred_by is None or transferred_by.candidate == sender:
                self.candidate.campaign_requested(sender, transferred_by)
                self._request_own_vote()

    def _heartbeat(self, sender: str, message: Heartbeat) -> None:
        state, leader = self.state, message.promise
        if leader.candidate != sender or leader.candidate == state.me.node_id:
            return  # A heartbeat is valid only from its leader, and never from this node itself.
        if refuses(state, self.leading_promise, following := self.following, leader):
            return
        if following and following.leader == leader:
            following.heard()
        # Rule 1: only a promise on disk is echoed. A leader that was replaced learns so from the echo (rule 10).
        if (leader == state.stored_promise and following) or leader.epoch < state.promise.epoch:
            held, level = state.promise.epoch, state.fitness.echoed(state, message.fitness)
            echo = HeartbeatEcho(leader.epoch, message.sequence, held, level, state.clock)
            state.act(actions.Send(sender, echo))
        elif not self.writer.has_job(FollowLeader, sender):
            # Rule 1: following raises the promise; only an elected leader sends heartbeats.
            self.writer.submit(FollowLeader(leader))

    def _disk_done(self, event: events.DiskEvent) -> None:
        following = self.following
        match event:
            case events.Flushed():
                self.writer.end_flush()
                if self.leading:
                    self.leading.advance_commit()
                if following:
                    following.acknowledge()
            case events.PromiseStored(promise):
                self.writer.end_exclusive()
                self._promise_stored(promise)
            case events.Truncated() | events.Installed() | events.TruncateRefused() | events.InstallRefused():
                self.writer.end_exclusive()
                log_changed(self.state, following, event)
            case events.ExpiryEnded(is_over):
                self.writer.end_expiry(is_over=is_over)
            case events.RoomProbed():
                self.state.fitness.room_probed(self.state, event)
                self.writer.unflushed |= event.is_written  # Some of it may have waited for room.
            case events.DiskFailed(reason):
                self._step_down(reason)
                self.state.halt(reason)
            case _:
                assert_never(event)

    def _appended(self, result: events.AppendResult) -> None:
        if result.refused is not None:
            self.state.fitness.append_refused(self.state, result)
        if result.is_made:
            self.writer.appended()
        if result.stream_id:
            if self.following and result.is_made:
                self.following.appended(result.stream_id)
            elif self.following:
                self.following.frames_refused(result.stream_id, result.error)
        elif self.leading:
            if result.is_made:
                self.leading.appended(result)
            if result.refused and not self.leading.append_refused(result.refused, is_system=result.is_system):
                self._give_way(result.refused)  # Without its `epoch_start` it would never serve.

    # Promises (rule 1)

    def _promise_stored(self, promise: Promise) -> None:
        self.state.stored_promise = promise
        asked, self._storing_vote = self._storing_vote, None
        if asked is not None:
            answer_vote(self.state, asked.node_id, asked.request, granted=True)
        self.candidate.own_vote_stored()
        self._lead_if_elected()  # A single voter is a majority.
        if self.following:
            self.following.tick()  # It dials only now that the promise is on disk.

    def _handle_vote(self, job: HandleVote) -> None:
        """Rules 1 and 5, at the head of the queue: refuse, grant again, or store the promise and grant it then."""
        state = self.state
        if job.node_id == state.me.node_id and job.request.promise != self.candidate.wanted:
            return  # The campaign ended while this waited: the promise would depose a leader for nobody.
        if refusal(state, job.request) is not None:
            answer_vote(state, job.node_id, job.request, granted=False)
            if job.request.promise == self.candidate.wanted:
                self.candidate.give_up()
            return
        if job.request.promise == state.stored_promise:
            answer_vote(state, job.node_id, job.request, granted=True)
            return
        self._storing_vote = job
        self._store_promise(job.request.promise, f"promised epoch {job.request.promise.epoch} to {job.node_id}")

    def _follow_leader(self, job: FollowLeader) -> None:
        """Rule 1, at the head of the queue: follow an elected leader, and promise it its epoch."""
        state, leader = self.state, job.promise
        if leader.epoch < state.promise.epoch or (self.following and self.following.leader == leader):
            return
        if refuses(state, self.leading_promise, self.following, leader):
            return
        if leader != state.stored_promise:
            self._store_promise(leader, f"heard the leader of epoch {leader.epoch}")
        self.candidate.give_up()
        self.candidate.heard_leader(state.now)
        self.following = Following(state, self.writer, leader)
        self.following.tick()
        self._report_role(f"heard the leader of epoch {leader.epoch}")

    def _reach_out(self, job: ReachOut) -> None:
        """Rule 18, at the head of the queue: promise nobody a higher epoch, if the one named is still out of reach."""
        ours = self.state.promise.epoch
        if job.epoch > ours + EPOCH_REACH and (self.leading or self.live_promise is None):
            self._reaching.reached()
            self._store_promise(Promise(ours + EPOCH_STEP, "", 0), f"{job.node_id} named an epoch out of reach")

    def _store_promise(self, promise: Promise, reason: str) -> None:
        """Send a promise to disk. From now on it counts (rule 2), and everything under the previous one is over."""
        state = self.state
        if self.leading and self.leading.handover.campaigns == promise.candidate:
            reason = f"handed over to {promise.candidate}"
        self._step_down(reason)
        if self.following:
            self.following.close_stream(reason)
            self.following = None
        if self.candidate.wanted != promise:
            self.candidate.yield_to_another()
        state.promise = promise
        self.candidate.relapses.promised(promise)
        self._report_role(reason)
        self.writer.begin_exclusive(state.awake)
        state.act(actions.StorePromise(promise))

    # The end of every step

    def _advance(self) -> None:
        """Run the writer's jobs as far as the disk allows, ship, and report to the node above."""
        state, writer = self.state, self.writer
        if writer.jobs:
            self._run_jobs()
        if self.leading:
            if self.leading.handover.transfer is not None:
                self.leading.handover.advance()
            self.leading.ship(writer)  # Before the flush: the other disks are further away.
        if writer.disk is Disk.FREE:
            self._use_free_disk()
        if state.commit_index > state.reported_apply:
            state.report_apply()
        self._report_role()

    def _run_jobs(self) -> None:
        while (job := self.writer.take()) is not None:
            match job:
                case HandleVote():
                    self._handle_vote(job)
                case FollowLeader():
                    self._follow_leader(job)
                case ReachOut():
                    self._reach_out(job)
                case TruncateLog():
                    if self.following and self.following.truncate(job):
                        self.writer.begin_exclusive(self.state.awake)
                case InstallSnapshot():
                    if self.following and self.following.install(job):
                        self.writer.begin_exclusive(self.state.awake)
                case WriteFrames():
                    if self.following:
                        self.following.append(job)
                case _:
                    assert_never(job)

    def _use_free_disk(self) -> None:
        writer = self.writer
        if self.leading and self.leading.waiting and writer.may_append:
            self.leading.append_waiting()
        if writer.expiry_is_due and writer.may_expire() and not self.state.appends:
            writer.begin_expiry(self.state.awake)
            self.state.act(actions.Expire())
        if writer.unflushed and writer.take_flush(self.state.awake):
            self.state.act(actions.Flush())

    def _step_down(self, reason: str) -> None:
        if self.leading is not None:
            self.leading.end()
            self.leading = None
            self._report_role(reason)

    def _give_way(self, reason: str) -> None:
        """Step down because this node is unfit, in favour of another that was asked; do not campaign at once."""
        if self.leading is not None:
            self.leading.give_way()
            self._step_down(reason)
            self.state.fitness.hold_off(self.state)

    def _report_role(self, reason: str = "") -> None:
        """Report the role if it changed. `reason` says why; a leader's is always why it campaigned."""
        state, leading = self.state, self.leading
        if leading:
            last, epoch, serving = state.reported_role, leading.promise.epoch, leading.serving
            if last is None or last.role is not NodeRole.LEADER or (last.epoch, last.serving) != (epoch, serving):
                state.report_role(NodeRole.LEADER, epoch, state.me.node_id, serving, self.candidate.reason)
        else:
            state.report_role(self._role, state.promise.epoch, self.leader_id, False, reason)

    @property
    def _role(self) -> NodeRole:
        if self.leading:
            return NodeRole.LEADER
        return NodeRole.FOLLOWER if self.state.is_voter else NodeRole.OBSERVER

    @property
    def live_promise(self) -> Promise | None:
        """The promise under which the leader that this node hears, itself included, was elected."""
        if self.leading:
            return self.leading.promise
        if self.following and self.following.hears_leader:
            return self.following.leader
        return None

    # What others may know of it

    def status(self) -> Status:
        """A copy of the current state of this node's replication, made on request."""
        return self.state.status(
            role=self._role,
            leader_id=self.leader_id,
            leader=None if self.leading is None else self.leading.status(),
            following=None if self.following is None else self.following.leader,
            is_matched=bool(self.following and self.following.is_matched),
            pre_votes=self.candidate.answers,
            disk_answers=self.disk_answers,
        )

    @property
    def commit_index(self) -> int:
        """Every record below it is durable on a majority, as far as this node knows."""
        return self.state.commit_index

    @property
    def halted(self) -> str | None:
        """Why this core has stopped permanently; None while it runs."""
        return self.state.halted

    @property
    def members(self) -> Members:
        """The members in the log, as of the last step."""
        return self.state.members

    @property
    def features(self) -> frozenset[str]:
        """The features in the log, as far as it is applied."""
        return self.state.features

    @property
    def promise(self) -> Promise:
        """The promise that counts, which may still be on its way to disk."""
        return self.state.promise

    @property
    def leading_promise(self) -> Promise | None:
        """The promise under which this node leads; None if it does not lead."""
        return None if self.leading is None else self.leading.promise

    @property
    def leads(self) -> bool:
        """Whether this node leads, serving or not."""
        return self.leading is not None

    @property
    def other_code(self) -> str:
        """Why this node's results are perhaps not what a majority computes, in one sentence; empty if they are."""
        return self.state.fitness.other_code

    @property
    def disk_answers(self) -> bool:
        """False while the disk has been busy with one operation for an election timeout: such a node does not lead."""
        return not self._disk_hangs

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return None if (live := self.live_promise) is None else live.candidate

    @property
    def announces_commit_after_us(self) -> int | None:
        """When the driver must send a `Tick` to announce a commit to followers; None if it need not."""
        waits = self.leading is not None and self.leading.downstreams.has_unannounced_commit
        return self.state.options.commit_announce_us if waits else None

    @property
    def has_waiting_writes(self) -> bool:
        """Whether writes wait to be appended: any event may cause them to be appended or refused."""
        return self.state.halted is None and self.leading is not None and bool(self.leading.waiting)

    def abandon(self, reason: str) -> list[events.Request]:
        """Stop permanently for a bug of this program, and answer nothing; return the requests that waited."""
        self.state.halted, self.state.actions = reason, []
        return [request for request, _ in self.leading.waiting] if self.leading is not None else []
