"""Rules 1, 7, 8, 9 and 16 on the follower: open a stream, truncate a divergent suffix, append, acknowledge.

    promise stored -> DIALLING -> OPENING -> (TRUNCATING ->) MATCHED -> gone -> DIALLING ...
                                     |
                                     +-- the logs contradict each other --> MISMATCHED -> halted, or refused: gone
                                     |
                                     +-- the next record has expired on the leader
                                             -> (TRUNCATING ->) FETCHING -> INSTALLING -> gone -> DIALLING ...

`matched` is the index up to which this stream has proved the logs equal. Neither an ack nor commit_index goes above it:
a divergent suffix is durable, too, and must not count (rule 8).
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from . import actions, events
from .belief import Refusal, highest_epoch, judge
from .downstreams import STALLED_TIMEOUTS
from .fitness.levels import PROBE_TIMEOUTS
from .messages import CrcMismatch, Open, OpenAnswer, OpenVerb, Promise
from .state import NotReadableNow, RotHere, State
from .writer import InstallSnapshot, TruncateLog, WriteFrames, Writer

MAX_BACKOFF_DOUBLINGS = 6


class Step(Enum):
    """The stage of a stream."""

    DIALLING = auto()
    OPENING = auto()
    TRUNCATING = auto()
    MATCHED = auto()
    MISMATCHED = auto()
    FETCHING = auto()
    INSTALLING = auto()


@dataclass(slots=True)
class Upstream:
    """The stream opened last: no other may change this log.

    `progress_at` is when something last arrived on it, `answered_at` when it was last acknowledged; `is_answered`:
    nothing arrived since.
    """

    stream_id: int
    progress_at: int
    answered_at: int = 0
    is_answered: bool = True
    held_for: str = ""
    """Why this node cannot append, as its opening said."""
    step: Step = Step.DIALLING
    matched: int = 0
    leader_commit: int = 0
    mismatch: str = ""
    install_index: int = 0


class Following:
    """Following one elected leader, heard or not. Dropped when another promise is made, and only then (rule 2).

    So everything here is done under this leader's promise, and jobs queued under an earlier one find no stream.
    """

    def __init__(self, state: State, writer: Writer, leader: Promise) -> None:
        self.state = state
        self.writer = writer
        self.leader = leader
        self.heard_at = state.now
        self.stream: Upstream | None = None
        self._dial_at = state.now
        self._failures = 0  # Dials since a stream last matched.
        self._failed_fetches = 0  # Since one succeeded.
        self._link_lost = False

    def handle(self, event: events.FollowerEvent) -> None:
        """Take one event of the stream to the leader."""
        match event:
            case events.FramesArrived():
                self.frames_arrived(event)
            case events.OpenAnswered():
                try:
                    self.open_answered(event)
                except RotHere as error:
                    self.state.halt(str(error))
                except NotReadableNow as error:
                    # Raised before anything changed: `tick` dials again, at growing intervals.
                    self.close_stream(str(error))
            case events.StreamConnected(stream_id):
                self.connected(stream_id)
            case events.SnapshotFetched():
                self.fetched(event)
            case events.FetchFailed():
                self.fetch_failed(event)
            case _:
                assert_never(event)

    @property
    def hears_leader(self) -> bool:
        """Whether the leader was heard within an election timeout, and since the link to it was lost."""
        return not self._link_lost and self.state.now - self.heard_at < self.state.options.election_timeout_us

    @property
    def is_matched(self) -> bool:
        """Whether this log is a prefix of the leader's, so that the leader ships what it lacks."""
        return self.stream is not None and self.stream.step is Step.MATCHED and not self.stream.held_for

    def heard(self) -> None:
        """The leader is alive."""
        self.heard_at, self._link_lost = self.state.now, False

    def link_lost(self) -> None:
        """The leader's process has probably ended: do not wait for a timeout. If it lives, it is heard again soon."""
        self._link_lost = True

    def tick(self) -> None:
        """Dial if there is no stream, the promise is on disk and the leader is heard. Close a stream that is silent."""
        state = self.state
        self._look_at_stream()
        if self.stream and self.stream.held_for and not state.fitness.lacks_room:
            self.close_stream("there is room again")
            self._dial_at = state.now
        if self.stream or not self.hears_leader or state.now < self._dial_at or state.stored_promise != self.leader:
            return
        if self.writer.is_exclusive:
            return  # The log is about to change: an opening now would be out of date when its answer comes.
        self._dial_at = state.now + min(state.options.heartbeat_us << self._failures, state.options.election_timeout_us)
        self._failures = min(self._failures + 1, MAX_BACKOFF_DOUBLINGS)
        self.stream = Upstream(state.next_stream_id(), state.now)
        state.act(actions.DialStream(self.stream.stream_id, self.leader.candidate))

    def _look_at_stream(self) -> None:
        """Close a stream that was silent for three election timeouts: a leader sends on each at least once in one.

        Acknowledge what arrived even if nothing new is durable, so that the leader knows that this stream works in both
        directions while a large frame arrives slowly or the disk is slow.
        """
        stream, now, patience = self.stream, self.state.now, self.state.options.election_timeout_us
        if stream is None or stream.step in (Step.TRUNCATING, Step.FETCHING, Step.INSTALLING):
            return
        if now - stream.progress_at >= STALLED_TIMEOUTS * patience:
            self.close_stream("nothing arrived on it for three election timeouts")
        elif not stream.is_answered and now - stream.answered_at >= patience:
            self.acknowledge()

    def _current(self, stream_id: int, step: Step) -> Upstream | None:
        stream = self.stream
        return stream if stream and stream.stream_id == stream_id and stream.step is step else None

    def connected(self, stream_id: int) -> None:
        """Open the stream: say what this node's log has."""
        state, stream = self.state, self._current(stream_id, Step.DIALLING)
        if stream is None:
            return
        stream.step, stream.progress_at = Step.OPENING, state.now
        epochs = tuple(state.log.epochs)[-state.options.open_epochs :]
        stream.held_for = state.fitness.lacks_room
        end, durable = state.end_index, state.durable.index
        asked = Open(self.leader, epochs, end, durable, state.log.fetching, stream.held_for)
        state.act(actions.SendOpen(stream_id, asked))

    def open_answered(self, event: events.OpenAnswered) -> None:
        """The leader answered: resume, truncate, install or stop. Rule 9: never below commit_index."""
        state, stream, answer = self.state, self._current(event.stream_id, Step.OPENING), event.answer
        if stream is None:
            if self._current(event.stream_id, Step.MISMATCHED) and answer.verb is OpenVerb.REFUSE:
                self.close_stream(f"the leader refused: {answer.reason}")
            return
        if answer.verb is OpenVerb.LOST_DATA and answer.index <= state.durable.index:
            self.close_stream(f"the leader misses {answer.index}, and this disk holds it: {answer.reason}")
        elif answer.verb is OpenVerb.LOST_DATA:
            what_to_do = "move the whole data_dir away; the node then rejoins as a new member"
            state.halt(f"{answer.reason}: durable records are gone; {what_to_do}")
        elif answer.verb is OpenVerb.REFUSE or answer.index > state.end_index:
            if stream.held_for:  # It needs a snapshot, and has no room for one.
                self._dial_as_seldom_as_room_is_asked_for()
            self.close_stream(f"the leader refused: {answer.reason or answer}")
        elif answer.index < state.commit_index:
            state.halt(f"told to truncate to {answer.index}, below commit_index {state.commit_index}")
        elif answer.verb is OpenVerb.INSTALL:
            self._begin_install(stream, answer)
        elif answer.crc32c != state.log.crc32c_before(answer.index):
            self._report_mismatch(stream, answer)
        elif answer.verb is OpenVerb.TRUNCATE:
            stream.step = Step.TRUNCATING
            self.writer.submit(TruncateLog(stream.stream_id, answer.index))
        elif answer.index != state.end_index:
            self.close_stream("the log moved while the stream opened")
        else:
            self._match(stream, answer.index)

    def _begin_install(self, stream: Upstream, answer: OpenAnswer) -> None:
        """Rule 16: truncate what the leader's log does not have, as far as its epochs show; then fetch the snapshot.

        So the install itself lowers neither durable_index nor commit_index.
        """
        state = self.state
        if answer.snapshot_index <= max(answer.index, state.commit_index):
            self.close_stream(f"a snapshot at {answer.snapshot_index} has nothing that is not already here: {answer}")
            return
        stream.install_index = answer.snapshot_index
        if answer.index < state.end_index:
            stream.step = Step.TRUNCATING
            self.writer.submit(TruncateLog(stream.stream_id, answer.index))
        else:
            self._fetch(stream)

    def _fetch(self, stream: Upstream) -> None:
        stream.step = Step.FETCHING
        self.state.act(actions.FetchSnapshot(stream.stream_id, self.leader.candidate, stream.install_index))

    def fetched(self, event: events.SnapshotFetched) -> None:
        """Queue the install; the promise is checked again at the head of the queue (rule 2)."""
        state, stream, snapshot = self.state, self._current(event.stream_id, Step.FETCHING), event.snapshot
        if stream is None or snapshot.index != stream.install_index:
            return
        if (why := judge(self.leader.epoch, snapshot)) or highest_epoch(snapshot) > self.leader.epoch:
            state.refused[why or Refusal.OUT_OF_REACH] += 1
            self.close_stream("the snapshot names an epoch above that of its leader, or a number out of range")
            self._dial_as_seldom_as_room_is_asked_for()
            return
        stream.step = Step.INSTALLING
        self.writer.submit(InstallSnapshot(event.stream_id, snapshot))

    def fetch_failed(self, event: events.FetchFailed) -> None:
        """Open again: the leader may have another snapshot by then. If it fails again, there may be no room for one."""
        if self._current(event.stream_id, Step.FETCHING) is not None:
            self._failed_fetches += 1
            if self._failed_fetches > 1:
                self._dial_as_seldom_as_room_is_asked_for()
            self.close_stream(f"the snapshot was not fetched: {event.reason}")

    def install(self, job: InstallSnapshot) -> bool:
        """Rule 2, at the head of the queue: install only for the stream opened last, and never backwards."""
        state, stream, index = self.state, self._current(job.stream_id, Step.INSTALLING), job.snapshot.index
        if stream is None:
            return False
        if state.stored_promise != self.leader or index <= max(state.end_index, state.commit_index):
            self.close_stream(f"the log moved to {state.end_index} while the snapshot at {index} was fetched")
            return False
        state.act(actions.Install(job.stream_id, job.snapshot))
        return True

    def installed(self, stream_id: int) -> None:
        """The log begins where the snapshot ends: open again from there, at once."""
        if self._current(stream_id, Step.INSTALLING) is not None:
            self.close_stream("a snapshot was installed")
            self._dial_at, self._failures, self._failed_fetches = self.state.now, 0, 0
            self.tick()

    def refused(self, event: events.TruncateRefused | events.InstallRefused) -> None:
        """The log is unchanged: open again; after an install only as often as the disk is probed for room."""
        if isinstance(event, events.TruncateRefused):
            if self._current(event.stream_id, Step.TRUNCATING) is not None:
                self.close_stream(event.reason)
        elif self._current(event.stream_id, Step.INSTALLING) is not None:
            self._dial_as_seldom_as_room_is_asked_for()
            self.close_stream(event.reason)

    def _report_mismatch(self, stream: Upstream, answer: OpenAnswer) -> None:
        """Rule 8: equal (epoch, index) with unequal crc is never divergence.

        A frame that fails its own crc is rot. If it is this node's frame, this node alone halts. If it verifies, the
        leader checks its own: it refuses this stream if the rot is there; otherwise both halt.
        """
        state, mine = self.state, self.state.log.crc32c_before(answer.index)
        values = f"the frame before {answer.index} has crc32c {mine:#x} here and {answer.crc32c:#x} at the leader"
        if not state.log.verifies_before(answer.index):
            state.halt(f"{values}; the one here fails its own: rot")
            return
        stream.step, stream.mismatch = Step.MISMATCHED, values
        state.act(actions.SendCrcMismatch(stream.stream_id, CrcMismatch(answer.index, mine)))

    def _match(self, stream: Upstream, index: int) -> None:
        stream.step, stream.matched, stream.progress_at = Step.MATCHED, index, self.state.now
        self._failures = 0
        self._commit(stream)
        self.acknowledge()

    def truncate(self, job: TruncateLog) -> bool:
        """Rule 9, at the head of the queue: truncate only for the stream opened last, and never below commit_index."""
        stream = self._current(job.stream_id, Step.TRUNCATING)
        if stream is None:
            return False
        if job.index < self.state.commit_index:
            self.state.halt(f"truncating to {job.index}, below commit_index {self.state.commit_index}")
            return False
        self.state.act(actions.Truncate(job.stream_id, job.index))
        return True

    def truncated(self, stream_id: int, index: int) -> None:
        """The log is now a prefix of the leader's."""
        stream = self._current(stream_id, Step.TRUNCATING)
        if stream is not None and stream.install_index:
            self._fetch(stream)
        elif stream is not None:
            self._match(stream, index)

    def frames_arrived(self, event: events.FramesArrived) -> None:
        """Note the leader's positions; queue its frames, after a truncation if one is due."""
        state, stream = self.state, self.stream
        if stream is None or stream.stream_id != event.stream_id:
            return
        if stream.step not in (Step.TRUNCATING, Step.MATCHED) or stream.install_index:
            return
        self.heard()
        if event.last_epoch > self.leader.epoch:  # So whatever is in the log is below the limit of rule 18.
            state.refused[Refusal.OUT_OF_REACH] += 1
            self.close_stream(f"a frame of epoch {event.last_epoch} from the leader of epoch {self.leader.epoch}")
            return
        stream.progress_at, stream.is_answered = self.state.now, False
        stream.leader_commit = max(stream.leader_commit, event.commit_index)
        if event.raw:
            self.writer.submit(WriteFrames(event.stream_id, event.raw))
        elif stream.step is Step.MATCHED:
            self._commit(stream)

    def append(self, job: WriteFrames) -> None:
        """Append, at the head of the queue. A stream's queued frames die with it (rule 9)."""
        if self._current(job.stream_id, Step.MATCHED) is not None:
            self.state.act(actions.AppendFrames(job.stream_id, job.raw))

    def appended(self, stream_id: int) -> None:
        """The frames passed their checks (crcs, chain, index, epoch): they match."""
        stream = self._current(stream_id, Step.MATCHED)
        if stream is not None:
            stream.matched = self.state.end_index
            self._commit(stream)

    def frames_refused(self, stream_id: int, error: str) -> None:
        """The frames did not reach the file: start over on another stream.

        If they were sent although the opening reported no room, the leader does not know that reason. The next opening
        may again lead to a window of frames, so it is made only as often as the disk is probed for room.
        """
        if self.stream is not None and self.stream.stream_id == stream_id:
            if self.stream.held_for:
                self._dial_as_seldom_as_room_is_asked_for()
            self.close_stream(error)

    def _dial_as_seldom_as_room_is_asked_for(self) -> None:
        self._dial_at = self.state.now + PROBE_TIMEOUTS * self.state.options.election_timeout_us

    def _commit(self, stream: Upstream) -> None:
        # Rule 7: a follower's commit_index = min(the leader's, what this stream has matched).
        self.state.commit(min(stream.leader_commit, stream.matched))
        backlog = self.state.backlog
        if not backlog.is_known or stream.leader_commit < backlog.end_index:
            self._look_for_backlog(stream)

    def _look_for_backlog(self, stream: Upstream) -> None:
        """Rule 6: a leader serves, and knows all that was committed, once a record of its own epoch is committed."""
        epoch, first_index = self.state.log.epochs[-1]
        if epoch == self.leader.epoch and stream.leader_commit > first_index:
            self.state.backlog_ends(stream.leader_commit)

    def acknowledge(self) -> None:
        """Rule 2: the promise is checked again after the flush; rule 8: never beyond what this stream has matched."""
        state, stream = self.state, self.stream
        if stream is None or stream.step is not Step.MATCHED or state.stored_promise != self.leader:
            return
        durable = state.durable.index
        stream.answered_at, stream.is_answered = state.now, True
        state.act(actions.SendAck(stream.stream_id, min(durable, stream.matched), durable))

    def close_stream(self, reason: str) -> None:
        """Drop the stream; `tick` dials another."""
        if self.stream is not None:
            self.state.act(actions.CloseStream(self.stream.stream_id, reason))
            self.stream = None

    def stream_closed(self, stream_id: int) -> None:
        """The stream is gone. After a crc mismatch that halts this node: a leader whose frame verifies has halted, too.

        A stream that merely broke looks the same. Halting is safe, and waits for no message that may be lost.
        """
        if self.stream is not None and self.stream.stream_id == stream_id:
            if self.stream.step is Step.MISMATCHED:
                self.state.halt(
                    f"{self.stream.mismatch}; the one here verifies, and the leader found no rot in its own"
                )
            self.stream = None


def log_changed(
    state: State,
    following: Following | None,
    event: events.Truncated | events.Installed | events.TruncateRefused | events.InstallRefused,
) -> None:
    """The log was truncated or reset to a snapshot; or that was refused, and it is unchanged."""
    match event:
        case events.Installed(stream_id, index):
            state.installed(index)
            if following:
                following.installed(stream_id)
        case events.Truncated(stream_id, index):
            if following:
                following.truncated(stream_id, index)
        case events.InstallRefused() | events.TruncateRefused():
            if isinstance(event, events.InstallRefused):
                state.fitness.lacked_room(state)
            if following:
                following.refused(event)
        case _:
            assert_never(event)
