"""State shared by all rules of the core: this node's identity, its promise, what is committed, the voters' clocks (rule
5), and this step's actions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

from ..errors import ReplicationError
from .actions import Action, Alarm, AppendFrames, AppendRequests, AppendSystem, Apply, Halt, MembersChanged, RoleChanged
from .belief import Refusal
from .events import CodeKnown, Drained, LinkDown, LinkUp, Measured
from .fitness import DRAINED, REPLACE_DISK, ROTTEN, Codes, Fitness
from .members import Identity, Member, Members
from .messages import Last, Promise
from .status import Backlog, LeaderStatus, NodeRole, PreVoteStatus, Status


class NotReadableNow(ReplicationError):
    """The log cannot be read for want of a descriptor or memory. Nothing has changed, and it may succeed later."""


class RotHere(NotReadableNow):
    """The log cannot be read where its bytes are not those that were written, or cannot be read at all."""


class LogView(Protocol):
    """What the core may ask about a log. All of it is in memory, except where a docstring says that disk is read."""

    @property
    def highest_index(self) -> int:
        """Next index to be written."""
        ...

    @property
    def lowest_index(self) -> int:
        """First index held."""
        ...

    @property
    def snapshot_indices(self) -> Sequence[int]:
        """The indices of this node's complete snapshots, ascending."""
        ...

    @property
    def fetching(self) -> int:
        """The index of a partly fetched snapshot, 0 if there is none."""
        ...

    @property
    def members(self) -> Members:
        """The members in the last `genesis` or `members` record, committed or not."""
        ...

    @property
    def members_index(self) -> int | None:
        """The index of that record."""
        ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last frame, 0 if there is none."""
        ...

    @property
    def durable(self) -> Last:
        """The durable last (epoch, index)."""
        ...

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, first index) pairs, ascending."""
        ...

    def timestamp_of(self, index: int) -> int | None:
        """The timestamp of the frame that begins at `index`, read from disk; None if it has expired."""
        ...

    def bytes_from(self, index: int) -> int:
        """How many bytes of durable frames there are from this boundary on."""
        ...

    def is_boundary(self, index: int) -> bool:
        """Whether a frame of this log ends or begins at `index`. May raise NotReadableNow, as may the next two."""
        ...

    def crc32c_before(self, index: int) -> int:
        """The crc field of the frame that ends at this boundary, 0 at the log's origin. May be read from disk."""
        ...

    def verifies_before(self, index: int) -> bool:
        """Whether the frame that ends at this boundary verifies. Reads it from disk: only for a dispute (rule 8)."""
        ...


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Times in microseconds, sizes in bytes. Every queue and window of the core has its limit here."""

    heartbeat_us: int = 100_000  # Also how often a candidate repeats its pre-votes and a follower dials.
    election_timeout_us: int = 1_000_000  # Silence after which a leader is lost, and steps down (rule 11).
    commit_announce_us: int = 2_000  # How long a new commit_index waits for frames to carry it.
    window_bytes: int = 8 << 20  # In flight on one stream: shipped, not acknowledged.
    shipment_bytes: int = 1 << 20  # In one shipment (rule 8).
    frame_requests: int = 1_000  # In one frame of clients' writes; so are the next two.
    frame_records: int = 10_000  # All are decoded and answered in one go. A single write may have more.
    frame_bytes: int = 1 << 20
    waiting_requests: int = 20_000  # For the leader's writer; so are the next two. More: OVERLOADED.
    waiting_bytes: int = 64 << 20
    waiting_us: int = 2_000_000  # How long the first of them may have waited when one more comes.
    uncommitted_bytes: int = 64 << 20  # Appended by the leader above commit_index. More: writes wait.
    open_epochs: int = 10_000  # Named in one opening: the newest.
    reads_waiting: int = 10_000  # Linearizable reads that wait for an echo. More: refused.
    promotable_bytes: int = 8 << 20  # What a new voter may lack: a stream's window (rule 15).
    auto_replace_us: int = 0  # How long a lost disk keeps its vote if its node is back without it; 0: for good.
    features: frozenset[str] = frozenset()  # What this program offers.


class Reading(NamedTuple):
    """A voter's wall clock as it reported it, and when that arrived here by this node's monotonic clock, in us."""

    clock: int
    heard_at: int


class VoterClocks:
    """Rule 5, time: what this node knows about the voters' clocks, and the latest time that a majority has reached.

    A leader stamps its frames with that time, never with its own clock alone: the log's time never goes back, so one
    clock that is ahead would freeze it for all later leaders.

    A reading is noted when the answer with the clock arrives: the clock had reached it by then, however long the answer
    took. It is advanced by the time that has passed here since. A reading older than an election timeout no longer
    counts, and a voter without one counts as if its clock were at 0. So a leader that does not know the clocks of a
    majority does not move the log's time; a lone voter is a majority. This node's own clock needs no reading.
    """

    def __init__(self, me: Identity, patience_us: int) -> None:
        """A reading counts for `patience_us`, an election timeout."""
        self._me = (me.node_id, me.disk_id)
        self._patience_us = patience_us
        self._readings: dict[tuple[str, bytes], Reading] = {}

    def heard(self, node_id: str, disk_id: bytes, clock: int, now: int) -> None:
        """Note the clock that a voter reported. 0 means none: a node of an earlier version reports none in an echo."""
        if clock > 0:
            self._readings[(node_id, disk_id)] = Reading(clock, now)

    def keep(self, members: Members) -> None:
        """Forget disks that are not voters."""
        self._readings = {disk: reading for disk, reading in self._readings.items() if members.is_voter(*disk)}

    def age_us(self, node_id: str, disk_id: bytes, now: int) -> int | None:
        """How old the reading of a disk's clock is; None without one."""
        reading = self._readings.get((node_id, disk_id))
        return None if reading is None else now - reading.heard_at

    def time(self, members: Members, now: int, own: int) -> int:
        """The latest time that a majority of the voters' clocks has reached, 0 if too few are known.

        `own` is this node's clock.
        """
        return members.held_by_majority(self._known(now, own))

    def offsets_us(self, members: Members, now: int, own: int) -> Mapping[str, int]:
        """How far each known voter's clock is ahead of that time, negative if behind; empty without such a time."""
        time, known = self.time(members, now, own), self._known(now, own)
        ids = {voter.node_id: (voter.node_id, voter.disk_id) for voter in members.voters()}
        return {node: known[disk] - time for node, disk in ids.items() if disk in known} if time else {}

    def _known(self, now: int, own: int) -> dict[tuple[str, bytes], int]:
        oldest = now - self._patience_us
        # What each clock shows now, if it kept running at an even rate.
        known = {disk: clock + now - at for disk, (clock, at) in self._readings.items() if at >= oldest}
        known[self._me] = own
        return known


def beat_after(now: int, interval: int) -> int:
    """When the next heartbeat is due: at a multiple of the interval, so that a node's timers wake it together.

    A tick may come a little before its time; what is nearer than an eighth of the interval is past.
    """
    return (now + interval // 8) // interval * interval + interval - interval // 8


@dataclass(slots=True)
class State:
    """Shared by the rules; changed only while an event is handled.

    `promise` counts for every check from the moment it is sent to disk (rule 2); `stored_promise` is on disk. They
    differ only during a `StorePromise`, and after a start with a log that has frames of a later epoch. `members` are
    those in the log (rule 15), read at the beginning of each step. `links` are the peers that this node has dialled and
    reached, each with the disk in its hello; `offers` are the features that they offered, `codes` what code their
    machines run. `features` are those in use
    at `applied_index`, as of the last `Measured`. `end_index` (the log's highest_index) and `durable` are those of the
    log when it was last looked at, which is whenever it may have changed. `away` is the total time for which this
    process was paused; `awake` is the time without it, for measures that a pause must not affect, such as the speed of
    the disk. `reported_apply` and `reported_role` keep reports from being repeated. `refused` counts rejected
    implausible messages, and `alarms` has sentences by subject, until a restart (rules 18 and 19).
    """

    me: Identity
    log: LogView
    options: CoreOptions
    promise: Promise
    stored_promise: Promise
    commit_index: int
    now: int = 0
    clock: int = 0
    away: int = 0
    awake: int = 0
    end_index: int = field(init=False)
    durable: Last = field(init=False)
    fitness: Fitness = field(init=False)
    members: Members = field(init=False)
    clocks: VoterClocks = field(init=False)
    links: dict[str, bytes] = field(default_factory=dict)
    offers: dict[str, frozenset[str]] = field(default_factory=dict)
    codes: Codes = field(default_factory=Codes)
    features: frozenset[str] = frozenset()
    applied_index: int = 0
    actions: list[Action] = field(default_factory=list)
    halted: str | None = None
    last_stream_id: int = 0
    reported_apply: int = 0
    reported_role: RoleChanged | None = None
    refused: Counter[Refusal] = field(default_factory=Counter)
    alarms: dict[str, str] = field(default_factory=dict)
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.commit_index, is_known=False)
        self.members = self.log.members
        self.look_at_log()
        self.clocks = VoterClocks(self.me, self.options.election_timeout_us)
        self.fitness = Fitness(self.options.election_timeout_us)

    @property
    def disk(self) -> tuple[str, bytes]:
        """This node and its disk."""
        return self.me[:2]

    def is_me(self, member: Member) -> bool:
        """Whether a member is this node, on this disk."""
        return (member.node_id, member.disk_id) == (self.me.node_id, self.me.disk_id)

    def is_linked(self, member: Member) -> bool:
        """Whether messages to a member can arrive, at its own disk."""
        return self.links.get(member.node_id) == member.disk_id

    def begin_step(self, now: int, clock: int) -> None:
        """Take the time. Ticks come every half heartbeat: between two steps far apart this process was paused."""
        ran = self.options.election_timeout_us // 2  # At most; a disk that hangs is not to be hidden by many pauses.
        if now - self.now > ran:
            self.away += now - self.now - ran
        self.now, self.clock, self.awake = now, clock, now - self.away

    def look_at_log(self) -> bool:
        """Take the log's ends and members, as they are now; return whether the members changed.

        Rule 15: a members record counts from when it is appended, and is undone when it is truncated.
        """
        log = self.log
        self.end_index, self.durable = log.highest_index, log.durable
        if (members := log.members) is self.members:
            return False
        self.members = members
        self.clocks.keep(members)
        self.act(MembersChanged(members))
        return True

    @property
    def is_voter(self) -> bool:
        """Whether this node counts and answers votes."""
        return self.members.is_voter(self.me.node_id, self.me.disk_id)

    @property
    def is_new(self) -> bool:
        """Whether this disk has promised nothing and its vote does not count: it may join a cluster of any epoch."""
        return not self.promise.epoch and not self.is_voter

    def heard_clock(self, node_id: str, disk_id: bytes, clock: int) -> None:
        """Note the wall clock that another node reported in an answer."""
        self.clocks.heard(node_id, disk_id, clock, self.now)

    @property
    def majority_clock(self) -> int:
        """Rule 5: the latest time that a majority of the voters' clocks has reached, 0 if too few are known."""
        return self.clocks.time(self.members, self.now, self.clock)

    @property
    def appends(self) -> bool:
        """Whether this step requests an append, whose result is a step of its own."""
        return any(isinstance(action, AppendRequests | AppendSystem | AppendFrames) for action in self.actions)

    def status(
        self,
        *,
        role: NodeRole,
        leader_id: str | None,
        leader: LeaderStatus | None,
        following: Promise | None,
        is_matched: bool,
        pre_votes: Mapping[str, PreVoteStatus],
        disk_answers: bool,
    ) -> Status:
        """A copy for others, completed by what the core's parts know."""
        return Status(
            me=self.me,
            role=role,
            promise=self.promise,
            commit_index=self.commit_index,
            leader_id=leader_id,
            leader=leader,
            following=following,
            is_matched=is_matched,
            members=self.members,
            members_index=self.log.members_index,
            links=dict(self.links),
            pre_votes=pre_votes,
            disk_answers=disk_answers,
            fitness=self.fitness.status(),
            backlog=self.backlog,
            may_snapshot=self.codes.may_be_kept,
            refused={str(why): self.refused[why] for why in Refusal},
            alarms=dict(self.alarms),
            halted=self.halted,
        )

    def act(self, action: Action) -> None:
        """Request an action from the driver, after earlier ones."""
        self.actions.append(action)

    def halt(self, reason: str) -> None:
        """Stop permanently: a broken rule is never worked around."""
        if self.halted is None:
            self.halted = reason
            self.act(Halt(reason))

    def alarm(self, subject: str, text: str) -> None:
        """Raise a lasting alarm. Only the first one on a subject is kept, so that no peer can fill the journal."""
        if subject not in self.alarms:
            self.alarms[subject] = text
            self.act(Alarm(text))

    def next_stream_id(self) -> int:
        """A number that no stream of this process has had; 0 means no stream."""
        self.last_stream_id += 1
        return self.last_stream_id

    def commit(self, index: int) -> None:
        """Raise commit_index; it never falls."""
        self.commit_index = max(self.commit_index, index)

    def measured(self, event: Measured) -> None:
        """Take what the driver measured, to be judged at the next tick; and judge this node's code again."""
        self.judge_code()
        if event.rot:
            self.alarm("rot", f"{ROTTEN}: {event.rot}; {REPLACE_DISK}")
            self.fitness.set_aside(self, ROTTEN, holds=True)
        self.fitness.measured(self, event, to_apply=self.reported_apply, backlog_end=self.backlog.end_index)
        self.applied_index, self.features = event.applied_index, event.features

    def told(self, event: Drained | CodeKnown) -> None:
        """Take what the node above says: whether it is drained, and which code its machine runs."""
        match event:
            case Drained(drained):
                self.fitness.set_aside(self, DRAINED, holds=drained)
            case CodeKnown(own, accepted):
                self.codes.known(own, accepted)
                self.judge_code()
            case _:
                assert_never(event)

    def link_up(self, event: LinkUp) -> None:
        """The link to a peer is up; its hello told these facts about it."""
        self.links[event.node_id] = event.disk_id
        self.offers[event.node_id] = event.features
        self.codes.linked(event.node_id, event.code)
        self.judge_code()

    def link_down(self, event: LinkDown) -> None:
        """The link to a peer is down."""
        self.links.pop(event.node_id, None)
        self.offers.pop(event.node_id, None)
        self.codes.unlinked(event.node_id, self.awake)

    def judge_code(self) -> None:
        """Compare this node's code with that of the voters that are heard."""
        patience = self.options.election_timeout_us
        other_code = self.codes.judge(self.members, self.is_me, self.is_linked, self.awake, patience)
        self.fitness.code_judged(self, other_code, is_majority=self.codes.is_majority)

    def backlog_ends(self, index: int) -> None:
        """A serving leader has this commit_index: everything that was committed before is below it.

        The first report after a start or an install counts: later commits are not backlog. A lower report shows that
        the first one was false.
        """
        if not self.backlog.is_known:
            self.backlog = Backlog(max(self.backlog.end_index, index), is_known=True)
        elif index < self.backlog.end_index:
            self.backlog = Backlog(index, is_known=True)

    def installed(self, index: int) -> None:
        """A snapshot was installed. It may be old: the next stream shows what was committed after it."""
        self.commit(index)  # It holds committed records only (rule 7).
        self.backlog = Backlog(max(self.backlog.end_index, index), is_known=False)

    def report_apply(self) -> None:
        """Rule 7: a node applies only below min(commit_index, durable_index)."""
        to_index = min(self.commit_index, self.durable.index)
        if to_index > self.reported_apply:
            self.reported_apply = to_index
            self.act(Apply(to_index))

    def report_role(self, role: NodeRole, epoch: int, leader_id: str | None, serving: bool, reason: str) -> None:
        """Report role, epoch, leader and serving to the node above, if one of them changed."""
        last = self.reported_role
        if (
            last is None
            or last.epoch != epoch
            or last.serving != serving
            or last.leader_id != leader_id
            or last.role != role
        ):
            self.reported_role = RoleChanged(role, epoch, leader_id, serving, reason)
            self.act(self.reported_role)
