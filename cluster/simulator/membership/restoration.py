"""A backup that is restored beside the old members, who go on: two histories that must not touch.

A backup is made of one node's committed frames, and perhaps of a snapshot, in pieces of random sizes. A while later a
member's machine gets another disk, on which the shipped code restores it up to a random point; crashes interrupt that.
The restored node serves clients of its own for a while, under the id and at the address of that member.
"""

from collections.abc import Callable, Sequence
from random import Random

from crc32c import crc32c

from quire.log import Tail, walk_headers
from quire.log.simulated import faulty
from quire.sm.snapshots.manifest import decode_manifest

from ...backup.contents import Contents, Point
from ...backup.manifest import Manifest, Piece, piece_key, snapshot_files, snapshot_manifest_key, snapshot_row
from ...backup.restore import Restored, Wanted, plan_of
from ...backup.source import committed_end
from ...backup.store import Stored, StoreMissing, check_size
from ...backup.verify import Verification
from ...data_dir.identity import read_identity
from ...data_dir.restoration import RestorePlan, read_restore_plan, restore
from ..checks import Violation
from ..clients import Client
from ..clock import MILLISECOND, SECOND, Schedule
from ..machine import Tally
from ..nemesis import Nemesis
from ..node.node import Inserted, Node
from .rules import Begun, MemberChecks

MOST_CRASHES = 4
FUSE = (0, 60)
LATER_US = (0, SECOND)
LOOKS, LOOKS_EACH_US = 200, 5 * MILLISECOND
SERVES_US = 2 * SECOND
ANSWERS_WITHIN_US = 20 * SECOND
PIECE_FRAMES = (1, 40)


class MemoryStore:
    """A backup's store in memory; implements `Store`."""

    name = "memory"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def get(self, key: str, most: int) -> bytes:
        """See `Store`."""
        if key not in self._objects:
            raise StoreMissing(key, self.name)
        check_size(key, self.name, len(self._objects[key]), most)
        return self._objects[key]

    def put(self, key: str, data: bytes) -> None:
        """See `Store`."""
        self._objects[key] = data

    create = put

    def list(self, prefix: str) -> dict[str, Stored]:
        """See `Store`."""
        return {key: Stored(len(data), 0.0) for key, data in self._objects.items() if key.startswith(prefix)}

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        for key in keys:
            self._objects.pop(key, None)


class Restoration:
    """Takes a backup, restores it on one machine, and puts that machine's own disk back in the end."""

    def __init__(self, seed: int, schedule: Schedule, nemesis: Nemesis, until: Callable[[int], None]) -> None:
        self._random = Random(f"{seed}/backup")
        self._schedule = schedule
        self._nemesis = nemesis
        self._until = until
        self._store = MemoryStore()
        self.node: Node
        self._own: tuple[Inserted, bytes, bool, MemberChecks]

    def begin(self, former: MemberChecks) -> MemberChecks | None:
        """Take a backup and restore it; return the checks of the new history, or None if no node can be backed up.

        Raises:
            Violation: the restore fails, or holds what was not committed.
        """
        source = self._source()
        if source is None or self._nemesis.members.is_swapped:
            return None
        manifest = self._backup(source)
        if manifest is None:
            return None
        self._until(self._schedule.now + self._random.randint(*LATER_US))
        members = [node for node in self._nemesis.nodes if node.is_formatted and not node.has_left]
        if not members:
            return None
        self._take_out(self._random.choice(members), former)
        plan = self._restore(manifest)
        node = self.node
        node.disk_id, node.is_formatted = plan.disk_id, True
        node.shadow.read_all()
        later = former.begin_history(node, Begun(plan.end.index, plan.end.index, plan.begun.epoch, is_restored=True))
        former.counts.restores += 1
        node.checks, node.history, node.nominated = later, plan.history, True
        if node.history == former_history(node):
            raise Violation("a restore begins another history", node.node_id, node.history)
        self._nemesis.start(node)
        return later

    def serve(self, clients: Sequence[Client]) -> None:
        """Let the node serve its clients, then put its own disk back.

        Raises:
            Violation: it does not answer them.
        """
        for client in clients:
            client.begin()
        self._until(self._schedule.now + SERVES_US)
        for client in clients:
            client.stopped = True
        deadline = self._schedule.now + ANSWERS_WITHIN_US
        while not (self._serves and all(client.is_idle for client in clients)):
            if self._schedule.now > deadline:
                raise Violation("a restored node serves alone", self.node.node_id)
            self._until(self._schedule.now + 10 * MILLISECOND)
        for client in clients:
            client.under_way.clear()
        self._put_back()

    def _source(self) -> Node | None:
        """A running node, if possible at a moment when it has records that it does not know to be committed."""
        running = list[Node]()
        for _ in range(LOOKS):
            running = [node for node in self._nemesis.nodes if node.runs and node.backlog is None]
            ahead = [node for node in running if node.running.log.durable_index > node.running.core.commit_index]
            if ahead:
                return self._random.choice(ahead)
            self._until(self._schedule.now + LOOKS_EACH_US)
        return self._random.choice(running) if running else None

    @property
    def _serves(self) -> bool:
        process = self.node.process
        return process is not None and process.role_state.role.serving

    # The backup

    def _backup(self, source: Node) -> Manifest | None:
        """A backup of a node's committed frames; None if it has expired some and has no snapshot."""
        process = source.running
        log, applier = process.log, process.machine.applier
        end = committed_end(process.core.commit_index, log.durable_index)
        snapshots = [each for each in process.snapshots.manifests if log.bounds.lowest_index <= each.index <= end]
        taken = snapshots[-1] if snapshots else None
        begin = log.bounds.lowest_index
        if taken is None and (begin or not end):
            return None
        pieces = self._put_pieces(source, begin, end)
        rows = []
        if taken is not None and (begin or self._random.random() < 0.5):
            row = snapshot_row(taken)
            self._store.put(snapshot_manifest_key(row), taken.encode())
            files = snapshot_files(row, decode_manifest(taken.encode(), "taken"))
            for number, (key, _, _) in enumerate(files):
                self._store.put(key, process.snapshots.chunk(taken, number))
            rows.append(row)
        history = source.history.hex()
        end_tail = tail_of(pieces[-1]) if pieces else snapshots[-1].boundary.tail
        manifest = Manifest(
            cluster_id=source.form.cluster_id.hex(),
            name="sim",
            history=history,
            number=0,
            writer="sim",
            time=end_tail.timestamp,
            quire="",
            machine=(Tally.name, Tally.version),
            features=(),
            genesis=source.form.genesis,
            chain=0,
            histories=((history, 0),),
            pieces=tuple(pieces),
            snapshots=tuple(rows),
            end=end_tail,
            applied=(applier.applied_index, applier.digest.hex()),
            node=source.node_id,
            members=tuple((node.node_id, f"{node.node_id}:1", "voter") for node in self._nemesis.nodes),
        )
        Verification(self._store, lambda _: None).check([manifest])
        return manifest

    def _put_pieces(self, source: Node, begin: int, end: int) -> list[Piece]:
        log, raw, index = source.running.log, b"", begin
        while index < end:
            more, index = log.read_frames(index, 1 << 20, to_index=end)
            raw += more
        pieces, frames = list[Piece](), list(walk_headers(raw))
        while frames:
            count = self._random.randint(*PIECE_FRAMES)
            some, frames = frames[:count], frames[count:]
            first, last = some[0], some[-1]
            part = raw[first[0] : last[0] + last[1].size]
            file = piece_key(first[1].index, last[1].next_index, crc32c(part))
            self._store.put(file, part)
            times = (first[1].timestamp, last[1].timestamp)
            chain = (first[1].prev_crc32c, last[1].crc32c)
            indices = (first[1].index, last[1].next_index)
            pieces.append(Piece(file, *indices, len(part), crc32c(part), *chain, last[1].epoch, times))
        return pieces

    # The disk

    def _take_out(self, node: Node, former: MemberChecks) -> None:
        if node.runs:
            node.die(keep=None)
        node.fuse = node.trigger = None
        former.lost_disk(node)
        self.node, self._own = node, (node.take_disk(), node.history, node.nominated, former)
        node.insert_disk()
        node.is_restored = True

    def _put_back(self) -> None:
        node = self.node
        if node.runs:
            node.die(keep=None)
        inserted, history, nominated, former = self._own
        node.put_back(inserted)
        node.is_restored = False
        node.checks, node.history, node.nominated = former, history, nominated
        self._nemesis.start(node)

    def _restore(self, manifest: Manifest) -> RestorePlan:
        """Restore up to a random point, until that succeeds."""
        contents, node, random = Contents(self._store, manifest), self.node, self._random
        at = random.choice((None, Point(index=random.randint(max(manifest.base, 1), manifest.end.index))))
        plan = plan_of(contents, Wanted(at, node.node_id))
        crashes = random.randint(0, MOST_CRASHES)
        while True:
            node.fuse = random.randint(*FUSE) if crashes else None
            try:
                directory = node.disk.directory()
                begun, identity = read_restore_plan(directory), read_identity(directory)
                if begun is None and identity is not None:
                    node.fuse = None
                    return plan  # The crash came after the last step.
                plan = begun or plan
                restore(directory, plan, Restored(contents, plan.end), node.form.log)
            except faulty.PowerLoss:
                crashes -= 1
                node.disk.lose_power(random.choice(list(faulty.Keep)))
            else:
                node.fuse = None
                return plan


def tail_of(piece: Piece) -> Tail:
    """The end of a piece."""
    return Tail(piece.to_index, piece.epoch, piece.times[1], piece.chain_last)


def former_history(node: Node) -> bytes:
    """The history that every log of the simulator begins with."""
    return node.form.cluster_id
