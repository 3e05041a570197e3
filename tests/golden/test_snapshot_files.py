"""A snapshot's files, byte for byte: what is on disk today must stay readable, and must be written in the same way."""

from quire.log import MemoryDirectory
from quire.sm import ArithmeticMachine, Sessions, SnapshotStore, restore_newest, write_snapshot
from tests.golden.make_snapshot import CHUNK_BYTES, FOLDER, OWNER, golden_applier, golden_files


def test_a_snapshot_has_the_golden_bytes() -> None:
    committed = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert golden_files() == committed


def test_the_file_of_the_code_has_the_golden_bytes_and_changes_no_other() -> None:
    folder, applier = MemoryDirectory(), golden_applier()
    owner = OWNER._replace(code=bytes(range(32)))
    write_snapshot(folder, owner, applier.boundary, applier.content(), chunk_bytes=CHUNK_BYTES)
    written = {name: folder.open(name).read_at(0, 1 << 20) for name in folder.list()}
    assert written.pop("code") == bytes.fromhex("4e79dd46") + bytes(range(32))
    assert written == golden_files()


def test_the_golden_snapshot_is_restored_as_it_was() -> None:
    directory, expected = MemoryDirectory(), golden_applier()
    folder = directory.child("snapshots").child(f"{expected.applied_index:020d}")
    for path in FOLDER.iterdir():
        folder.create(path.name).write_at(0, path.read_bytes())
    store = SnapshotStore.open(directory, OWNER)
    applier = restore_newest(store, ArithmeticMachine, lambda: Sessions(session_window=100, max_sessions=10))
    assert not store.damaged
    assert (applier.boundary, applier.state()) == (expected.boundary, expected.state())
    assert b"".join(applier.content()) == b"".join(expected.content())
    assert [(session, name) for session, name, _ in applier.sessions.all_open()] == [
        (4, "billing"),
        (5, "audit"),
        (3, None),  # the one that was used last
    ]
    assert applier.sessions.all_fenced() == [(2, 4)]
