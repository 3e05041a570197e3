"""A voter's data directory on a simulated disk, made as a node makes it, and what a test does to its files."""

from pathlib import Path

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.genesis import make_genesis
from quire.log import Kind, LogOptions, encode_records
from quire.log.simulated import Disk
from quire.replication import Member, Members, Role
from quire.replication.core.messages import Promise
from quire.sm import Applier, ArithmeticMachine, Sessions, write_snapshot

OPTIONS = LogOptions(segment_bytes=4096, max_frame_bytes=2048)
EPOCH = 7
PROMISE = Promise(EPOCH, "n2", 99)


def opened(disk: Disk) -> DataDir:
    """The directory on a disk, opened as n1's."""
    return DataDir.open_directory(disk.directory(), "n1", OPTIONS)


def new_applier(data_dir: DataDir) -> Applier:
    """Its machine, from the newest snapshot."""
    return data_dir.restore(ArithmeticMachine, Sessions)


def formatted(disk: Disk | None = None) -> Disk:
    """A disk, or this one, whose node holds the genesis and has promised nobody."""
    disk = disk or Disk()
    data_dir = opened(disk)
    format_voter(data_dir)
    data_dir.close()
    return disk


def format_voter(data_dir: DataDir) -> None:
    """Give it the genesis of a cluster that is n1."""
    members = Members((Member("n1", data_dir.promises.disk_id, "h:1", Role.VOTER),))
    config = ServeConfig(node="n1", listen="127.0.0.1:1", members={"n1": "127.0.0.1:1"}, data_dir=Path("n1"))
    data_dir.format("n1", make_genesis(members, ("arithmetic", 1), 42, config))


def voter(*, snapshots: bool = False) -> Disk:
    """A disk whose node has promised epoch 7 and acknowledged 300 records of it, in several segments."""
    disk = formatted()
    data_dir = opened(disk)
    applier, log = new_applier(data_dir), data_dir.log
    assert log is not None
    data_dir.promises.write(PROMISE)
    for number in range(30):
        log.append_payload(encode_records([["add", number], ["sub", 1]] * 5), count=10, kind=Kind.RECORDS, epoch=EPOCH)
    log.flush()
    for frame in log.reader.stream(0, log.durable_index):
        applier.apply(frame)
        if snapshots and frame.header.index in (101, 201):
            index, store = applier.applied_index, data_dir.snapshots
            write_snapshot(store.begin(index), store.owner, applier.boundary, applier.content())
            store.complete(index)
    log.mark.commit_index = log.durable_index
    data_dir.close()
    return disk


def files_of(disk: Disk, folder: str = "") -> list[str]:
    """The paths of all files below a folder, but for the lock."""
    found: list[str] = []
    for name in disk.names(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            disk.content(path)
        except IsADirectoryError:
            found += files_of(disk, path)
        else:
            found.append(path)
    return found


def content(disk: Disk) -> dict[str, bytes]:
    """Every file with its bytes, by path."""
    return {path: disk.content(path) for path in files_of(disk)}


def lose(disk: Disk, *names: str) -> None:
    """Remove files, and folders with all files below them."""
    for name in names:
        held = files_of(disk, name) if name in ("log", "snapshots") else [name]
        for path in held:
            disk.delete(path)
