"""Rules 8 and 16 on the leader: what is sent on each follower's stream, and what its disk holds.

A follower opens a stream by naming the (epoch, first index) pairs of its log. One leader per epoch (rule 1) writes one
sequence of frames, so two logs that share an epoch share all of its frames up to the shorter end, and everything before
(Raft 5.3, Log Matching). Going back from the follower's newest epoch, the first one that the leader also has gives the
boundary at which the two logs diverge:

    follower  | e1      | e2   | e4 ...            boundary = min(end of e2 there, end of e2 here)
    leader    | e1      | e2       | e3 | e5 ...

This is the epoch comparison of KIP-101 and KIP-279, with all of the follower's epochs in one message instead of a round
trip each. The boundary is a frame boundary in both logs: the log in which the epoch ends first holds whole frames only.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .actions import AnswerOpen, CloseStream, Ship
from .belief import Refusal, highest_epoch, judge
from .events import AckArrived, CrcMismatchArrived, Shipped, StreamOpened
from .members import Member
from .messages import OpenAnswer, OpenVerb, Promise
from .state import NotReadableNow, State

STALLED_TIMEOUTS = 3
"""A stream with an outstanding answer is closed after this many election timeouts without a message on it."""


def epoch_ends(epochs: Sequence[tuple[int, int]], highest_index: int) -> dict[int, int]:
    """Epoch -> the index after its last record, for ascending (epoch, first index) pairs."""
    return {
        epoch: epochs[place + 1][1] if place + 1 < len(epochs) else highest_index
        for place, (epoch, _) in enumerate(epochs)
    }


def match_boundary(
    leader: Sequence[tuple[int, int]],
    leader_highest: int,
    follower: Sequence[tuple[int, int]],
    follower_highest: int,
) -> int | None:
    """The greatest index up to which the follower's log is a prefix of the leader's; None: no epoch is shared.

    Nodes of one cluster share epoch 0, the genesis. So None means more divergent epochs than one opening can hold.
    """
    leader_ends = epoch_ends(leader, leader_highest)
    for epoch, follower_end in reversed(epoch_ends(follower, follower_highest).items()):
        if epoch in leader_ends:
            return min(follower_end, leader_ends[epoch])
    return None if follower else 0


@dataclass(slots=True)
class Downstream:
    """One follower's stream: what was shipped, and what of that is in flight (shipped, not yet acknowledged).

    `next_index` ends what was shipped, `match_index` what was acknowledged. `in_flight` holds (end, size) pairs.
    `progress_at` is when its last ack came, or when the first one became due after all had come; `shipped_at` is when
    it was last sent something. `goal` is what was committed when the round of catching up began (section 4.2.1 of the
    Raft thesis), at `goal_at`: a round ends with an ack of it, and the next one begins.
    """

    node_id: str
    disk_id: bytes
    next_index: int
    progress_at: int
    shipped_at: int
    match_index: int = 0
    goal: int = 0
    goal_at: int = 0
    announced_commit: int = 0
    held_for: str = ""
    """Why the follower cannot append, from its opening: no writes are shipped to it."""
    is_acknowledged: bool = False
    shipping: bool = False
    in_flight_bytes: int = 0
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    keeps_up: bool = False
    """Whether the last round took less than an election timeout, and this one has not taken longer."""

    @property
    def is_owed_an_ack(self) -> bool:
        """Whether an ack is due: of the opening, or of what was shipped."""
        return not self.is_acknowledged or self.shipping or bool(self.in_flight)


class Installing(NamedTuple):
    """A stream whose follower fetches a snapshot. The snapshot and the log after it are kept while the stream lasts."""

    node_id: str
    snapshot_index: int
    began_at: int


class Downstreams:
    """All streams of one leadership."""

    def __init__(self, state: State, promise: Promise) -> None:
        self.state = state
        self.promise = promise
        self.streams: dict[int, Downstream] = {}
        self.installs: dict[int, Installing] = {}
        self.has_unannounced_commit = False
        self.start_index: int | None = None  # of this leadership
        # By (node_id, disk_id). What a disk acknowledged outlives its stream: the disk holds this leader's frames up to
        # there, and no later stream of this leadership truncates them.
        self._matched: dict[tuple[str, bytes], int] = {}
        self._heard_at: dict[str, int] = {}
        self._fetched_at: dict[str, int] = {}  # When a node's last install ended.

    # What the followers hold

    def held_by_majority(self) -> int:
        """Rule 7: what a majority and this node itself hold durably, as far as this leadership knows."""
        state, own = self.state, self.state.durable.index
        held = state.members.held_by_majority(self._matched | {state.disk: own})
        return min(held, own)

    def keeps_up(self, node_id: str, disk_id: bytes) -> bool:
        """Whether this disk gets what is committed, and soon: one that lacks a frame that cannot be read never does."""
        streams = (s for s in self.streams.values() if (s.node_id, s.disk_id) == (node_id, disk_id))
        return any(self._judge_pace(stream) for stream in streams)

    def _judge_pace(self, stream: Downstream) -> bool:
        state = self.state
        is_slow = state.now - stream.goal_at > state.options.election_timeout_us
        if stream.is_acknowledged and stream.match_index >= stream.goal:
            stream.goal, stream.goal_at, stream.keeps_up = state.commit_index, state.now, not is_slow
        elif is_slow:
            stream.keeps_up = False
        return stream.keeps_up

    def durable_on(self, member: Member) -> int:
        """Everything below this index is known to this leadership to be durable on the member's disk."""
        if self.state.is_me(member):
            return self.state.durable.index
        return self._matched.get((member.node_id, member.disk_id), 0)

    def match_index(self, node_id: str, disk_id: bytes | None) -> int | None:
        """What this disk acknowledged; None if it has no stream now."""
        if not any((stream.node_id, stream.disk_id) == (node_id, disk_id) for stream in self.streams.values()):
            return None
        return self._matched.get((node_id, disk_id or b""), 0)

    def has_acknowledged(self, node_id: str, index: int) -> bool:
        """Whether a node's current stream acknowledged exactly up to `index`."""
        return any(s.node_id == node_id and s.match_index == index for s in self.streams.values())

    # Opening (rule 8)

    def open(self, event: StreamOpened) -> None:
        """Answer where to continue from. A node's newest stream replaces its earlier one."""
        state, log = self.state, self.state.log
        if (why := judge(self.promise.epoch, event.open)) or highest_epoch(event.open) > self.promise.epoch:
            state.refused[why or Refusal.OUT_OF_REACH] += 1
            self._refuse(event.stream_id, "it names an epoch above that of its leader, or a number out of range")
            return
        if event.open.promise != self.promise:
            self._refuse(event.stream_id, f"this node leads epoch {self.promise.epoch}")
            return
        had = self._matched.get((event.node_id, event.disk_id), 0)
        if event.open.durable_index < had:
            # Rule 15: this disk's votes no longer protect what it has lost.
            reason = f"this disk acknowledged {had} to {state.me.node_id}, and has {event.open.durable_index}"
            state.act(AnswerOpen(event.stream_id, OpenAnswer(OpenVerb.LOST_DATA, had, 0, reason)))
            return
        boundary = match_boundary(log.epochs, state.end_index, event.open.epochs, event.open.highest_index)
        if boundary is not None and boundary < log.lowest_index:
            self._offer_snapshot(event, boundary)
            return
        try:
            if boundary is None or not log.is_boundary(boundary):
                self._refuse(event.stream_id, f"the logs do not diverge at a boundary of this one: {boundary}")
                return
            crc32c = log.crc32c_before(boundary)
        except NotReadableNow as error:
            self._refuse(event.stream_id, str(error))  # The follower opens again, at growing intervals.
            return
        self._replace(event.node_id)
        verb = OpenVerb.RESUME if boundary == event.open.highest_index else OpenVerb.TRUNCATE
        self.streams[event.stream_id] = Downstream(
            event.node_id,
            event.disk_id,
            boundary,
            state.now,
            state.now,
            goal=state.commit_index,
            goal_at=state.now,
            held_for=event.open.reason,
        )
        state.act(AnswerOpen(event.stream_id, OpenAnswer(verb, boundary, crc32c, "")))

    def _offer_snapshot(self, event: StreamOpened, boundary: int) -> None:
        """Rule 16: the records that the follower lacks have expired here. Pin a snapshot and the log after it.

        If the follower already has a part of a usable snapshot, that snapshot is offered again.
        """
        log = self.state.log
        usable = [index for index in log.snapshot_indices if index >= log.lowest_index and index > boundary]
        if not usable:
            self._refuse(event.stream_id, f"the log begins at {log.lowest_index}, and there is no snapshot for it")
            return
        if event.open.reason:
            self._refuse(event.stream_id, f"a snapshot needs room: {event.open.reason}")
            return
        index = event.open.fetching if event.open.fetching in usable else usable[-1]
        self._replace(event.node_id)
        self.installs[event.stream_id] = Installing(event.node_id, index, self.state.now)
        self.state.act(AnswerOpen(event.stream_id, OpenAnswer(OpenVerb.INSTALL, boundary, 0, "", index)))

    def _replace(self, node_id: str) -> None:
        for stream_id in [*self.streams, *self.installs]:
            known = self.streams.get(stream_id) or self.installs[stream_id]
            if known.node_id == node_id:
                self._close(stream_id, "a newer stream of this node was opened")

    def _refuse(self, stream_id: int, reason: str) -> None:
        self.state.act(AnswerOpen(stream_id, OpenAnswer(OpenVerb.REFUSE, 0, 0, reason)))

    def crc_mismatch(self, event: CrcMismatchArrived) -> None:
        """Rule 8: a follower's frame verifies but differs from this leader's. A frame that fails its own crc is rotten.

        If this leader's frame fails, only this leader halts. If it verifies, both halt; but a follower that is not a
        voter halts alone, since its disk never counted. If it cannot be read now, the follower opens again and reports
        the same.
        """
        try:
            self._judge_mismatch(event)
        except NotReadableNow as error:
            self._refuse(event.stream_id, str(error))
            self.forget(event.stream_id)

    def _judge_mismatch(self, event: CrcMismatchArrived) -> None:
        state, (index, crc32c) = self.state, (event.mismatch.index, event.mismatch.crc32c)
        stream = self.streams.get(event.stream_id)
        if stream is None or not index or not state.log.is_boundary(index) or state.log.crc32c_before(index) == crc32c:
            return
        values = f"the frame before {index} has crc32c {state.log.crc32c_before(index):#x} here"
        values = f"{values} and {crc32c:#x} at {stream.node_id}"
        if state.log.verifies_before(index):
            if state.members.is_voter(stream.node_id, stream.disk_id):
                state.halt(f"{values}; both verify")
            else:
                self._close(event.stream_id, f"{values}, which is no voter: it halts alone")
            return
        self._refuse(event.stream_id, "the leader's own frame there is rotten")
        self.forget(event.stream_id)
        state.halt(f"{values}; the one here fails its own: rot")

    # The end of a stream

    def forget(self, stream_id: int) -> None:
        """The stream is gone: messages that still arrive from it are ignored."""
        self.streams.pop(stream_id, None)
        if install := self.installs.pop(stream_id, None):
            self._fetched_at[install.node_id] = self.state.now

    @property
    def fetching(self) -> set[str]:
        """The nodes that fetch a snapshot, or did so recently: the records they still lack are being shipped."""
        lately = self.state.now - self.state.options.election_timeout_us
        ended = {node_id for node_id, ended_at in self._fetched_at.items() if ended_at > lately}
        return ended | {install.node_id for install in self.installs.values()}

    def _close(self, stream_id: int, reason: str) -> None:
        self.forget(stream_id)
        self.state.act(CloseStream(stream_id, reason))

    def close_all(self, reason: str) -> None:
        """The leadership is over."""
        for stream_id in [*self.streams, *self.installs]:
            self._close(stream_id, reason)

    def expired(self) -> None:
        """Rule 16: close the streams that would need expired records; they open again, for a snapshot."""
        lowest = self.state.log.lowest_index
        for stream_id, stream in list(self.streams.items()):
            if stream.next_index < lowest:
                self._close(stream_id, f"shipped up to {stream.next_index}, the log begins at {lowest}")

    def heard(self, node_id: str) -> None:
        """A node echoed a heartbeat of this leadership."""
        self._heard_at[node_id] = self.state.now

    def tick(self) -> None:
        """Judge who keeps up. Close stalled streams: with an outstanding ack, or an install whose node is not heard.

        A stream can go silent without an error at either end. The records that an install holds (rule 16) are held only
        for a follower that is alive.
        """
        oldest = self.state.now - STALLED_TIMEOUTS * self.state.options.election_timeout_us
        for stream_id, stream in list(self.streams.items()):
            self._judge_pace(stream)
            if stream.is_owed_an_ack and stream.progress_at <= oldest:
                self._close(stream_id, f"{stream.node_id} acknowledged nothing for three election timeouts")
        for stream_id, install in list(self.installs.items()):
            if max(install.began_at, self._heard_at.get(install.node_id, 0)) <= oldest:
                self._close(stream_id, f"{install.node_id} was not heard for three election timeouts")

    # Shipping

    def acknowledged(self, event: AckArrived) -> Downstream | None:
        """Note an open stream's ack; return the stream if it counts.

        A claim beyond what was shipped, or inside a frame, is the peer's fault: commit_index is always a boundary.
        """
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return None
        index = event.ack.durable_index
        if index > stream.next_index:
            self._close(event.stream_id, f"acknowledged {index}, shipped up to {stream.next_index}")
            return None
        end = stream.match_index
        while stream.in_flight and stream.in_flight[0][0] <= index:
            end, size = stream.in_flight.popleft()
            stream.in_flight_bytes -= size
        if index != end and not self._is_boundary(index):  # Most acks cover a whole shipment.
            self.state.refused[Refusal.NO_BOUNDARY] += 1
            self._close(event.stream_id, f"acknowledged {index}, which is inside a frame")
            return None
        stream.progress_at, stream.is_acknowledged = self.state.now, True
        stream.match_index = max(stream.match_index, index)
        disk = (stream.node_id, stream.disk_id)
        self._matched[disk] = max(self._matched.get(disk, 0), index)
        return stream

    def _is_boundary(self, index: int) -> bool:
        """Whether an ack may have this index: below the log, or at a boundary of it that can be read now."""
        try:
            return index < self.state.log.lowest_index or self.state.log.is_boundary(index)
        except NotReadableNow:
            return False

    def shipped(self, event: Shipped) -> bool:
        """A shipment was handed to the socket; return whether the next may follow."""
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return False
        stream.shipping = False
        if event.next_index > stream.next_index:
            stream.next_index = event.next_index
            stream.in_flight.append((event.next_index, event.size))
            stream.in_flight_bytes += event.size
        return stream.next_index < self.state.end_index or stream.announced_commit < self.state.commit_index

    def _room_for(self, stream: Downstream) -> int:
        """How many bytes to ship to a stream now; unless it is 0, at least one frame is shipped.

        A follower whose disk is full gets a leadership's first record and a change of members, each when it is next:
        its log has a reserve for the cluster's own records (`log/DESIGN.md`).
        """
        state, options = self.state, self.state.options
        if stream.in_flight_bytes >= options.window_bytes:
            return 0
        if stream.held_for:
            return 1 if stream.next_index in (self.start_index, state.log.members_index) else 0
        return min(options.shipment_bytes, options.window_bytes - stream.in_flight_bytes)

    def ship(self, *, announce: bool) -> None:
        """Ship what each stream lacks, as far as its window allows.

        A new commit_index alone is sent only if `announce`; otherwise frames are expected soon and carry it.
        `has_unannounced_commit` says that a later step must check again. An idle stream gets an empty message once per
        election timeout, so that its follower can distinguish it from a dead one.
        """
        state = self.state
        end, commit, now = state.end_index, state.commit_index, state.now
        idle_since = now - state.options.election_timeout_us
        self.has_unannounced_commit = False
        for stream_id, stream in self.streams.items():
            if stream.shipping:
                continue
            room = self._room_for(stream) if stream.next_index < end else 0
            news = stream.announced_commit < commit
            if not room and not (news and announce) and stream.shipped_at > idle_since:
                self.has_unannounced_commit |= news
                continue
            if stream.is_acknowledged and not stream.in_flight:  # From now on it owes an ack.
                stream.progress_at = now
            stream.shipping, stream.shipped_at, stream.announced_commit = True, now, commit
            state.act(Ship(stream_id, stream.next_index, room, commit, state.durable.index))
