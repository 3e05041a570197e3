"""Rule 2, one writer: everything that changes this node's disk passes through one queue.

    job              at the head of the queue it              waits for
    HandleVote       decides on a promise and stores it       flush, promise, truncation, install
    FollowLeader     follows an elected leader, and           flush, promise, truncation, install
                     stores that promise
    ReachOut         stores a promise of a higher epoch to    flush, promise, truncation, install
                     nobody
    TruncateLog      truncates                                flush, promise, truncation, install
    InstallSnapshot  installs a snapshot that was fetched     flush, promise, truncation, install
    WriteFrames      appends a stream's frames                promise, truncation, install
    (none)           a leader appends clients' writes,        everything (`may_append`)
                     all that wait as one frame
    (none)           a flush, or the removal of one expired   everything
                     segment: in turns while both are due

A promise is decided at the head, while no flush runs. So the comparison of rule 5 sees everything that is durable, and
no flush that began under an older promise ends after it. Frames in the file that no flush has covered are covered by
the next one, under the new promise; by then no object is left that would count or acknowledge them. A truncation waits
for the flush, so no flush spans one. The removal of a segment counts as a flush: all but appends waits for it, so no
log is truncated or reset while a segment's files are removed, and nothing waits for more than one segment. An
`epoch_start` needs no job: a leader appends it when its majority is complete, while only a flush or such a removal can
be running.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from .messages import Promise, Snapshot, VoteRequest


@dataclass(frozen=True, slots=True)
class HandleVote:
    """A candidate asks for a promise. The answer goes to `node_id`; it is this node's own id in its own campaign."""

    node_id: str
    request: VoteRequest


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """An elected leader was heard."""

    promise: Promise

    @property
    def node_id(self) -> str:
        """The leader's."""
        return self.promise.candidate


@dataclass(frozen=True, slots=True)
class ReachOut:
    """A node sent an epoch that is out of reach (rule 18)."""

    node_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """The answer to an opening was TRUNCATE."""

    stream_id: int
    index: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """A snapshot was fetched for a stream."""

    stream_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class WriteFrames:
    """A stream delivered frames."""

    stream_id: int
    raw: bytes


Job = HandleVote | FollowLeader | ReachOut | TruncateLog | InstallSnapshot | WriteFrames


class Disk(Enum):
    """What the disk is doing."""

    FREE = auto()
    FLUSHING = auto()
    EXPIRING = auto()
    EXCLUSIVE = auto()


class Writer:
    """The queue, and what the disk is doing. It decides when a job runs; the rules decide whether."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.disk = Disk.FREE
        self._busy_since = 0
        self.unflushed = False
        """Whether something is in the file that no flush has covered."""
        self.expiry_is_due = False
        self._expired_last = False

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.jobs.append(job)

    def has_job(self, kind: type[HandleVote | FollowLeader | ReachOut], node_id: str = "") -> bool:
        """Whether such a job is queued, for one node if given. This bounds the queue."""
        return any(isinstance(job, kind) and node_id in ("", job.node_id) for job in self.jobs)

    def take(self) -> Job | None:
        """Remove and return the next job if it may begin now."""
        if not self.jobs or self.disk is Disk.EXCLUSIVE:
            return None
        if self.disk is not Disk.FREE and not isinstance(self.jobs[0], WriteFrames):
            return None
        return self.jobs.popleft()

    def begin_exclusive(self, now: int) -> None:
        """A promise, truncation or install goes to disk: nothing else begins until `end_exclusive`."""
        self.disk, self._busy_since = Disk.EXCLUSIVE, now

    def end_exclusive(self) -> None:
        """The promise, truncation or install is done."""
        self.disk = Disk.FREE

    @property
    def is_exclusive(self) -> bool:
        """Whether a promise, truncation or install is on its way to disk."""
        return self.disk is Disk.EXCLUSIVE

    def appended(self) -> None:
        """Something is in the file: a flush is due."""
        self.unflushed = True

    def take_flush(self, now: int) -> bool:
        """Whether a flush begins now. It covers everything appended before this call, and nothing later."""
        if not self.unflushed or self.disk is not Disk.FREE:
            return False
        self.unflushed = self._expired_last = False
        self.disk, self._busy_since = Disk.FLUSHING, now
        return True

    def end_flush(self) -> None:
        """The flush is done."""
        self.disk = Disk.FREE

    def expiry_due(self) -> None:
        """Segments may be removed."""
        self.expiry_is_due = True

    def may_expire(self) -> bool:
        """Whether the removal of a segment may begin. After another one, a flush that is due goes first."""
        return self.expiry_is_due and self.disk is Disk.FREE and not (self._expired_last and self.unflushed)

    def begin_expiry(self, now: int) -> None:
        """The removal of a segment begins."""
        self._expired_last = True
        self.disk, self._busy_since = Disk.EXPIRING, now

    def end_expiry(self, *, is_over: bool) -> None:
        """The removal is done; `is_over`: there was nothing to remove."""
        self.disk = Disk.FREE
        self.expiry_is_due = not is_over

    def answered(self, now: int) -> None:
        """The disk starts the next part of its operation, so it does not hang."""
        self._busy_since = now

    def hangs(self, now: int, patience: int) -> bool:
        """Whether the disk has been busy with one operation for longer than `patience` (rule 11: a hung flush)."""
        return self.disk is not Disk.FREE and now - self._busy_since > patience

    @property
    def may_append(self) -> bool:
        """Whether a leader may append waiting writes: nothing is queued and the disk is free."""
        return not self.jobs and self.disk is Disk.FREE

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is queued, running or due."""
        return self.may_append and not self.unflushed
