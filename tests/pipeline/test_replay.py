"""Replaying logs with sessions and snapshots, from data_dirs and archives, without Spark."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.log import FileDirectory, Kind, Log, LogOptions, encode_records
from quire.pipeline.archive.snapshots import StoredSnapshot, stored_snapshots
from quire.pipeline.errors import (
    ForeignLog,
    GenesisMissing,
    GroundMissing,
    MachineDiffers,
    OptionRefused,
    RecordsLost,
)
from quire.pipeline.jobs import ReplaySummary, archive, replay
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.pieces import whole_frames
from quire.pipeline.replay.genesis import genesis_of
from quire.pipeline.replay.keys import MAX_DIFFERENCES, KeyPiece, replay_keys
from quire.pipeline.replay.stretch import ReplayPiece
from quire.pipeline.source.options import SourceOptions
from quire.sm import (
    Applier,
    ApplyFailed,
    ArithmeticMachine,
    Context,
    KvMachine,
    MachineUnknown,
    Owner,
    SnapshotDamaged,
    SnapshotStore,
    StateMachine,
    write_snapshot,
)
from tests.pipeline.logs import CLUSTER, Frames, append_and_flush, writing
from tests.pipeline.test_archive import expire

GENESIS: dict[str, Any] = {
    "type": "genesis",
    "cluster_id": CLUSTER,
    "members": [],
    "machine": ["arithmetic", 1],
    "initial": 42,
    "limits": {"session_window": 8192},
}


class Nearly(ArithmeticMachine):
    """The machine on a node whose memory failed once: one result is wrong, the state is not."""

    wrong_at = -1

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        results = super().apply_batch(commands, contexts)
        for position, context in enumerate(contexts):
            if context.index == self.wrong_at:
                results[position] = "wrong"
        return results


class Astray(ArithmeticMachine):
    """One whose state went wrong once, and no result of that command."""

    wrong_at = -1

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        results: list[Any] = []
        for command, context in zip(commands, contexts, strict=True):
            results += super().apply_batch([command], [context])
            if context.index == self.wrong_at:
                super().apply_batch([["add", 1]], [context])
        return results


class Later(ArithmeticMachine):
    version = 2


class Failing(ArithmeticMachine):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        if contexts[0].index > 500:
            raise RuntimeError("no")
        return super().apply_batch(commands, contexts)


def run_cluster(
    path: Path,
    machine: StateMachine,
    *,
    records: int = 1000,
    batch: int = 10,
    sessions: int = 3,
    snapshots: int = 4,
    segment_bytes: int = 4096,
    genesis: dict[str, Any] = GENESIS,
    command: Callable[[int], Any] = lambda number: ["add", number],
) -> Applier:
    """Write a data_dir as a node would: a log of commands under sessions, and snapshots of what the machine made."""
    options = LogOptions(segment_bytes=segment_bytes, index_bytes=1 << 22)
    with writing(path, options) as log:
        frames = Frames(log)
        frames.epoch = 0
        frames.system(**genesis)
        frames.epoch = 1
        frames.system(type="epoch_start", node_id="n1")
        for _ in range(sessions):
            frames.system(type="open_session", name="")
        sequence = dict.fromkeys(range(2, 2 + sessions), 1)
        number = 0
        while log.tail.index < records:
            session = 2 + number // batch % sessions
            count = min(batch, records - log.tail.index)
            payload = encode_records([command(each) for each in range(number, number + count)])
            frames.add(Kind.RECORDS, payload, count, session, sequence[session])
            sequence[session] += count
            number += count
        log.flush()
        return _applied(path, log, machine, records // (snapshots + 1) if snapshots else 0)


def _applied(path: Path, log: Log, machine: StateMachine, every: int) -> Applier:
    """Apply it as a node does, with a snapshot at the first boundary past each multiple."""
    directory = FileDirectory(path)
    owner = Owner(CLUSTER, (machine.name, machine.version))
    store, applier, due = SnapshotStore.open(directory, owner), Applier(machine), every
    for frame in log.reader.stream(0, log.tail.index):
        applier.apply(frame)
        if every and due <= applier.applied_index < log.tail.index:
            folder = store.begin(applier.applied_index)
            write_snapshot(folder, owner, applier.boundary, applier.content())
            store.complete(applier.applied_index)
            due += every
    return applier


def replayed(path: Path, machine: str | None = None, **options: Any) -> ReplaySummary:
    return replay(SourceOptions(path=str(path), **options), machine=machine)


def snapshot_indices(path: Path) -> list[int]:
    return sorted(int(each.name) for each in (path / "snapshots").iterdir())


def test_a_history_that_follows_is_proven_stretch_by_stretch(tmp_path: Path) -> None:
    applier = run_cluster(tmp_path / "n1", ArithmeticMachine(42))

    summary = replayed(tmp_path / "n1")

    assert summary.is_proven
    assert (summary.from_index, summary.to_index, summary.records) == (0, 1000, 1000)
    assert (summary.stretches, summary.checked) == (5, 4)
    assert summary.digest == applier.digest.hex()
    assert summary.machine == "arithmetic version 1"


@pytest.mark.parametrize("wrong_at", [5, 199, 205, 206, 555, 799, 804])
def test_a_wrong_result_is_found_at_its_exact_index(tmp_path: Path, wrong_at: int) -> None:
    machine = Nearly(42)
    machine.wrong_at = wrong_at
    run_cluster(tmp_path / "n1", machine)

    summary = replayed(tmp_path / "n1")

    assert not summary.is_proven
    assert summary.difference is not None
    assert summary.difference.first_index == wrong_at
    assert summary.difference.expected_result == '"wrong"'
    assert summary.difference.boundary == next(each for each in snapshot_indices(tmp_path / "n1") if each > wrong_at)


def test_a_state_that_went_wrong_is_found_at_the_first_result_that_shows_it(tmp_path: Path) -> None:
    machine = Astray(42)
    machine.wrong_at = 300
    run_cluster(tmp_path / "n1", machine)

    difference = replayed(tmp_path / "n1").difference

    assert difference is not None
    assert difference.first_index == 301


def test_a_wrong_result_of_which_nothing_is_kept_is_told_by_its_boundary(tmp_path: Path) -> None:
    machine = Nearly(42)
    machine.wrong_at = 300
    genesis = GENESIS | {"limits": {"session_window": 10}}
    run_cluster(tmp_path / "n1", machine, genesis=genesis, snapshots=1, sessions=1)
    with_long_window = replayed(tmp_path / "n1").difference
    assert with_long_window is not None
    # The node kept all replies, with its own limits; those of the genesis let a replay keep the last ones only.
    assert with_long_window.first_index is None
    assert "the first differing result is in [3, 503): no reply that the snapshot keeps" in with_long_window.reason
    assert with_long_window.boundary == snapshot_indices(tmp_path / "n1")[0]


def test_an_archive_proves_what_the_log_has_long_expired(tmp_path: Path) -> None:
    log, path = tmp_path / "n1", tmp_path / "archive"
    applier = run_cluster(log, ArithmeticMachine(42))
    summary = archive(SourceOptions(path=str(log)), str(path))
    assert summary.snapshots == snapshot_indices(log)
    expire(log, 700)

    assert replayed(path).digest == applier.digest.hex()
    assert replayed(path).stretches == 5
    beside = replayed(log, archive=str(path))
    assert beside.is_proven
    assert (beside.from_index, beside.records) == (0, 1000)


def test_a_log_that_has_expired_is_replayed_from_its_oldest_snapshot(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    write_genesis(tmp_path / "n1")
    lowest = expire(tmp_path / "n1", 500)

    summary = replayed(tmp_path / "n1")

    assert summary.is_proven
    assert summary.from_index == next(each for each in snapshot_indices(tmp_path / "n1") if each >= lowest)


def write_genesis(path: Path) -> None:
    """The file that a node keeps beside its log."""
    raw = (path / "log" / f"{0:020d}.store").read_bytes()[64:]
    length = 64 + int.from_bytes(raw[4:8], "little")
    (path / "genesis").write_bytes(raw[:length])


def test_no_snapshot_to_begin_from_is_told_with_its_range(tmp_path: Path) -> None:
    log = tmp_path / "n1"
    run_cluster(log, ArithmeticMachine(42), snapshots=1)
    write_genesis(log)
    lowest = expire(log, 700)

    with pytest.raises(GroundMissing) as raised:
        replayed(log)
    error = raised.value
    assert (error.lowest_index, error.highest_index, error.snapshots) == (lowest, 1000, snapshot_indices(log))


@pytest.mark.parametrize("snapshots", [0, 9])
def test_a_replay_goes_across_no_missing_segment(tmp_path: Path, snapshots: int) -> None:
    log = tmp_path / "n1"
    run_cluster(log, ArithmeticMachine(42), snapshots=snapshots)
    write_genesis(log)
    first, middle, following = sorted((log / "log").glob("*.store"))[:3]
    middle.unlink()

    for fails in (True, False):
        with pytest.raises(RecordsLost) as lost:
            replayed(log, failOnDataLoss=fails)
        assert (lost.value.from_index, lost.value.to_index) == (int(middle.stem), int(following.stem))
    assert int(first.stem) == 0


def test_a_log_without_a_genesis_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "alone") as log:
        append_and_flush(log, [1])
    with pytest.raises(GenesisMissing):
        replayed(tmp_path / "alone")

    run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    lowest = expire(tmp_path / "n1", 500)
    with pytest.raises(GenesisMissing) as raised:
        replayed(tmp_path / "n1")
    assert raised.value.lowest_index == lowest


def test_a_machine_of_another_version_is_refused_with_both(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))

    with pytest.raises(MachineDiffers) as raised:
        replayed(tmp_path / "n1", machine=f"{__name__}:Later")
    assert (raised.value.found, raised.value.expected) == (("arithmetic", 2), ("arithmetic", 1))
    with pytest.raises(MachineDiffers):
        replayed(tmp_path / "n1", machine="kv")
    with pytest.raises(MachineUnknown):
        replayed(tmp_path / "n1", machine="nothing")


def test_a_machine_of_one_s_own_is_named(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))

    assert replayed(tmp_path / "n1", machine=f"{__name__}:Nearly").is_proven
    with pytest.raises(ApplyFailed, match="RuntimeError: no") as raised:
        replayed(tmp_path / "n1", machine=f"{__name__}:Failing")
    assert raised.value.index > 500


def test_a_machine_that_the_genesis_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "genesis_of_an_attacker.py").write_text("from quire.sm import ArithmeticMachine as Machine")
    monkeypatch.syspath_prepend(str(tmp_path))
    genesis = {**GENESIS, "machine": ["genesis_of_an_attacker:Machine", 1]}
    run_cluster(tmp_path / "n1", ArithmeticMachine(42), genesis=genesis, snapshots=0)

    for spec, reason in ((None, "no recorded name is imported: .* --machine"), ("", "built in are")):
        with pytest.raises(MachineUnknown, match=reason):
            replayed(tmp_path / "n1", machine=spec)
    assert "genesis_of_an_attacker" not in sys.modules


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    index = snapshot_indices(tmp_path / "n1")[1]
    chunk = tmp_path / "n1" / "snapshots" / f"{index:020d}" / "00000000.chunk"
    raw = bytearray(chunk.read_bytes())
    raw[7] ^= 1
    chunk.write_bytes(raw)

    with pytest.raises(SnapshotDamaged, match=str(index)):
        replayed(tmp_path / "n1")


def test_a_snapshot_whose_state_is_another_is_found(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", KvMachine(), genesis=KV_GENESIS, command=put, snapshots=1)
    other = KvMachine()
    run_cluster(tmp_path / "n2", other, genesis=KV_GENESIS, command=put, snapshots=0)
    index = snapshot_indices(tmp_path / "n1")[0]
    owner = Owner(CLUSTER, ("kv", 1))
    boundary = SnapshotStore.open(FileDirectory(tmp_path / "n1"), owner).manifests[0].boundary
    store = SnapshotStore.open(FileDirectory(tmp_path / "n2"), owner)
    write_snapshot(store.begin(index), owner, boundary, Applier(other).content())
    store.complete(index)

    assert replayed(tmp_path / "n1").is_proven
    difference = replayed(tmp_path / "n2").difference
    assert difference is not None
    assert "the state differs" in difference.reason
    assert difference.boundary == index


KV_GENESIS = GENESIS | {"machine": ["kv", 1], "initial": None}


def put(number: int) -> Any:
    return ["incr", f"k{number % 7}"] if number % 2 else ["put", f"key{number % 50}", number]


class Forgetful(KvMachine):
    """One that lost a write but reported it as done."""

    lost = range(0)

    def apply(self, command: Any, context: Context) -> Any:
        return True if context.index in self.lost else super().apply(command, context)

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        return [self.apply(command, context) for command, context in zip(commands, contexts, strict=True)]


@pytest.mark.parametrize("parts", [2, 5])
def test_kv_is_replayed_key_by_key(tmp_path: Path, parts: int) -> None:
    applier = run_cluster(tmp_path / "n1", KvMachine(), genesis=KV_GENESIS, command=put, snapshots=2)

    summary = replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=parts)

    assert summary.is_proven
    assert (summary.stretches, summary.records) == (3, 1000)
    assert summary.compared_keys == 2 * len(applier.machine.query(None))
    assert summary.digest == applier.digest.hex()


def test_a_stretch_in_which_the_state_may_have_been_full_is_replayed_as_a_whole(tmp_path: Path) -> None:
    machine = KvMachine()
    machine.limit_state(4000)  # Room for 28 of 57 keys.
    genesis = KV_GENESIS | {"limits": {"session_window": 8192, "state_bytes": 4000}}
    applier = run_cluster(tmp_path / "n1", machine, genesis=genesis, command=put, snapshots=2)
    assert len(machine.query(None)) == 28

    summary = replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=3)

    assert summary.is_proven
    assert (summary.stretches, summary.records, summary.compared_keys) == (3, 1000, 0)
    assert summary.digest == applier.digest.hex()


@pytest.mark.parametrize(("room", "is_by_parts"), [(0, True), (-1, False)])
def test_a_stretch_that_just_fits_the_limit_is_replayed_by_key(tmp_path: Path, room: int, is_by_parts: bool) -> None:
    machine = KvMachine()
    run_cluster(tmp_path / "n0", machine, genesis=KV_GENESIS, command=put, snapshots=1, records=600)
    limit = machine.state_size + room  # Its keys are only added.
    genesis = KV_GENESIS | {"limits": {"session_window": 8192, "state_bytes": limit}}
    machine = KvMachine()
    machine.limit_state(limit)
    run_cluster(tmp_path / "n1", machine, genesis=genesis, command=put, snapshots=1, records=600)

    summary = replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=3)

    assert summary.is_proven
    assert (summary.compared_keys > 0) is is_by_parts


class Narrow(KvMachine):
    """One that has room for few keys."""

    keys_limit = 28


def test_a_stretch_in_which_there_may_have_been_no_room_for_a_key_is_replayed_as_a_whole(tmp_path: Path) -> None:
    spec = f"{Narrow.__module__}:{Narrow.__name__}"
    applier = run_cluster(tmp_path / "n1", Narrow(), genesis=KV_GENESIS, command=put, snapshots=2)
    assert len(applier.machine.query(None)) == Narrow.keys_limit

    summary = replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=3, machine=spec)

    assert summary.is_proven
    assert (summary.stretches, summary.records, summary.compared_keys) == (3, 1000, 0)


def test_a_key_whose_value_went_wrong_is_named_with_its_last_command(tmp_path: Path) -> None:
    machine = Forgetful()
    machine.lost = range(605, 606)  # Command number 600: put key0, whose next one is command 650.
    run_cluster(tmp_path / "n1", machine, genesis=KV_GENESIS, command=put, snapshots=3, records=840, batch=5)
    assert next(each for each in snapshot_indices(tmp_path / "n1") if each > 605) < 655

    summary = replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=3)

    assert not summary.is_proven
    [found] = summary.keys
    assert (found.key, found.found, found.expected, found.last_index) == ("key0", "600", "550", 605)


@pytest.mark.parametrize(("keys", "told"), [(MAX_DIFFERENCES, MAX_DIFFERENCES), (MAX_DIFFERENCES + 1, MAX_DIFFERENCES)])
def test_of_one_part_so_many_keys_are_told(tmp_path: Path, keys: int, told: int) -> None:
    machine = Forgetful()
    machine.lost = range(10_000)
    run_cluster(
        tmp_path / "n1",
        machine,
        genesis=KV_GENESIS,
        command=lambda number: ["put", f"key{number % keys}", number],
        snapshots=1,
        records=600,
    )

    part = replay_keys(KeyPiece(first_stretch(tmp_path / "n1"), 0, 1))

    assert (part.keys, len(part.differences)) == (keys, told)


def first_stretch(path: Path) -> ReplayPiece:
    """From the log's beginning to its first snapshot."""
    options = SourceOptions(path=str(path))
    origin, [manifest, *_] = DataDirLog(str(path)), stored_snapshots(str(path)).manifests
    return ReplayPiece(
        options=options,
        partitions=whole_frames(origin, options, 0, manifest.index),
        from_index=0,
        to_index=manifest.index,
        genesis=genesis_of(str(path), origin),
        machine_spec=None,
        start=None,
        end=StoredSnapshot(str(path), manifest),
        digests=[],
    )


def test_only_a_machine_of_keys_is_replayed_key_by_key(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42), records=100)

    with pytest.raises(OptionRefused, match="does not have independent keys"):
        replay(SourceOptions(path=str(tmp_path / "n1")), key_parts=2)


def test_a_replay_reads_files(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="a replay reads files"):
        replay(SourceOptions(bootstrap=("127.0.0.1:1",)))


def harm_manifest(path: Path, index: int) -> None:
    """One bit of a snapshot's manifest is another."""
    file = path / "snapshots" / f"{index:020d}" / "manifest"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_where_a_snapshot_is_missing_one_longer_stretch_is_proven(tmp_path: Path, place: int) -> None:
    applier = run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    index = snapshot_indices(tmp_path / "n1")[place]
    shutil.rmtree(tmp_path / "n1" / "snapshots" / f"{index:020d}")

    summary = replayed(tmp_path / "n1")

    assert (summary.is_proven, summary.left_out) == (True, [])
    assert (summary.stretches, summary.checked, summary.records) == (4, 3, 1000)
    assert summary.digest == applier.digest.hex()


def test_a_wrong_result_is_found_though_the_snapshot_behind_it_is_missing(tmp_path: Path) -> None:
    machine = Nearly(42)
    machine.wrong_at = 300
    run_cluster(tmp_path / "n1", machine)
    indices = snapshot_indices(tmp_path / "n1")
    shutil.rmtree(tmp_path / "n1" / "snapshots" / f"{indices[1]:020d}")

    difference = replayed(tmp_path / "n1").difference

    assert difference is not None
    assert (difference.first_index, difference.boundary) == (300, indices[2])


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_snapshot_whose_manifest_is_damaged_is_left_out_and_told(tmp_path: Path, place: int) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    index = snapshot_indices(tmp_path / "n1")[place]
    harm_manifest(tmp_path / "n1", index)

    summary = replayed(tmp_path / "n1")

    [told] = summary.left_out
    assert told.startswith(f"{tmp_path / 'n1'}: snapshot {index:020d} is damaged: ")
    assert (summary.stretches, summary.checked, summary.records) == (4, 3, 1000)
    assert summary.is_proven


def test_a_damaged_snapshot_is_made_up_for_by_the_same_one_elsewhere(tmp_path: Path) -> None:
    log, path = tmp_path / "n1", tmp_path / "archive"
    run_cluster(log, ArithmeticMachine(42))
    archive(SourceOptions(path=str(log)), str(path))
    harm_manifest(log, snapshot_indices(log)[1])

    summary = replayed(log, archive=str(path))

    assert (len(summary.left_out), summary.stretches, summary.checked) == (1, 5, 4)


@pytest.mark.parametrize(
    ("cluster_id", "machine", "error"),
    [(CLUSTER, Later(42), MachineDiffers), (b"x" * 16, ArithmeticMachine(42), ForeignLog)],
)
def test_a_snapshot_that_is_not_of_this_log_is_refused(
    tmp_path: Path, cluster_id: bytes, machine: StateMachine, error: type[Exception]
) -> None:
    log = tmp_path / "n1"
    run_cluster(log, ArithmeticMachine(42), snapshots=0)
    owner = Owner(cluster_id, (machine.name, machine.version))
    store, other = SnapshotStore.open(FileDirectory(log), owner), run_cluster(tmp_path / "n2", machine, snapshots=0)
    write_snapshot(store.begin(1000), owner, other.boundary, other.content())
    store.complete(1000)

    with pytest.raises(error) as raised:
        replayed(log)
    assert ("version 2" if error is MachineDiffers else "snapshot 1000") in str(raised.value)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_an_archive_has_the_modes_of_a_data_directory_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42))
    top, before = tmp_path / "kept" / "archive", os.umask(umask)
    try:
        assert archive(SourceOptions(path=str(tmp_path / "n1")), str(top)).snapshots
    finally:
        os.umask(before)

    found = [top.parent, *top.parent.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o750}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o640}
