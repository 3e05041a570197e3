"""Rules 4, 6, 7, 8, 11, 12 and 15 from the leader's side: append, ship, count, commit; be heard, step down or hand
over; change the members.

A `Leading` lives for one epoch. When it ends, for whatever reason, it is dropped whole: late acks, echoes and
flushes find nothing to count in (rule 2).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .actions import (
    AnswerOpen,
    AppendRequests,
    AppendSystem,
    ChangeEnded,
    CloseStream,
    ReadReady,
    RejectRequest,
    Send,
    Ship,
    TransferEnded,
)
from .changing import ChangeContext, Changed, Full, Lost, Outcome, next_change
from .events import AckArrived, CrcMismatchArrived, PromoteRequested, Request, Shipped, StreamOpened
from .members import Member, Members
from .messages import Campaign, Heartbeat, HeartbeatEcho, OpenAnswer, OpenVerb
from .opening import match_boundary
from .promise import Promise
from .state import State


@dataclass(slots=True)
class Downstream:
    """One follower's stream: what was shipped and what of it is in flight (shipped, not yet acknowledged).

    `next_index` ends what was shipped, `match_index` what was acknowledged; `in_flight` has (end, size) pairs.
    """

    node_id: str
    disk_id: bytes
    next_index: int
    match_index: int = 0
    announced_commit: int = 0
    shipping: bool = False
    in_flight_bytes: int = 0
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)


class Installing(NamedTuple):
    """A follower's stream that fetches a snapshot, which stays, with the log behind it, as long as the stream does."""

    node_id: str
    snapshot_index: int


@dataclass(slots=True)
class Read:
    """A linearizable read: `sequence` is the first heartbeat sent after it arrived, 0 while none was."""

    read_id: int
    index: int
    sequence: int


class Queues(NamedTuple):
    """What waits at a leader: requests for the writer, their bytes, and bytes appended but not committed."""

    waiting_requests: int
    waiting_bytes: int
    uncommitted_bytes: int


@dataclass(slots=True)
class Transfer:
    """A hand-over under way: writes wait until the target has everything, `campaign` was sent, or time is up."""

    target: str
    until: int
    campaign_sent: bool = False


class Change(NamedTuple):
    """A change of members that is not committed yet: who asked for it, and where its record stands."""

    ask_id: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.


class Leading:
    """One leadership, from `epoch_start` to whatever ends it."""

    def __init__(self, state: State, promise: Promise) -> None:
        self.state = state
        self.promise = promise
        self.start_index: int | None = None
        self.streams: dict[int, Downstream] = {}
        self.installs: dict[int, Installing] = {}
        # By (node_id, disk_id). What a disk acknowledged outlives the stream: it holds this leader's frames up to
        # there, and no later stream of this leadership makes it cut them.
        self._matched: dict[tuple[str, bytes], int] = {}
        self._echoed: dict[tuple[str, bytes], int] = {}
        self._sent: deque[tuple[int, int]] = deque()  # (when, sequence) of the heartbeats of an election timeout
        self._began = state.now
        self._committed_at = state.now
        self.has_unannounced_commit = False
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._appending_bytes = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._sequence = 0
        self._heartbeat_at = state.now
        self._reads: deque[Read] = deque()
        self._transfer: Transfer | None = None
        self._change: Change | None = None

    @property
    def serving(self) -> bool:
        """Rule 6: nothing is served until `epoch_start` is committed."""
        return self.start_index is not None and self.state.commit_index > self.start_index

    # Writes

    def start(self) -> None:
        """Rule 6: `epoch_start` first. It stands where the log ends now: no leader appended before it in this epoch.

        The end is known: every append that was asked for before was carried out before this node's own promise.
        """
        self.start_index = self.state.log.highest_index
        self.state.act(AppendSystem(self.promise.epoch, {"type": "epoch_start", "node_id": self.state.me.node_id}))
        self.send_heartbeats()

    def propose(self, requests: tuple[Request, ...]) -> None:
        """Let requests wait for the writer. After one that is too many the rest is refused, too.

        So no client finds a later write of its own appended and an earlier one not.
        """
        options, reason = self.state.options, None if self.serving else "not_leader"
        for request in requests:
            size = self._waiting_bytes + request.size
            if reason is None and (len(self._waiting) >= options.waiting_requests or size > options.waiting_bytes):
                reason = "overloaded"
            if reason is not None:
                self.state.act(RejectRequest(request, reason))
            else:
                self._waiting.append(request)
                self._waiting_bytes = size

    def refuse_waiting(self, reason: str) -> None:
        """Give back all that waits: what comes after a write that could not be appended is not appended either."""
        for request in self._waiting:
            self.state.act(RejectRequest(request, reason))
        self._waiting.clear()
        self._waiting_bytes = 0

    def append_waiting(self) -> None:
        """Append what waits as one frame, up to its limits; the rest follows when this one is in the file."""
        options, waiting = self.state.options, self._waiting
        if not waiting or self._uncommitted_bytes >= options.uncommitted_bytes or self._transfer:
            return
        batch = [waiting.popleft()]
        size = batch[0].size
        while waiting and len(batch) < options.frame_requests and size + waiting[0].size <= options.frame_bytes:
            batch.append(waiting.popleft())
            size += batch[-1].size
        self._waiting_bytes -= size
        self._appending_bytes += size
        self.state.act(AppendRequests(self.promise.epoch, tuple(batch)))

    def appended(self) -> None:
        """What `append_waiting` asked for is in the file, as far as the log took it.

        A full disk or an index that is not the expected one leaves nothing in the file: no commit would ever take its
        bytes away again, and in the end nothing more would be appended.
        """
        end = self.state.log.highest_index
        if self._appending_bytes and end > self.state.commit_index:
            self._uncommitted.append((end, self._appending_bytes))
            self._uncommitted_bytes += self._appending_bytes
        self._appending_bytes = 0

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits for the writer."""
        return bool(self._waiting)

    @property
    def queues(self) -> Queues:
        """How much waits, and where."""
        return Queues(len(self._waiting), self._waiting_bytes, self._uncommitted_bytes)

    # Commit

    def _durable_on(self, member: Member) -> int:
        if self.state.is_me(member):
            return self.state.log.durable.index
        return self._matched.get((member.node_id, member.disk_id), 0)

    def advance_commit(self) -> None:
        """Rule 7: commit what a majority and this node itself hold. All indices here are frame boundaries: so is it."""
        if self.start_index is None:
            return
        reached = self.state.members.held_by_majority(self._durable_on)
        reached = min(reached, self.state.log.durable.index)  # Never above the leader's own.
        # Raft 5.4.2: only records of the leader's own epoch commit by counting; what is before commits with them.
        if reached > max(self.start_index, self.state.commit_index):
            self.state.commit(reached)
            self._committed_at = self.state.now
            while self._uncommitted and self._uncommitted[0][0] <= reached:
                self._uncommitted_bytes -= self._uncommitted.popleft()[1]
            if self._change and reached > self._change.index:
                self._end_change(Changed(self._change.index))

    # Streams

    def open_stream(self, event: StreamOpened) -> None:
        """Rule 8: answer where to go on from; the newest stream of a node replaces an earlier one."""
        state, log = self.state, self.state.log
        if event.open.promise != self.promise:
            self._refuse_open(event.stream_id, f"this node leads epoch {self.promise.epoch}")
            return
        had = self._matched.get((event.node_id, event.disk_id), 0)
        if event.open.durable_index < had:
            # Rule 15: no vote of that disk counts on what it has lost.
            reason = f"this disk acknowledged {had} to {state.me.node_id}, and has {event.open.durable_index}"
            state.act(AnswerOpen(event.stream_id, OpenAnswer(OpenVerb.LOST_DATA, had, 0, reason)))
            return
        boundary = match_boundary(log.epochs, log.highest_index, event.open.epochs, event.open.highest_index)
        if boundary is not None and boundary < log.lowest_index:
            self._offer_snapshot(event, boundary)
            return
        if boundary is None or not log.is_boundary(boundary):
            self._refuse_open(event.stream_id, f"the logs do not part at a boundary of this one: {boundary}")
            return
        self._replace_streams(event.node_id)
        verb = OpenVerb.RESUME if boundary == event.open.highest_index else OpenVerb.TRUNCATE
        self.streams[event.stream_id] = Downstream(event.node_id, event.disk_id, next_index=boundary)
        state.act(AnswerOpen(event.stream_id, OpenAnswer(verb, boundary, log.crc32c_before(boundary), "")))

    def _replace_streams(self, node_id: str) -> None:
        for stream_id in [*self.streams, *self.installs]:
            known = self.streams.get(stream_id) or self.installs[stream_id]
            if known.node_id == node_id:
                self.forget_stream(stream_id)
                self.state.act(CloseStream(stream_id, "a newer stream of this node was opened"))

    def _offer_snapshot(self, event: StreamOpened, boundary: int) -> None:
        """Rule 16: what the follower lacks has expired here. It and the log behind it are pinned while it is fetched.

        The one of which the follower has a part is offered again, if it is still there.
        """
        log = self.state.log
        usable = [index for index in log.snapshot_indices if index >= log.lowest_index and index > boundary]
        if not usable:
            self._refuse_open(event.stream_id, f"the log begins at {log.lowest_index}, and there is no snapshot for it")
            return
        index = event.open.fetching if event.open.fetching in usable else usable[-1]
        self._replace_streams(event.node_id)
        self.installs[event.stream_id] = Installing(event.node_id, index)
        self.state.act(AnswerOpen(event.stream_id, OpenAnswer(OpenVerb.INSTALL, boundary, 0, "", index)))

    def _refuse_open(self, stream_id: int, reason: str) -> None:
        self.state.act(AnswerOpen(stream_id, OpenAnswer(OpenVerb.REFUSE, 0, 0, reason)))

    def crc_mismatch(self, event: CrcMismatchArrived) -> None:
        """Rule 8: a follower's frame verifies and is not this leader's. Whose own crc fails has rot; else both halt."""
        state, (index, crc32c) = self.state, (event.mismatch.index, event.mismatch.crc32c)
        stream = self.streams.get(event.stream_id)
        if stream is None or not state.log.is_boundary(index) or state.log.crc32c_before(index) == crc32c:
            return
        values = f"the frame before {index} has crc32c {state.log.crc32c_before(index):#x} here"
        values = f"{values} and {crc32c:#x} at {stream.node_id}"
        if state.log.verifies_before(index):
            state.halt(f"{values}; both verify")
            return
        self._refuse_open(event.stream_id, "the leader's own frame there is rotten")
        self.forget_stream(event.stream_id)
        state.halt(f"{values}; the one here fails its own: rot")

    def forget_stream(self, stream_id: int) -> None:
        """Forget a stream: what comes from it later counts for nothing."""
        self.streams.pop(stream_id, None)
        self.installs.pop(stream_id, None)

    def expired(self) -> None:
        """Rule 16: who was slower than the log's limits lacks what is gone. It opens a new stream, for a snapshot."""
        lowest = self.state.log.lowest_index
        for stream_id, stream in list(self.streams.items()):
            if stream.next_index < lowest:
                self.forget_stream(stream_id)
                self.state.act(CloseStream(stream_id, f"shipped up to {stream.next_index}, the log begins at {lowest}"))

    def acknowledged(self, event: AckArrived) -> None:
        """Count an ack of a stream that stands; one that claims more than was shipped is a peer's fault."""
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        index = event.ack.durable_index
        if index > stream.next_index:
            self.forget_stream(event.stream_id)
            reason = f"acknowledged {index}, shipped up to {stream.next_index}"
            self.state.act(CloseStream(event.stream_id, reason))
            return
        stream.match_index = max(stream.match_index, index)
        while stream.in_flight and stream.in_flight[0][0] <= index:
            stream.in_flight_bytes -= stream.in_flight.popleft()[1]
        disk = (stream.node_id, stream.disk_id)
        self._matched[disk] = max(self._matched.get(disk, 0), index)
        self.advance_commit()

    def shipped(self, event: Shipped) -> None:
        """A shipment left; the next may."""
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        stream.shipping = False
        if event.next_index > stream.next_index:
            stream.next_index = event.next_index
            stream.in_flight.append((event.next_index, event.size))
            stream.in_flight_bytes += event.size

    def ship(self, *, quiet: bool) -> None:
        """Ship what each stream lacks and its window admits.

        A moved commit_index alone is worth a message only when the writer is quiet and has been for a moment: otherwise
        frames follow soon, and carry it. `has_unannounced_commit` says that a later step should look again.
        """
        state, options = self.state, self.state.options
        quiet = quiet and state.now >= self._committed_at + options.commit_announce_us
        self.has_unannounced_commit = False
        for stream_id, stream in self.streams.items():
            if stream.shipping:
                continue
            lacks = stream.next_index < state.log.highest_index and stream.in_flight_bytes < options.window_bytes
            news = stream.announced_commit < state.commit_index
            if not lacks and not (news and quiet):
                self.has_unannounced_commit |= news
                continue
            stream.shipping = True
            stream.announced_commit = state.commit_index
            room = min(options.shipment_bytes, options.window_bytes - stream.in_flight_bytes) if lacks else 0
            state.act(Ship(stream_id, stream.next_index, room, state.commit_index, state.log.durable.index))

    # Being heard

    def send_heartbeats(self) -> None:
        """One to every linked node, with a fresh sequence: the nonce of the read barrier."""
        state = self.state
        self._sequence += 1
        self._heartbeat_at = state.now + state.options.heartbeat_us
        if not self._sent or state.now - self._sent[-1][0] >= state.options.heartbeat_us // 2:  # Enough for rule 11.
            self._sent.append((state.now, self._sequence))
        for read in self._reads:
            read.sequence = read.sequence or self._sequence
        for node_id in sorted(state.links):
            state.act(Send(node_id, Heartbeat(self.promise, self._sequence, state.clock)))

    def echoed(self, sender: str, disk_id: bytes, echo: HeartbeatEcho) -> None:
        """Note who heard which heartbeat."""
        if echo.epoch == self.promise.epoch:
            self._echoed[(sender, disk_id)] = max(self._echoed.get((sender, disk_id), 0), echo.sequence)
            self._answer_reads()

    def tick(self) -> None:
        """Send heartbeats when due, and end a hand-over whose time is up."""
        if self.state.now >= self._heartbeat_at:
            self.send_heartbeats()
        if self._transfer and self.state.now >= self._transfer.until:
            self._end_transfer(f"{self._transfer.target} did not take over in time")

    def hears_majority(self) -> bool:
        """Rule 11: whether a majority echoed a heartbeat of the last election timeout; who did not must step down.

        What counts is when the heartbeat was sent that a member echoed. Of echoes that waited in a socket while this
        process stood still, the time of arrival would say that all is well.
        """
        state = self.state
        oldest = state.now - state.options.election_timeout_us
        return self._began >= oldest or state.members.is_majority(self.who_is_heard())

    def who_is_heard(self) -> Callable[[Member], bool]:
        """Tells of a member whether it echoed a heartbeat of the last election timeout."""
        state = self.state
        oldest = state.now - state.options.election_timeout_us
        while self._sent and self._sent[0][0] < oldest:
            self._sent.popleft()
        first = self._sent[0][1] if self._sent else self._sequence + 1

        def heard(member: Member) -> bool:
            return state.is_me(member) or self._echoed.get((member.node_id, member.disk_id), 0) >= first

        return heard

    # Reads (rule 12)

    def read(self, read_id: int) -> None:
        """Note commit_index; answer once a majority echoed a heartbeat that was sent after this call."""
        if not self.serving or len(self._reads) >= self.state.options.reads_waiting:
            self.state.act(ReadReady(read_id, None))
            return
        under_way = bool(self._reads)  # A heartbeat of theirs is out, and its echo sends the next.
        self._reads.append(Read(read_id, self.state.commit_index, 0))
        if not under_way:
            self.send_heartbeats()
            self._answer_reads()

    def _answer_reads(self) -> None:
        def sequence_of(member: Member) -> int:
            if self.state.is_me(member):
                return self._sequence
            return self._echoed.get((member.node_id, member.disk_id), 0)

        reached = self.state.members.held_by_majority(sequence_of)
        answered = False
        while self._reads and 0 < self._reads[0].sequence <= reached:
            read = self._reads.popleft()
            self.state.act(ReadReady(read.read_id, read.index))
            answered = True
        if answered and self._reads and not self._reads[0].sequence:
            self.send_heartbeats()

    # Handing over (rule 4; Raft 3.10 of the thesis)

    def transfer(self, target: str | None) -> None:
        """Stop appending writes, which wait; `continue_transfer` goes on once the target has all that was appended.

        After an election timeout without that, or two more without another leader, this one goes on: what waited is
        appended then. If the hand-over succeeds, what waits is given back as not written.
        """
        state = self.state
        others = [voter for voter in state.members.voters() if state.is_linked(voter)]
        if target is None and others:
            target = max(others, key=lambda voter: (self._durable_on(voter), voter.node_id)).node_id
        if self._transfer or not self.serving or target not in [voter.node_id for voter in others]:
            why = "another is under way" if self._transfer else f"{target or 'no other voter'} is not connected"
            state.act(TransferEnded(why if self.serving else "this leader does not serve yet"))
            return
        self._transfer = Transfer(target, state.now + state.options.election_timeout_us)

    def continue_transfer(self) -> None:
        """Send `campaign` once all that was appended is committed, and durable on the target's disk."""
        state, transfer = self.state, self._transfer
        if transfer is None or transfer.campaign_sent or transfer.target not in state.links:
            return
        end = state.log.highest_index
        has_all = any(s.node_id == transfer.target and s.match_index == end for s in self.streams.values())
        if has_all and state.commit_index == end:
            # The target stands for one election timeout from when it hears this: this leader waits longer.
            transfer.campaign_sent, transfer.until = True, state.now + 2 * state.options.election_timeout_us
            state.act(Send(transfer.target, Campaign(self.promise)))

    def _end_transfer(self, reason: str) -> None:
        self._transfer = None
        self.state.act(TransferEnded(reason))

    @property
    def transferring_to(self) -> str | None:
        """Whom this leader asked to take its place."""
        return self._transfer.target if self._transfer and self._transfer.campaign_sent else None

    # Members (rule 15)

    def promote(self, asked: PromoteRequested) -> None:
        """Append the next change that brings a node to be a voter, or say why there is none.

        It counts for every majority as soon as it stands in the log, its own commit included; `ChangeEnded` follows
        when it is committed. No other is appended before: `next_change` looks at the log for that.
        """
        state = self.state
        answer = next_change(state, self._change_context(asked.node_id), asked.node_id, asked.address)
        if not isinstance(answer, Members):
            state.act(ChangeEnded(asked.ask_id, answer))
            return
        self._change = Change(asked.ask_id, state.log.highest_index)
        state.act(AppendSystem(self.promise.epoch, {"type": "members", "members": answer.to_record()}))

    def _change_context(self, node_id: str) -> ChangeContext:
        disk_id = self.state.links.get(node_id)
        follows = any((s.node_id, s.disk_id) == (node_id, disk_id) for s in self.streams.values())
        return ChangeContext(
            serving=self.serving,
            start_index=self.start_index,
            transferring_to=self._transfer.target if self._transfer else None,
            match_index=self._matched.get((node_id, disk_id or b""), 0) if follows else None,
            is_heard=self.who_is_heard(),
        )

    def change_refused(self) -> None:
        """An append of this leader's was refused: if it was the change, nothing of it is in the log."""
        if self._change and self.state.log.members_index != self._change.index:
            self._end_change(Full())

    def _end_change(self, outcome: Outcome) -> None:
        if self._change:
            self.state.act(ChangeEnded(self._change.ask_id, outcome))
        self._change = None

    # The end

    def end(self) -> None:
        """Give back what was not appended, refuse the reads, close the streams."""
        self.refuse_waiting("not_leader")
        self._end_change(Lost())
        for read in self._reads:
            self.state.act(ReadReady(read.read_id, None))
        for stream_id in [*self.streams, *self.installs]:
            self.state.act(CloseStream(stream_id, "this node leads no longer"))
        self._reads.clear()
        self.streams.clear()
        self.installs.clear()
