"""The data directories of a cluster of three, made by the shipped code on simulated disks, and older copies of one.

    n1   leads epoch 5 and writes three frames that nobody commits; votes in epoch 6
    n2   the node that is damaged: follows n1, cuts those of n1's frames off that it has, follows n3 in epochs 7 and 9
    n3   leads epochs 7 and 9, and is ahead of n2

Each takes snapshots, and expires segments. n2's copies: `early`, in epoch 5; `late`, in epoch 7, four frames before the
end, before its newest snapshot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.genesis import make_genesis
from quire.log import Kind, Log, encode_records
from quire.log.simulated import Disk
from quire.replication import Disk as ReplicaDisk
from quire.replication import Member, Members, Role
from quire.replication.core.messages import Promise
from quire.sm import Applier, ArithmeticMachine, Sessions, fingerprint_of, write_snapshot
from tests.replication.disks import remove_expired

from .voters import OPTIONS, content

NODE = "n2"
NODES = ("n1", NODE, "n3")
FRAME_RECORDS = 10
CUT_FROM, LATE, END, AHEAD = 301, 951, 991, 1031
PROMISED = Promise(9, "n3", 99)
"""What n2 promised last."""
SNAPSHOTS = (101, 201, 401, 961, 1021)

Tree = Mapping[str, bytes]
"""Every file of a directory with its bytes, by path."""


@dataclass(frozen=True, slots=True)
class Life:
    """How the nodes of a history live."""

    stops: bool
    """Whether the copies are taken after a clean stop; else while the nodes run, as a kill leaves them."""
    expires: bool
    """Whether the logs expire below the older snapshot; else they hold all records."""

    def __str__(self) -> str:
        return f"{'stopped' if self.stops else 'killed'}, {'expired' if self.expires else 'whole'} log"


LIVES = [Life(stops=stops, expires=expires) for stops in (True, False) for expires in (True, False)]


@dataclass(frozen=True, slots=True)
class History:
    """The directories, and what n2 acknowledged."""

    now: Tree
    early: Tree
    late: Tree
    behind: Tree
    """n1's."""
    ahead: Tree
    """n3's."""
    copies: tuple[Tree, ...]
    """n2's, each time when a frame was committed, as it ran."""
    disk_id: bytes
    frames: bytes
    """What n2 acknowledged, from the genesis on."""
    digest: bytes
    """Of the machine at the end of that."""


@dataclass(slots=True)
class _Node:
    """One node while its history is made."""

    name: str
    life: Life
    disk: Disk = field(default_factory=Disk)
    copies: list[Tree] = field(default_factory=list)
    data_dir: DataDir = field(init=False)
    storage: ReplicaDisk = field(init=False)
    applier: Applier = field(init=False)

    def open(self) -> None:
        """As a node's start opens it."""
        self.data_dir = DataDir.open_directory(self.disk.directory(), self.name, OPTIONS)
        if self.data_dir.identity is not None:
            self.storage, self.applier = started(self.data_dir)

    @property
    def log(self) -> Log:
        """Its log."""
        return self.storage.log

    def lead(self, epoch: int, salt: int = 0) -> bytes:
        """Write the next frame of an epoch, durably."""
        index = self.log.tail.index
        commands = [["add", index + salt], ["sub", 1]] * (FRAME_RECORDS // 2)
        payload = encode_records(commands)
        self.log.append_payload(payload, count=FRAME_RECORDS, kind=Kind.RECORDS, epoch=epoch)
        self.log.flush()
        return self.log.read_frames(index, 1)[0]

    def append(self, raw: bytes) -> None:
        """Append frames and make them durable; the mark follows, as after a node's flush."""
        self.log.append_frames(raw)
        self.log.flush()

    def commit(self, to: int) -> None:
        """Apply up to an index; take the snapshots that are due, and expire what they cover."""
        self.log.mark.commit_index = to
        if (sync := self.log.mark_sync.begin()) is not None:
            self.storage.marked(sync)()
            self.log.mark_sync.end(sync)
        for frame in self.log.reader.stream(self.applier.applied_index, to):
            self.applier.apply(frame)
            if (index := frame.header.next_index) in SNAPSHOTS:
                self._take_snapshot(index)

    def _take_snapshot(self, index: int) -> None:
        store = self.data_dir.snapshots
        write_snapshot(store.begin(index), store.owner, self.applier.boundary, self.applier.content())
        store.complete(index)
        store.retain()
        if self.life.expires and len(store.indices) > 1:
            remove_expired(self.storage, store.indices[0])

    def promise(self, promise: Promise) -> None:
        """Vote."""
        self.storage.store_promise(promise)

    def commit_and_copy(self, to: int) -> None:
        """Commit, and keep a copy of the directory."""
        self.commit(to)
        self.copies.append(content(self.disk))

    def copy(self) -> Tree:
        """Its directory now."""
        if not self.life.stops:
            return content(self.disk)
        self.data_dir.close()
        tree = content(self.disk)
        self.open()
        return tree


def started(data_dir: DataDir) -> tuple[ReplicaDisk, Applier]:
    """What a node makes of its opened directory before it starts its replica."""
    data_dir.note_code((ArithmeticMachine.name, ArithmeticMachine.version), fingerprint_of(ArithmeticMachine))
    applier = data_dir.restore(ArithmeticMachine, Sessions)
    assert data_dir.log is not None
    disk = ReplicaDisk(
        data_dir.log, data_dir.promises, snapshots=data_dir.snapshots, older_epochs=applier.boundary.epochs
    )
    return disk, applier


@cache
def history(life: Life, cluster: int = 1) -> History:
    """A history of such nodes. Each `cluster` is another one."""
    del cluster
    n1, n2, n3 = nodes = [_Node(name, life) for name in NODES]
    for node in nodes:
        node.open()
    genesis = _genesis(nodes)
    for node in nodes:
        node.data_dir.format(node.name, genesis)
        node.storage, node.applier = started(node.data_dir)
        node.promise(Promise(5, "n1", 11))

    frames = [genesis]
    while n1.log.tail.index < CUT_FROM:
        frames.append(n1.lead(5))
        n2.append(frames[-1])
        n3.append(frames[-1])
    uncommitted = [n1.lead(5, salt=1000) for _ in range(3)]
    n2.append(uncommitted[0])
    for node in nodes:
        node.commit(CUT_FROM)
    n1.promise(Promise(6, "n1", 12))
    early = n2.copy()

    for node in (n2, n3):
        node.promise(Promise(7, "n3", 98))
    n2.storage.truncate(CUT_FROM)
    frames += _follow(n2, n3, 7, LATE)
    late = n2.copy()
    for node in (n2, n3):
        node.promise(PROMISED)
    frames += _follow(n2, n3, 9, END)
    while n3.log.tail.index < AHEAD:
        n3.lead(9)
    n3.commit(AHEAD)
    disk_id, digest = n2.data_dir.promises.disk_id, n2.applier.digest
    now, behind, ahead = n2.copy(), n1.copy(), n3.copy()
    for node in nodes:
        node.data_dir.close()
    copies = tuple(n2.copies[:-1])  # The last one is as new as the directory.
    return History(now, early, late, behind, ahead, copies, disk_id, b"".join(frames), digest)


def _genesis(nodes: list[_Node]) -> bytes:
    members = Members(tuple(Member(n.name, n.data_dir.promises.disk_id, f"{n.name}:1", Role.VOTER) for n in nodes))
    addresses = {name: f"{name}:1" for name in NODES}
    config = ServeConfig(node=NODE, listen="localhost:1", members=addresses, data_dir=Path(NODE))
    return make_genesis(members, ("arithmetic", 1), 42, config)


def _follow(follower: _Node, leader: _Node, epoch: int, to: int) -> list[bytes]:
    """The frames that the leader writes in an epoch, each of which is committed at once."""
    frames: list[bytes] = []
    while leader.log.tail.index < to:
        frames.append(leader.lead(epoch))
        follower.append(frames[-1])
        leader.commit(leader.log.tail.index)
        follower.commit_and_copy(leader.log.tail.index)
    return frames
