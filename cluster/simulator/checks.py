"""The rules of `docs/protocol.md`, checked after every step from what nodes do and what their disks hold.

The checks do not trust what a core reports. Frames are compared by their crc32c, which covers the crc32c of the
previous frame, so two logs with the same crc32c at the same frame are equal up to that frame.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.log import Frame
from quire.replication.core import Promise, events
from quire.replication.core.messages import Ack, Heartbeat, HeartbeatEcho, PeerMessage, VoteAnswer
from quire.sm import Applied, Manifest

from .clock import Reached
from .form import Form
from .machine import Model
from .observed import ObservedNode
from .shadow import Held, HeldMark, HeldPromise, Named, mark_in, marks_in, promise_in


class Violation(Exception):
    """A rule is broken: the rule in words, and the values that break it. `rule` does not depend on the values."""

    def __init__(self, rule: str, *values: object) -> None:
        super().__init__(f"{rule}: {', '.join(map(str, values))}")
        self.rule = rule


def _fell(before: HeldMark, after: HeldMark, snapshot_index: int) -> bool:
    """Whether a mark went down. A log that was reset after a snapshot has a mark without the snapshot's records."""
    known = max(after.commit_index, snapshot_index)
    return after.generation < before.generation or known < before.commit_index


class Election(NamedTuple):
    """The leader of an epoch, and the crcs of its log's frames when it was elected."""

    node_id: str
    incarnation: int
    crcs: list[int]


@dataclass
class Counts:
    """What happened in a history, counted."""

    steps: int = 0
    crashes: int = 0
    cuts: int = 0
    operations: int = 0
    elections: int = 0
    leader_changes: int = 0
    truncations: int = 0
    lost_tails: int = 0
    snapshots: int = 0
    expiries: int = 0
    installs: int = 0
    changes: int = 0
    removals: int = 0
    recoveries: int = 0
    restores: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    cursor_rows: Counter[str] = field(default_factory=Counter)
    """The answered rows of cursors, by the code of their refusal; "": they were done."""


@dataclass
class Seen:
    """What was last seen of one disk. Survives the node's process."""

    durable_index: int = 0
    durable_crc: int = 0
    tail: int = 0
    frames: list[Held] = field(default_factory=list)  # Those on it when its node died.
    told_commit_index: int = 0
    commit_index: int = 0
    commit_place: int = -1
    promise: HeldPromise = field(default_factory=lambda: HeldPromise(0, "", 0))
    mark: HeldMark | None = None
    synced_promise: HeldPromise = field(default_factory=lambda: HeldPromise(0, "", 0))
    synced_mark: HeldMark | None = None
    answered_epoch: int = 0
    promised_epoch: int = 0
    """The epoch of the promise that an earlier step queued to disk."""
    has_truncated: bool = False
    """Whether a truncation is complete, and no other has begun since."""
    applied_place: int = -1
    snapshot_index: int = 0
    """The index of the newest complete snapshot."""
    leading: Promise | None = None
    runs: bool = False
    operations: int = -1


class Checks:
    """Checks one history: the nodes call it as they act."""

    def __init__(self, nodes: Iterable[ObservedNode], form: Form, trace: list[str], model: Model) -> None:
        self.nodes = list(nodes)
        self._form = form
        self.counts = Counts()
        self.model = model
        self.committed: list[Held] = []
        self.ends: list[int] = []
        self.epochs: list[int] = []
        """For each committed frame, the epoch of the leader that committed it."""
        self.elections: dict[int, Election] = {}
        self.frames: dict[tuple[int, int], int] = {}
        self.digests: list[bytes] = []
        self.snapshots: dict[int, bytes] = {}
        """The sha256 of a snapshot by its index."""
        self.seen: dict[bytes, Seen] = {}
        self.forged: set[tuple[int, str, int]] = set()  # Promises of a stranger that claimed to lead.
        self.is_lied_to = False
        self._lost: dict[bytes, list[Held]] = {}
        self._changes: set[int] = {named.crc32c for named in form.named.values()}
        """The records of members that were checked."""
        self._reached = Reached()
        self._trace = trace

    def of(self, node: ObservedNode) -> Seen:
        """What was last seen of a node's present disk."""
        seen = self.seen.get(node.disk_id)
        if seen is None:
            seen = self.seen[node.disk_id] = Seen()
        return seen

    # Life and death

    def started(self, node: ObservedNode) -> None:
        """Check a node that recovered: it has what was durable, and the promise that it gave."""
        seen, shadow, log = self.of(node), node.shadow, node.running.log
        shadow.read_all()
        shadow.truncated = None
        if shadow.end != log.tail.index or log.durable_index != shadow.end:
            raise Violation("a recovered log is what its files hold, and durable", node.node_id, shadow.end, log.tail)
        place = shadow.place_of_end(seen.durable_index)
        if place is None or (place >= 0 and shadow.frames[place].crc32c != seen.durable_crc):
            raise Violation("what was durable survives", node.node_id, seen.durable_index, shadow.frames[-3:])
        came_back = shadow.frames[max(len(seen.frames), shadow.base_place) :] or [
            a for a, b in zip(shadow.frames, seen.frames, strict=False) if a != b
        ]
        if seen.has_truncated and came_back:
            raise Violation("what was truncated does not come back", node.node_id, came_back[0], seen.frames[-1:])
        seen.has_truncated = False
        if shadow.end < seen.tail:
            self.counts.lost_tails += 1
        self._survived(node, seen)
        promise = self._promise_on_disk(node)
        if promise.epoch < seen.answered_epoch:
            raise Violation("rule 1: an answered promise survives", node.node_id, promise, seen.answered_epoch)
        committed = log.mark_commit_index
        if committed > (self.ends[-1] if self.ends else 0):
            raise Violation("the mark's commit_index is committed", node.node_id, committed, self.ends[-1:])
        known = max(committed, self._snapshot_on(node))
        if seen.synced_mark is not None and known < seen.synced_mark.commit_index:
            raise Violation("a recovered log knows its synced mark", node.node_id, committed, seen.synced_mark)
        seen.promise, seen.promised_epoch = promise, promise.epoch
        seen.mark = mark_in(node.disk.content("mark"))
        seen.told_commit_index = seen.commit_index = 0
        seen.commit_place, seen.applied_place, seen.leading = -1, -1, None
        seen.runs = True
        self._note_frames(node, 0)
        self._durable(node, seen)
        self.commits(node)
        self._restored(node, seen)

    def _restored(self, node: ObservedNode, seen: Seen) -> None:
        """Check that a node continues from a complete snapshot of committed records."""
        process = node.running
        if process.snapshots.damaged:
            raise Violation("a snapshot that counts is whole", node.node_id, *process.snapshots.damaged)
        for manifest in process.snapshots.manifests:
            self.snapshot_taken(node, manifest)
        kept = [manifest.index for manifest in process.snapshots.manifests]
        if seen.snapshot_index > max(kept, default=0):
            raise Violation("a snapshot that counted is durable", node.node_id, seen.snapshot_index, kept)
        if (applied := process.machine.applier.applied_index) != max(kept, default=0):
            raise Violation("a restart begins at the newest snapshot", node.node_id, applied, kept)
        place = self.committed_place(applied)
        seen.applied_place = -1 if place is None else place
        self._continues(node, applied)

    def _continues(self, node: ObservedNode, index: int) -> None:
        """Check that what a node continues with is the state at `index`, and the cursors."""
        applier, model, cursors = node.running.machine.applier, self.model, node.running.machine.applier.cursors.all()
        if (state := model.states.get(index)) != applier.state():
            raise Violation("a snapshot holds the state of its index", node.node_id, applier.state(), state)
        if (known := model.cursors.sorted_at(index)) != cursors:
            raise Violation("a snapshot holds the cursors of its index", node.node_id, cursors, known)

    def snapshot_taken(self, node: ObservedNode, manifest: Manifest) -> None:
        """Rules 7 and 16: a snapshot is of committed, durable records, at a frame boundary, and equal on all nodes."""
        tail, boundary = manifest.boundary.tail, manifest.boundary
        place = self.committed_place(tail.index)
        if place is None or place >= len(self.digests):
            raise Violation("rule 7: a snapshot holds what is committed", node.node_id, tail, self.ends[-1:])
        if node.running.log.durable_index < tail.index:
            raise Violation("rule 7: a snapshot holds what is durable here", node.node_id, tail)
        held = self.committed[place]
        if (held.epoch, held.crc32c, self.digests[place]) != (tail.epoch, tail.crc32c, boundary.digest):
            raise Violation("a snapshot's manifest is of its index", node.node_id, tail, held)
        if self.snapshots.setdefault(tail.index, manifest.sha256) != manifest.sha256:
            raise Violation("snapshots of one index are equal", node.node_id, tail)
        seen = self.of(node)
        if seen.snapshot_index < tail.index:
            seen.snapshot_index = tail.index
            self.counts.snapshots += 1

    def _snapshot_on(self, node: ObservedNode) -> int:
        """The index of the newest snapshot on a node's disk; 0 if there is none."""
        names = node.disk.names("snapshots") if "snapshots" in node.disk.names() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    def below(self, node: ObservedNode, first: int, crc: int) -> list[Held]:
        """Rule 16: a log that begins at `first` begins after committed frames, and a snapshot has what is below."""
        place = self.committed_place(first)
        if place is None or self.committed[place].crc32c != crc:
            raise Violation("rule 16: a log begins after committed frames", node.node_id, first, hex(crc))
        if self._snapshot_on(node) < first:
            raise Violation("rule 16: a snapshot holds what is below the log", node.node_id, first)
        return self.committed[: place + 1]

    def needed(self, node: ObservedNode) -> int:
        """Rule 16: where a node's log must begin at the latest, for its installs and, up to a limit, its streams."""
        process, most = node.running, self._form.retention_follower_bytes
        leader, end = process.core.status().leader, process.log.durable_index
        if leader is None:
            return end
        shipped = [stream.next_index for stream in leader.streams]
        kept = [at for at in shipped if at >= end or process.log.lookup.bytes_between(at, end) <= most]
        return min([end, *kept, *(install.snapshot_index for install in leader.installs)])

    def expired(self, node: ObservedNode, before: int, needed: int) -> None:
        """Rule 16: only what is below the older of two snapshots, and below what streams and installs need, expires."""
        self.looked(node)
        lowest, process = node.running.log.bounds.lowest_index, node.running
        if lowest == before:
            return
        self.counts.expiries += 1
        kept = process.snapshots.indices
        if len(kept) < 2 or lowest > kept[-2]:
            raise Violation("rule 16: below the older of two snapshots", node.node_id, lowest, kept)
        if lowest > needed:
            raise Violation("rule 16: below what streams and installs need", node.node_id, lowest, needed)

    def installed(self, node: ObservedNode, index: int) -> None:
        """Rules 2 and 16: an install needs its leader's promise, and lowers neither durable_index nor commit_index."""
        seen, core = self.of(node), node.running.core
        self.counts.installs += 1
        following = core.status().following
        if following is None or following.epoch != seen.promised_epoch:
            raise Violation("rule 2: an install under its leader's promise alone", node.node_id, index)
        if index < seen.durable_index or index < seen.told_commit_index:
            raise Violation("rule 16: an install lowers nothing", node.node_id, index, seen.durable_index)
        self.looked(node)
        place = self.committed_place(index)
        if place is None:
            raise Violation("rule 7: a snapshot holds what is committed", node.node_id, index)
        seen.applied_place = place
        self._continues(node, index)

    def committed_place(self, index: int) -> int | None:
        """The number of the committed frame that ends at `index`: -1 for 0, None if there is none."""
        if index == 0:
            return -1
        place = bisect_left(self.ends, index)
        return place if place < len(self.ends) and self.ends[place] == index else None

    def died(self, node: ObservedNode) -> None:
        """Note the end of a node's process."""
        seen = self.of(node)
        self.looked(node)
        seen.tail, seen.frames, seen.runs = node.shadow.end, list(node.shadow.frames), False
        self._survived(node, seen)

    # After a step

    def stepped(self, node: ObservedNode, event: events.Event | events.AppendResult) -> None:
        """Check a node after a step of its core: an event, or the result of an append."""
        self.counts.steps += 1
        process, seen = node.running, self.of(node)
        core = process.core
        self._trace.append(
            f"{node.clocks.schedule.now} {node.node_id} {type(event).__name__} {core.promise.epoch} "
            f"{process.log.tail.index} {core.commit_index}"
        )
        self.looked(node)
        leading = core.leading_promise
        if leading != seen.leading:
            seen.leading = leading
            if leading is not None:
                self._leads(node, leading.epoch, leading.incarnation)
        if process.log.durable_index != seen.durable_index:
            self._durable(node, seen)
        self.commits(node)
        self._stamped(node, event)
        if isinstance(event, events.Truncated):
            seen.has_truncated = True
        seen.promised_epoch = core.promise.epoch

    def _stamped(self, node: ObservedNode, event: events.Event | events.AppendResult) -> None:
        """Rule 5: what a leader appends has the time of a majority's clocks, known to within an election timeout."""
        process, reached = node.running, self._reached
        reached.note(node.node_id, node.clocks.clock())
        if isinstance(event, events.AppendResult) and not event.stream_id and event.is_made:
            before = node.shadow.members_below(process.log.tail.index - 1)  # The append may have changed them.
            reached.time(node_id for node_id, _ in before.voters)
            time = reached.time(voter.node_id for voter in process.core.members.voters())
            if process.log.tail.timestamp > time + self._form.core.election_timeout_us:
                raise Violation("rule 5: a timestamp is a majority's time", node.node_id, process.log.tail, time)

    def commits(self, node: ObservedNode) -> None:
        """Check a node's commit_index, as far as its files reach."""
        seen, process = self.of(node), node.running
        commit_index = process.core.commit_index
        if commit_index < seen.told_commit_index:
            raise Violation("commit_index never falls", node.node_id, seen.told_commit_index, commit_index)
        seen.told_commit_index = commit_index
        if min(commit_index, node.shadow.end) != seen.commit_index:
            self.looked(node)
            if process.log.durable_index != seen.durable_index:
                self._durable(node, seen)
            self._commit(node, seen)

    def looked(self, node: ObservedNode) -> None:
        """Check a node's disk, if it changed."""
        seen, shadow, disk = self.of(node), node.shadow, node.disk
        if disk.operations == seen.operations:
            return
        seen.operations = disk.operations
        written = {name for operation, name in disk.journal if operation == "write" and name in ("mark", "promise")}
        before = len(shadow.frames)
        if shadow.look() and seen.runs:
            if shadow.truncated is not None:
                before = min(before, shadow.truncated[0])
                self._truncated(node, seen, *shadow.truncated)
                shadow.truncated = None
            self._note_frames(node, before)
        if "mark" in written:
            self._mark(node, seen)
        if "promise" in written:
            self._promise(node, seen)

    def _note_frames(self, node: ObservedNode, place: int) -> None:
        """Raft 5.3, Log Matching: one leader an epoch writes one frame at an index, after one and the same log."""
        for held in node.shadow.frames[place:]:
            known = self.frames.setdefault((held.first, held.epoch), held.crc32c)
            if known != held.crc32c:
                raise Violation("equal (index, epoch), equal frames", node.node_id, held, hex(known))
            if held.crc32c in node.shadow.named and held.crc32c not in self._changes:
                self._changes.add(held.crc32c)
                self.members_changed(node, node.shadow.named[held.crc32c])

    def members_changed(self, node: ObservedNode, named: Named) -> None:
        """Rule 15, where a record of members stands for the first time: on the leader that appends it."""
        before = node.shadow.members_below(named.first)
        if len(before.voters ^ named.voters) > 1:
            raise Violation("rule 15: one voter changes at a time", node.node_id, before, named)
        place = self.committed_place(before.end)
        if place is None or self.committed[place].crc32c != before.crc32c:
            raise Violation("rule 15: the previous change is committed", node.node_id, before, named)
        if named.epoch not in self.epochs:
            raise Violation("rule 15: after epoch_start is committed", node.node_id, named)

    def _truncated(self, node: ObservedNode, seen: Seen, place: int, held: Held) -> None:
        """Rule 9: what is truncated was never committed."""
        seen.has_truncated = False
        self.counts.truncations += 1
        is_committed = place < len(self.committed) and held == self.committed[place]
        if is_committed and held.end > self._snapshot_on(node):
            raise Violation("rule 9: a committed frame was truncated", node.node_id, held)
        if seen.durable_index > node.shadow.end or node.running.log.durable_index < seen.durable_index:
            seen.durable_index = node.running.log.durable_index
            seen.durable_crc = self._crc_before(node, seen.durable_index)

    def _crc_before(self, node: ObservedNode, index: int) -> int:
        place = node.shadow.place_of_end(index)
        if place is None and index <= self._snapshot_on(node):
            # It died while its log was reset after a snapshot, which holds the records below.
            place = self.committed_place(index)
            return self.committed[place].crc32c if place is not None and place >= 0 else 0
        if place is None:
            raise Violation("indices are frame boundaries", node.node_id, index, node.shadow.ends[-3:])
        return node.shadow.frames[place].crc32c if place >= 0 else 0

    def _durable(self, node: ObservedNode, seen: Seen) -> None:
        """Every record below durable_index survives a power loss on this node."""
        durable = node.running.log.durable_index
        if (lost := node.shadow.unsynced_below(durable)) is not None:
            raise Violation("durable_index is durable", node.node_id, durable, lost)
        seen.durable_index, seen.durable_crc = durable, self._crc_before(node, durable)

    # Promises and marks

    def _promise_on_disk(self, node: ObservedNode) -> HeldPromise:
        """The promise that would remain after a power loss that takes everything unsynced."""
        promise = promise_in(node.disk.durable_content("promise"))
        if promise is None:
            raise Violation("rule 1: a slot of the promise is always valid", node.node_id)
        return promise

    def _promise(self, node: ObservedNode, seen: Seen) -> None:
        """Rule 1: a new promise is for a higher epoch, or for the elected leader of the same epoch."""
        promise = promise_in(node.disk.content("promise"))
        self._survived(node, seen)
        if not seen.runs:
            return  # A start failed, perhaps after a power loss: what was not synced may be lost.
        if promise is None or promise.epoch < seen.promise.epoch:
            raise Violation("rule 1: a promise never falls", node.node_id, seen.promise, promise)
        if promise.epoch == seen.promise.epoch and promise != seen.promise:
            leader = self.elections.get(promise.epoch)
            is_true = leader is not None and (leader.node_id, leader.incarnation) == promise[1:]
            is_free = tuple(promise) in self.forged and node.shadow.frames[-1].epoch < promise.epoch  # Rule 19.
            if not is_true and not is_free:
                raise Violation(
                    "rule 1: one candidate an epoch, but for its leader", node.node_id, seen.promise, promise
                )
        seen.promise = promise

    def _mark(self, node: ObservedNode, seen: Seen) -> None:
        """The mark (`log/DESIGN.md`): commit_index is at most durable_index; generation and commit_index only grow."""
        marks = marks_in(node.disk.content("mark"))
        mark = max(marks, key=lambda one: one.generation, default=None)
        if mark is None:
            raise Violation("a slot of the mark is always valid", node.node_id)
        synced = mark_in(node.disk.durable_content("mark"))
        # A failed sync may have written a newer one.
        if synced is not None and synced not in marks and not node.condition.disk_failing:
            raise Violation("the last synced mark is not written over", node.node_id, synced, marks)
        if mark.commit_index > mark.durable_index:
            raise Violation("the mark's commit_index is at most its durable_index", node.node_id, mark)
        if node.process is not None and not mark.discards and mark.durable_index > node.process.log.durable_index:
            raise Violation("the mark is a lower bound", node.node_id, mark, node.process.log.durable_index)
        if seen.runs and seen.mark is not None and _fell(seen.mark, mark, self._snapshot_on(node)):
            raise Violation("a mark never falls while its node runs", node.node_id, seen.mark, mark)
        seen.mark = mark
        self._survived(node, seen)

    def _survived(self, node: ObservedNode, seen: Seen) -> None:
        """What a power loss would leave of promise and mark never falls; what was not synced may be lost."""
        promise, mark = self._promise_on_disk(node), mark_in(node.disk.durable_content("mark"))
        if promise.epoch < seen.synced_promise.epoch:
            raise Violation("rule 1: a synced promise survives", node.node_id, seen.synced_promise, promise)
        if seen.synced_mark is not None and (mark is None or _fell(seen.synced_mark, mark, self._snapshot_on(node))):
            raise Violation("a synced mark survives", node.node_id, seen.synced_mark, mark)
        seen.synced_promise, seen.synced_mark = promise, mark

    def sent(self, node: ObservedNode, message: PeerMessage) -> None:
        """Rule 1: a promise in an answer is on the disk of the node that answers."""
        match message:
            case VoteAnswer(asked, True):
                if self._promise_on_disk(node) != (asked.epoch, asked.candidate, asked.incarnation):
                    raise Violation(
                        "rule 1: on disk before the answer", node.node_id, self._promise_on_disk(node), asked
                    )
                self._answered(node, asked.epoch)
                disk = (node.node_id, node.disk_id)
                if not any(disk in named.voters for named in self._form.named.values()):
                    raise Violation("rule 15: a disk that no log names a voter promises nothing", *disk)
            case HeartbeatEcho(epoch, _, held_epoch) if held_epoch == epoch:
                on_disk = self._promise_on_disk(node)
                leader = self.elections.get(epoch)
                if on_disk.epoch < epoch:
                    raise Violation("rule 1: following raises the promise", node.node_id, on_disk, epoch)
                is_true = on_disk.epoch == epoch and tuple(on_disk) not in self.forged
                if is_true and leader and (leader.node_id, leader.incarnation) != on_disk[1:]:
                    raise Violation("rule 1: following makes the leader durable", node.node_id, on_disk, leader[:2])
                self._answered(node, epoch)
            case Heartbeat(promise) if promise.epoch not in self.elections:
                # It may die before the end of the step that elected it: the others still follow it.
                self._leads(node, promise.epoch, promise.incarnation)
                self.of(node).leading = node.running.core.leading_promise
            case _:
                pass

    def _answered(self, node: ObservedNode, epoch: int) -> None:
        seen = self.of(node)
        seen.answered_epoch = max(seen.answered_epoch, epoch)

    def acknowledged(self, node: ObservedNode, ack: Ack, epoch: int, leader_id: str) -> None:
        """Rules 1, 2 and 8: an ack covers what is durable here and equal to the leader's log, under its promise.

        `epoch` is that of the stream's promise; `leader_id` is empty if the leader's process has ended.
        """
        self.looked(node)  # A segment may have expired since the last step.
        on_disk, promised = self._promise_on_disk(node), self.of(node).promised_epoch
        if not on_disk.epoch == promised == epoch:
            raise Violation("rule 2: an ack under its leader's promise alone", node.node_id, on_disk, promised, epoch)
        index = ack.durable_index
        if (lost := node.shadow.unsynced_below(index)) is not None:
            raise Violation("rule 2: an ack after the flush", node.node_id, index, lost)
        leader = next((other for other in self.nodes if other.node_id == leader_id), None)
        if leader is not None and leader.leads and leader.running.core.promise.epoch == epoch:
            place = node.shadow.place_of_end(index)
            theirs = leader.shadow.place_of_end(index)
            if place is None or place != theirs:
                raise Violation("rule 8: an ack names the leader's boundary", node.node_id, index)
            if place >= 0 and node.shadow.frames[place] != leader.shadow.frames[place]:
                raise Violation("rule 8: a divergent suffix is not acknowledged", node.node_id, index)
        self._answered(node, epoch)

    # Leaders and commits

    def _leads(self, node: ObservedNode, epoch: int, incarnation: int) -> None:
        """Rules 1 and 5: one leader per epoch, and it has all that was committed before (Raft 5.4.3)."""
        self.looked(node)  # A single voter promises and leads in one step.
        voters = node.shadow.members_below(node.shadow.end).voters
        if (node.node_id, node.disk_id) not in voters:
            raise Violation("only a voter leads", node.node_id, node.disk_id)
        promised = [voter for voter in voters if voter[1] in self.seen and self.seen[voter[1]].promise.epoch >= epoch]
        if len(promised) <= len(voters) // 2:
            raise Violation("rule 5: a majority of its log's voters promised", node.node_id, epoch, promised, voters)
        known = self.elections.get(epoch)
        if known is not None:
            raise Violation("rule 1: one leader an epoch, once", epoch, known[:2], node.node_id, incarnation)
        frames = node.shadow.frames
        place = len(self.committed) - 1
        while place >= 0 and self.epochs[place] >= epoch:
            place -= 1
        if place >= 0 and (place >= len(frames) or frames[place] != self.committed[place]):
            raise Violation("rule 5: a leader has all that was committed", node.node_id, epoch, self.committed[place])
        self.counts.elections += 1
        self.elections[epoch] = Election(node.node_id, incarnation, [held.crc32c for held in frames])

    def _commit(self, node: ObservedNode, seen: Seen) -> None:
        """Rule 7; and a committed record never changes."""
        index = min(node.running.core.commit_index, node.shadow.end)
        place = node.shadow.place_of_end(index)
        if place is None:
            raise Violation("commit_index is a boundary of what this node holds", node.node_id, index, node.shadow.end)
        frames = node.shadow.frames
        known = min(place + 1, len(self.committed))
        for at in (seen.commit_place + 1, known - 1):
            if 0 <= at < known and frames[at] != self.committed[at]:
                raise Violation("committed records never change", node.node_id, frames[at], self.committed[at])
        if place >= len(self.committed):
            self._extend(node, frames[len(self.committed) : place + 1])
        seen.commit_index, seen.commit_place = index, place

    def _extend(self, node: ObservedNode, frames: list[Held]) -> None:
        led, index = node.running.core.leading_promise or self.of(node).leading, frames[-1].end
        if led is None:  # It may have led until this step, in which it committed and then promised another.
            raise Violation("a leader commits first", node.node_id, index)
        epoch = led.epoch
        if frames[-1].epoch != epoch:
            raise Violation("rule 7: commit by a record of the leader's own epoch", node.node_id, epoch, frames[-1])
        if self.of(node).promised_epoch != epoch:
            raise Violation("rule 2: a leader that promised another commits nothing more", node.node_id, frames[-1])
        place = len(self.committed) + len(frames) - 1
        voters = node.shadow.members_below(node.shadow.end).voters
        holders = [node_id for node_id, disk_id in voters if self._holds(node_id, disk_id, place, frames[-1])]
        if len(holders) <= len(voters) // 2:
            raise Violation("rule 7: commit is durable on a majority", node.node_id, frames[-1], holders)
        if node.node_id not in holders:
            raise Violation("rule 7: never above the leader's own durable_index", node.node_id, frames[-1])
        self.committed += frames
        self.ends += [held.end for held in frames]
        self.epochs += [epoch] * len(frames)
        for later, election in self.elections.items():
            if later > epoch and (len(election.crcs) <= place or election.crcs[place] != frames[-1].crc32c):
                raise Violation("rule 5: a later leader has what an earlier one commits", later, epoch, frames[-1])

    def _holds(self, node_id: str, disk_id: bytes, place: int, held: Held) -> bool:
        """Whether a voter's disk keeps a frame through a power loss, or did so when the disk was lost."""
        node = next(node for node in self.nodes if node.node_id == node_id)
        frames = node.shadow.frames if disk_id == node.disk_id else self._lost.get(disk_id, [])
        durable_index = self.seen[disk_id].durable_index if disk_id in self.seen else 0
        return place < len(frames) and frames[place] == held and durable_index >= held.end

    def lost_disk(self, node: ObservedNode) -> None:
        """Note the loss of a node's disk: what it acknowledged may still count."""
        self._lost[node.disk_id] = list(node.shadow.frames)

    def applied(self, node: ObservedNode, frame: Frame, applied: Applied, digest: bytes) -> None:
        """Rules 7 and 17: only committed, durable records are applied; by one code, digests are equal at one index."""
        self.of(node).applied_place += 1
        place, header = self.of(node).applied_place, frame.header
        if place >= len(self.committed) or self.committed[place].crc32c != header.crc32c:
            raise Violation("rule 7: only what is committed is applied", node.node_id, header.index)
        if header.next_index > node.running.log.durable_index:
            raise Violation("rule 7: only what is durable here is applied", node.node_id, header.index)
        if node.condition.runs_other_code:
            return
        if place == len(self.digests):
            self.digests.append(digest)
            if rule := self.model.broken_by(frame, applied):
                raise Violation(rule, node.node_id, frame, applied.results)
            self.model.apply(frame)
        if self.digests[place] != digest:
            raise Violation("rule 17: equal digests at equal index", node.node_id, header.index)
        refused = {at: code for at, code, _ in applied.refused}
        replies = [(result, refused.get(at)) for at, result in enumerate(applied.results)]
        if replies != self.model.replies[place]:
            raise Violation("replies are what the log says", node.node_id, header, replies, self.model.replies[place])
