"""Rules 6, 7, 11, 12 and 15 on the leader: append, advance commit_index, be heard, change the members.

A `Leading` lives for one epoch. When it ends, for whatever reason, the object is dropped, so that late acks, echoes and
flushes cannot count (rule 2). Its followers' streams are in `downstreams`, transfers of leadership (rule 4) in
`fitness.handover`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from . import actions, events
from .belief import Refusal
from .downstreams import Downstreams
from .events import Reason, Request
from .fitness.handover import Handover
from .fitness.levels import PROBE_TIMEOUTS
from .members import NO_DISK, Member
from .membership.changes import Changes, Leadership
from .membership.changing import NotLeading
from .messages import Heartbeat, HeartbeatEcho, OpenAnswer, OpenVerb, PreVote, Promise
from .state import State, beat_after
from .status import InstallStatus, LeaderStatus, Queues, StreamStatus
from .writer import Writer


@dataclass(slots=True)
class Read:
    """A linearizable read. `sequence` is that of the first heartbeat sent after it arrived, 0 until one is sent."""

    read_id: int
    index: int
    sequence: int


class Leading:
    """One leadership, from `epoch_start` to its end."""

    def __init__(self, state: State, promise: Promise) -> None:
        self.state = state
        self.promise = promise
        self.start_index: int | None = None
        self.serving = False
        """Rule 6: nothing is served until `epoch_start` is committed."""
        self.downstreams = Downstreams(state, promise)
        self._echoed: dict[tuple[str, bytes], int] = {}
        self._sent: deque[tuple[int, int]] = deque()  # (when, sequence) of the heartbeats of an election timeout
        self.began = state.now
        self._committed_at = state.now
        self._majority_holds = 0  # The highest index that this node and a majority hold.
        self._majority_grew_at = state.awake
        self.waiting: deque[tuple[Request, int]] = deque()
        """The writes that wait to be appended, with `awake` when each came."""
        self._waiting_bytes = 0
        self._appending_bytes = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._sequence = 0
        self._heartbeat_at = state.now
        self._reads: deque[Read] = deque()
        self.handover = Handover(state, promise, self.downstreams, self._is_heard)
        self.changes = Changes(
            state,
            self.downstreams,
            Leadership(
                promise,
                lambda: self.serving,
                lambda: self.start_index,
                lambda: self.handover.target,
                self._is_heard,
                lambda: self._wanted_features,
            ),
        )
        self._wanted_features: frozenset[str] = frozenset()
        self._features_at = 0  # When to ask for the record again, after the log refused it.

    def handle(self, event: events.LeaderEvent) -> bool:
        """Take one event that concerns the leader alone; return whether anything may follow from it."""
        match event:
            case events.AckArrived():
                return self.acknowledged(event)
            case events.ShippingDue():
                pass  # What follows every event does it.
            case events.CrcMismatchArrived():
                self.downstreams.crc_mismatch(event)
            case events.Shipped():
                return self.downstreams.shipped(event)
            case events.StreamOpened():
                self.downstreams.open(event)
            case events.Proposed(requests):
                self.propose(requests)
            case events.ReadRequested(read_id):
                self.read(read_id)
            case events.TransferRequested(target):
                self.handover.begin(target, serving=self.serving)
            case events.ChangeRequested():
                self.changes.request(event)
            case _:
                assert_never(event)
        return True

    def status(self) -> LeaderStatus:
        """A copy of the public state of this leadership."""
        me, first = self.state.me, self._first_heard()
        heard = {disk for disk, sequence in self._echoed.items() if sequence >= first}
        return LeaderStatus(
            start_index=self.start_index,
            serving=self.serving,
            queues=Queues(len(self.waiting), self._waiting_bytes, self._uncommitted_bytes),
            heard=frozenset(heard | {(me.node_id, me.disk_id)}),
            streams=tuple(StreamStatus(s.node_id, s.next_index, s.held_for) for s in self.downstreams.streams.values()),
            installs=tuple(InstallStatus(i.node_id, i.snapshot_index) for i in self.downstreams.installs.values()),
            clock_offsets_us=self.state.clocks.offsets_us(self.state.members, self.state.now, self.state.clock),
        )

    # Writes

    def start(self) -> None:
        """Rule 6: `epoch_start` first. Its index is that of the append's result: this epoch has no record before it."""
        record = {"type": "epoch_start", "node_id": self.state.me.node_id}
        self.state.act(actions.AppendSystem(self.promise.epoch, self.state.majority_clock, record))
        self.send_heartbeats()

    def propose(self, requests: tuple[Request, ...]) -> None:
        """Queue requests for the writer. Once one is refused, the rest are refused, too.

        So no client's later write is appended while an earlier one is not. The waiting time of the first in the queue
        bounds that of all, however fast this machine is: requests that arrive after that are refused before they cost
        more. Pauses of the process do not count as waiting time.
        """
        options, reason = self.state.options, None if self.serving else Reason.NOT_LEADER
        if reason is None and self.waiting and self.state.awake - self.waiting[0][1] > options.waiting_us:
            reason = Reason.OVERLOADED
        for request in requests:
            size = self._waiting_bytes + request.size
            # A request that alone exceeds the bytes is accepted if none waits: otherwise it would be refused forever.
            too_long = size > options.waiting_bytes and bool(self.waiting)
            if reason is None and (too_long or len(self.waiting) >= options.waiting_requests):
                reason = Reason.OVERLOADED
            if reason is not None:
                self.state.act(actions.RejectRequest(request, reason))
            else:
                self.waiting.append((request, self.state.awake))
                self._waiting_bytes = size

    def refuse_waiting(self, reason: Reason) -> None:
        """Refuse everything that waits: writes after one that could not be appended are not appended either."""
        for request, _ in self.waiting:
            self.state.act(actions.RejectRequest(request, reason))
        self.waiting.clear()
        self._waiting_bytes = 0

    def append_waiting(self) -> None:
        """Append the waiting writes as one frame, up to its limits; the rest follow when this one is in the file."""
        options, waiting = self.state.options, self.waiting
        if self.state.fitness.other_code:
            self.refuse_waiting(Reason.OTHER_CODE)
            return
        if not waiting or self._uncommitted_bytes >= options.uncommitted_bytes or self.handover.target:
            return
        batch = [waiting.popleft()[0]]
        size, records = batch[0].size, batch[0].count
        while waiting and len(batch) < options.frame_requests:
            request = waiting[0][0]
            if size + request.size > options.frame_bytes or records + request.count > options.frame_records:
                break
            size, records = size + request.size, records + request.count
            batch.append(waiting.popleft()[0])
        self._waiting_bytes -= size
        self._appending_bytes += size
        self.state.act(actions.AppendRequests(self.promise.epoch, self.state.majority_clock, tuple(batch)))

    def appended(self, result: events.AppendResult) -> None:
        """The append of `start` or `append_waiting` is in the file, as far as the log accepted it.

        After a full disk or a wrong expected index there may be nothing in the file. Then its bytes must not count as
        uncommitted: no commit would ever subtract them, and eventually nothing more would be appended.
        """
        if self.start_index is None and result.is_system:
            self.start_index = self.downstreams.start_index = result.index
        end = self.state.end_index
        if self._appending_bytes and end > self.state.commit_index:
            self._uncommitted.append((end, self._appending_bytes))
            self._uncommitted_bytes += self._appending_bytes
        self._appending_bytes = 0

    def ship(self, writer: Writer) -> None:
        """Ship to every stream. A new commit_index travels alone only if no frame is expected to carry it soon."""
        state = self.state
        has_waited = state.now >= self._committed_at + state.options.commit_announce_us
        self.downstreams.ship(announce=has_waited and not self.waiting and writer.is_quiet)

    # Commit

    def acknowledged(self, event: events.AckArrived) -> bool:
        """Count a follower's ack; return whether anything may follow from it."""
        stream = self.downstreams.acknowledged(event)
        if stream is None:
            return False
        before = self.state.commit_index
        self.advance_commit()
        is_level = stream.next_index >= self.state.end_index  # If not, its window may have room again.
        return self.state.commit_index != before or not is_level or self.handover.transfer is not None

    def advance_commit(self) -> None:
        """Rule 7: commit what a majority and this node itself hold. All these indices are frame boundaries."""
        if self.start_index is None:
            return
        reached = self.downstreams.held_by_majority()
        if reached > self._majority_holds:
            self._majority_holds, self._majority_grew_at = reached, self.state.awake
        # Raft 5.4.2: only records of the leader's own epoch commit by counting; what is before commits with them.
        if reached > max(self.start_index, self.state.commit_index):
            self.state.commit(reached)
            self.serving, self._committed_at = True, self.state.now
            while self._uncommitted and self._uncommitted[0][0] <= reached:
                self._uncommitted_bytes -= self._uncommitted.popleft()[1]
            self.state.backlog_ends(reached)
            if self.changes.under_way:
                self.changes.committed(reached)

    # Being heard

    def send_heartbeats(self) -> None:
        """Send one to every linked node, with a new sequence: the nonce of the read barrier."""
        state = self.state
        self._sequence += 1
        self._heartbeat_at = beat_after(state.now, state.options.heartbeat_us)
        if not self._sent or state.now - self._sent[-1][0] >= state.options.heartbeat_us // 2:  # Enough for rule 11.
            self._sent.append((state.now, self._sequence))
        for read in self._reads:
            read.sequence = read.sequence or self._sequence
        for node_id in sorted(state.links):
            state.act(actions.Send(node_id, Heartbeat(self.promise, self._sequence, state.clock, state.fitness.level)))

    def echoed(self, sender: str, disk_id: bytes, echo: HeartbeatEcho) -> None:
        """Note which node heard which heartbeat. An echo of one that was not sent yet would count forever."""
        if echo.sequence > self._sequence:
            self.state.refused[Refusal.UNSENT_HEARTBEAT] += 1
        elif echo.epoch == self.promise.epoch:
            self.downstreams.heard(sender)
            self._echoed[(sender, disk_id)] = max(self._echoed.get((sender, disk_id), 0), echo.sequence)
            self.handover.echoed(sender, disk_id, echo)
            self._answer_reads()
            self._ask_clock(sender, disk_id)

    def _ask_clock(self, sender: str, disk_id: bytes) -> None:
        """Ask a voter of an earlier version for its clock by a pre-vote: its answer has it, its echoes do not (rule 5).

        A pre-vote has no effect on the receiver, and no campaign has the number 0.
        """
        state = self.state
        if not state.members.is_voter(sender, disk_id):
            return
        age = state.clocks.age_us(sender, disk_id, state.now)
        if age is None or age >= state.options.election_timeout_us // 2:
            state.act(actions.Send(sender, PreVote(0, state.durable, None)))

    def tick(self) -> None:
        """Send heartbeats when due; end streams, installs and transfers that take too long; hand over if unfit."""
        self.downstreams.tick()
        if self.state.commit_index == self.state.end_index:
            self._majority_grew_at = self.state.awake  # Records that are appended next have not waited yet.
        if self.state.now >= self._heartbeat_at:
            self.send_heartbeats()
            self._answer_reads()  # If no voter is left but this one, no echo will cause it.
        self.handover.tick()
        self._use_features()
        self.changes.tick()

    @property
    def stuck_us(self) -> int:
        """For how long a majority has been heard without receiving more of the uncommitted records.

        A follower that is catching up, so that there will be a majority, is no reason to give up. One that fetches a
        snapshot shows no progress until it is done.
        """
        if self.state.commit_index == self.state.end_index or not self.hears_majority():
            return 0
        return self.state.awake - self._majority_grew_at

    def hears_majority(self) -> bool:
        """Rule 11: whether a majority echoed a heartbeat of the last election timeout; if not, it must step down.

        The time at which the echoed heartbeat was sent counts. The time at which an echo arrives proves nothing: while
        this process was frozen, echoes waited in a socket.
        """
        state = self.state
        oldest = state.now - state.options.election_timeout_us
        return self.began >= oldest or state.members.is_majority(self._is_heard())

    def _is_heard(self) -> Callable[[Member], bool]:
        """A function that says whether a member echoed a heartbeat of the last election timeout."""
        first = self._first_heard()

        def heard(member: Member) -> bool:
            return self.state.is_me(member) or self._echoed.get((member.node_id, member.disk_id), 0) >= first

        return heard

    def _first_heard(self) -> int:
        """The sequence of the first heartbeat of the last election timeout."""
        oldest = self.state.now - self.state.options.election_timeout_us
        while self._sent and self._sent[0][0] < oldest:
            self._sent.popleft()
        return self._sent[0][1] if self._sent else self._sequence + 1

    # Reads (rule 12)

    def read(self, read_id: int) -> None:
        """Note commit_index; answer once a majority echoed a heartbeat that was sent after this call."""
        if not self.serving or len(self._reads) >= self.state.options.reads_waiting:
            self.state.act(actions.ReadReady(read_id, None))
            return
        under_way = bool(self._reads)  # A heartbeat for them was sent, and its echo causes the next one.
        self._reads.append(Read(read_id, self.state.commit_index, 0))
        if not under_way:
            self.send_heartbeats()
            self._answer_reads()

    def _answer_reads(self) -> None:
        if not self._reads:
            return

        reached = self.state.members.held_by_majority(self._echoed | {self.state.disk: self._sequence})
        answered = False
        while self._reads and 0 < self._reads[0].sequence <= reached:
            read = self._reads.popleft()
            self.state.act(actions.ReadReady(read.read_id, read.index))
            answered = True
        if answered and self._reads and not self._reads[0].sequence:
            self.send_heartbeats()

    # Features

    def _use_features(self) -> None:
        """Log the features that every member offers and that are not in the log yet, once per leadership.

        This leader knows those in the log: it has applied everything before its own `epoch_start`. A member that is not
        connected may run an earlier version, so nothing is logged without it. Nothing is logged during a transfer,
        either: its target would lack the record.
        """
        state = self.state
        if self._wanted_features or self.start_index is None or state.applied_index <= self.start_index:
            return
        if self.handover.target is not None or state.awake < self._features_at:
            return
        offers = [self._offered_by(m) for m in state.members.members if m.disk_id != NO_DISK]
        names = state.options.features.intersection(*offers)
        if not names <= state.features:
            self._wanted_features = names | state.features
            record = {"type": "features", "names": sorted(self._wanted_features)}
            state.act(actions.AppendSystem(self.promise.epoch, state.majority_clock, record))

    def _offered_by(self, member: Member) -> frozenset[str]:
        state = self.state
        if state.is_me(member):
            return state.options.features
        return state.offers.get(member.node_id, frozenset()) if state.is_linked(member) else frozenset()

    # The end of an append

    def append_refused(self, reason: Reason, *, is_system: bool) -> bool:
        """An append was refused: if it was that of a change or of features, that record is not in the log.

        Refuse everything that waits; return False if this leader does not serve yet.
        """
        self.changes.refused()
        if is_system and not self._wanted_features <= self.state.features:
            # If it was another record, a second record that names the same features has no effect.
            self._wanted_features = frozenset()
            self._features_at = self.state.awake + PROBE_TIMEOUTS * self.state.options.election_timeout_us
        if self.serving:
            self.refuse_waiting(reason)
        return self.serving

    # The end

    def give_way(self) -> None:
        """Ask another node to campaign: this leader is unfit and about to step down."""
        self.handover.ask_successor()

    def end(self) -> None:
        """Refuse writes that were not appended and waiting reads; close the streams."""
        self.refuse_waiting(Reason.NOT_LEADER)
        self.changes.lost()
        for read in self._reads:
            self.state.act(actions.ReadReady(read.read_id, None))
        self._reads.clear()
        self.downstreams.close_all("this node no longer leads")


def refuse_not_leading(state: State, event: events.LeaderEvent) -> None:
    """Refuse requests that only a leader can handle. Acks and the like, of a past leadership, are dropped."""
    match event:
        case events.StreamOpened(stream_id):
            refused = OpenAnswer(OpenVerb.REFUSE, 0, 0, "this node does not lead")
            state.act(actions.AnswerOpen(stream_id, refused))
        case events.Proposed(requests):
            for request in requests:
                state.act(actions.RejectRequest(request, Reason.NOT_LEADER))
        case events.ReadRequested(read_id):
            state.act(actions.ReadReady(read_id, None))
        case events.TransferRequested():
            state.act(actions.TransferEnded(state.halted or "this node does not lead"))
        case events.ChangeRequested(ask_id):
            state.act(actions.ChangeEnded(ask_id, NotLeading()))
        case events.AckArrived() | events.CrcMismatchArrived() | events.Shipped() | events.ShippingDue():
            pass
        case _:
            assert_never(event)


def refused_after_halt(state: State, event: events.Event) -> list[actions.Action]:
    """What a core that has halted does with an event: it refuses what only a leader can do, and nothing else."""
    if isinstance(event, events.LeaderEvent):
        refuse_not_leading(state, event)
    taken, state.actions = state.actions, []
    return taken
