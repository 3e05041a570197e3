"""What is wrong with a backup, its place or its source is found and said; nothing wrong is restored."""

import asyncio
import json
import re
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pytest
from crc32c import crc32c

from quire.cluster import client as quire_client
from quire.cluster.backup.contents import Contents, Point, choose, read_all
from quire.cluster.backup.manifest import BackupInvalid, BackupRefused, Manifest, manifest_key
from quire.cluster.backup.object_store import open_store
from quire.cluster.backup.run import Backup
from quire.cluster.backup.source import SourceUnavailable
from quire.cluster.backup.store import FolderStore, Store
from quire.cluster.backup.verify import Verification, replay
from quire.log import wall_clock
from tests.backup.backed_up import MACHINE, PIECE_BYTES, expected, newest_only, restored, run
from tests.backup.faulty_gateway import Fault, faulty_gateway
from tests.backup.gateway import BUCKET, QUICK, Gateway, options_for
from tests.processes.adder import Adder
from tests.processes.cluster import Cluster, run_quire

BATCH = [["add", 1, "x" * 100]] * 100


@contextmanager
def lone(folder: Path, flags: Sequence[str] = MACHINE) -> Generator[Cluster]:
    """A cluster of one node that runs."""
    alone = Cluster(folder, ("n1",), flags=flags)
    try:
        alone.start()
        yield alone
    finally:
        alone.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node, with some records."""
    with lone(tmp_path_factory.mktemp("cluster")) as alone:
        for _ in range(5):
            grow(alone)
        yield alone


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "b")


def grow(cluster: Cluster) -> None:
    cluster.leader.apply(*BATCH)


def snapshot(cluster: Cluster) -> None:
    assert cluster.leader.call("POST", "/admin/snapshot").status == 200


def verified(store: Store) -> None:
    Verification(store, lambda _: None).check(read_all(store, print))


def files(store: FolderStore, kind: str) -> list[Path]:
    return sorted(path for path in (Path(store.name) / kind).rglob("*") if path.is_file())


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def rewrite(store: FolderStore, manifest: Manifest, **fields: object) -> None:
    """Change fields of a manifest, under a right crc."""
    path = Path(store.name) / manifest.key
    found = json.loads(path.read_bytes().partition(b"\n")[0]) | fields
    line = json.dumps(found).encode()
    path.write_bytes(line + b"\n" + f"{crc32c(line):08x}\n".encode())


@pytest.fixture
def whole(cluster: Cluster, store: FolderStore) -> FolderStore:
    """A backup with several pieces and a snapshot."""
    run(store, cluster)
    grow(cluster)
    snapshot(cluster)
    grow(cluster)
    run(store, cluster)
    assert read_all(store, print)[-1].snapshots
    verified(store)
    return store


# Damage


@pytest.mark.parametrize("kind", ["frames", "snapshots"])
def test_a_flipped_bit_in_any_file_is_found_and_not_restored(whole: FolderStore, kind: str, tmp_path: Path) -> None:
    named = {piece.file for manifest in read_all(whole, print) for piece in manifest.pieces}
    for path in files(whole, kind):
        key = str(path.relative_to(whole.name))
        if kind == "frames" and key not in named:
            continue
        raw = path.read_bytes()
        flip(path)

        with pytest.raises(BackupInvalid, match=r"damaged|manifest fails its crc32c"):
            verified(whole)
        path.unlink()
        with pytest.raises(BackupInvalid, match=re.escape(key)):
            verified(whole)

        path.write_bytes(raw)
    verified(whole)


def test_a_damaged_piece_is_not_restored(whole: FolderStore, tmp_path: Path) -> None:
    manifest = read_all(whole, print)[-1]
    flip(Path(whole.name) / manifest.pieces[-1].file)

    with pytest.raises(BackupInvalid, match=f"{manifest.pieces[-1].file} is damaged: its crc32c differs"):
        restored(whole, tmp_path / "r")


def test_a_manifest_that_is_cut_short_counts_for_nothing(whole: FolderStore) -> None:
    said: list[str] = []
    for path in files(whole, "manifests"):
        path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(BackupRefused, match=r"there is no backup in .*: none of its manifests is whole"):
        read_all(whole, said.append)

    assert said
    assert all("is damaged: its crc32c differs; it counts for nothing" in sentence for sentence in said)


def test_a_backup_without_a_manifest_is_none(whole: FolderStore) -> None:
    for path in files(whole, "manifests"):
        path.unlink()

    with pytest.raises(BackupRefused, match="it has no manifest, which is written last"):
        read_all(whole, print)


def test_a_reported_digest_that_differs_is_found_by_a_replay(whole: FolderStore) -> None:
    manifest = read_all(whole, print)[-1]
    assert replay(whole, [manifest], Adder, lambda _: None)[0] == 1
    rewrite(whole, manifest, applied=[manifest.applied[0], "ab" * 16])

    with pytest.raises(BackupInvalid, match=f"the replay has the digest .* at index {manifest.applied[0]}, and a node"):
        replay(whole, read_all(whole, print), Adder, lambda _: None)


def test_a_class_that_does_not_read_the_newest_snapshot_is_refused_by_a_replay(whole: FolderStore) -> None:
    """Though it can apply all records: a node that starts with it reads that snapshot."""

    class Forgetful(Adder):
        def restore(self, chunks: Iterable[bytes]) -> None:
            _, _ = b"".join(chunks)[:1]

    manifests = read_all(whole, print)
    assert (manifests[-1].base, len(manifests[-1].snapshots) > 0) == (0, True)
    at = rf"{re.escape(__file__)}:\d+"
    told = rf"the machine's restore of snapshot .* raised ValueError: not enough values to unpack .* at {at}"
    with pytest.raises(BackupRefused, match=told):
        replay(whole, manifests, Forgetful, lambda _: None)


def test_a_genesis_of_another_cluster_is_found(whole: FolderStore) -> None:
    manifest = read_all(whole, print)[-1]
    rewrite(whole, manifest, cluster_id="ab" * 16)

    with pytest.raises(BackupInvalid, match="is of another cluster or machine"):
        verified(whole)


def test_what_the_store_forgot_is_put_again_by_the_next_run(
    cluster: Cluster, whole: FolderStore, tmp_path: Path
) -> None:
    for kind in ("frames", "snapshots"):
        shutil.rmtree(Path(whole.name) / kind)
        with pytest.raises(BackupInvalid, match="the backup has lost it"):
            verified(whole)

        run(whole, cluster)

        verified(newest_only(whole, tmp_path / kind))


def test_a_piece_that_rots_is_found_when_the_next_run_joins_it_and_is_put_again(
    cluster: Cluster, store: FolderStore, tmp_path: Path
) -> None:
    run(store, cluster)
    grow(cluster)
    run(store, cluster)
    last = read_all(store, print)[-1].pieces[-1]
    flip(Path(store.name) / last.file)
    grow(cluster)
    grow(cluster)

    manifest = run(store, cluster, piece_bytes=1 << 20).manifest

    assert last.file not in {piece.file for piece in manifest.pieces}
    verified(newest_only(store, tmp_path / "newest"))


@pytest.mark.slow
def test_a_store_that_forgets_what_it_acknowledged_is_found_out_and_mended(cluster: Cluster, gateway: Gateway) -> None:
    with faulty_gateway(gateway) as proxy:
        place = f"s3://{BUCKET}/{token_hex(4)}"
        store = open_store(place, options_for(proxy.port), QUICK)
        proxy.choose = lambda number, method, path: Fault.FORGOTTEN if "/frames/" in path else Fault.NONE
        run(store, cluster)
        with pytest.raises(BackupInvalid, match="the backup has lost it"):
            verified(store)

        proxy.choose = lambda number, method, path: Fault.NONE
        grow(cluster)
        manifest = run(store, cluster).manifest

        Verification(store, lambda _: None).check([manifest])


# The place


def test_two_clusters_do_not_share_a_place(cluster: Cluster, store: FolderStore, tmp_path: Path) -> None:
    run(store, cluster)

    with (
        lone(tmp_path / "other") as other,
        pytest.raises(BackupRefused, match=r"has a backup of the cluster .*; choose another place"),
    ):
        run(store, other)


def test_a_backup_of_another_history_is_refused(cluster: Cluster, store: FolderStore) -> None:
    manifest = run(store, cluster).manifest
    rewrite(store, manifest, history="ab" * 16, histories=[["ab" * 16, 0]])

    with pytest.raises(BackupRefused, match="since it was recovered or restored; choose another place"):
        run(store, cluster)


def test_the_second_of_two_writers_stops(cluster: Cluster, store: FolderStore) -> None:
    said: list[str] = []

    async def alternate() -> None:
        one, two = (Backup(store, wall_clock, said.append, piece_bytes=PIECE_BYTES) for _ in range(2))
        async with quire_client.connect(cluster.servers, timeout_s=20) as client:
            await one.run(client, [cluster.servers])
            grow(cluster)
            await two.run(client, [cluster.servers])
            grow(cluster)
            await one.run(client, [cluster.servers])

    with pytest.raises(BackupRefused, match=r"another backup writes to .*; stop one of the two, or give each its own"):
        asyncio.run(alternate())


def test_of_two_writers_at_once_one_is_refused(cluster: Cluster, store: FolderStore) -> None:
    manifest = run(store, cluster).manifest
    grow(cluster)

    class Raced(FolderStore):
        """Another writer takes the next number just before."""

        def create(self, key: str, data: bytes) -> None:
            FolderStore.create(self, key, b"another's")
            FolderStore.create(self, key, data)

    with pytest.raises(BackupRefused, match=f"it wrote {manifest_key(manifest.number + 1)}"):
        run(Raced(Path(store.name)), cluster)


def test_a_manifest_whose_answer_was_lost_is_its_own(cluster: Cluster, store: FolderStore) -> None:
    class Twice(FolderStore):
        """Does what it is asked, loses the answer, and is asked again."""

        def create(self, key: str, data: bytes) -> None:
            FolderStore.create(self, key, data)
            FolderStore.create(self, key, data)

    assert run(Twice(Path(store.name)), cluster).is_new
    verified(store)


def test_a_backup_by_a_newer_quire_is_refused_by_every_command(cluster: Cluster, whole: FolderStore) -> None:
    manifest = read_all(whole, print)[-1]
    rewrite(whole, manifest, version=2)

    for call in (lambda: run(whole, cluster), lambda: read_all(whole, print)):
        with pytest.raises(BackupRefused, match="has version 2, and this program reads 1; upgrade quire"):
            call()


def test_a_backup_with_features_of_a_newer_quire_is_not_restored(whole: FolderStore, tmp_path: Path) -> None:
    rewrite(whole, read_all(whole, print)[-1], features=["telepathy"])

    with pytest.raises(BackupRefused, match="uses telepathy, which this version does not know: upgrade quire"):
        restored(whole, tmp_path / "r")


def test_a_node_s_data_directory_is_no_place_for_a_backup(cluster: Cluster) -> None:
    data_dir = cluster.leader.data_dir
    before = sorted(path.name for path in data_dir.iterdir())

    ended = run_quire("backup", str(data_dir), "--server", cluster.servers)

    assert ended.code == 2
    assert "is the data directory of a node; give the backup a place of its own" in ended.stderr
    assert sorted(path.name for path in data_dir.iterdir()) == before


# The source


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """A node that expires its log soon."""
    sizes = ["--segment-bytes", str(2 << 20), "--retention-bytes", "65536"]
    with lone(tmp_path / "small", [*MACHINE, *sizes]) as alone:
        yield alone


def test_a_gap_begins_a_new_chain_and_both_can_be_restored(small: Cluster, store: FolderStore, tmp_path: Path) -> None:
    grow(small)
    first = run(store, small).manifest
    raw = small.leader.raw_frames(0, first.end.index)
    while not small.leader.status()["lowest_index"] > first.end.index:
        small.leader.apply(*[["add", 1, "x" * 5000]] * 150)
        snapshot(small)
        small.leader.call("POST", "/admin/expire")

    said: list[str] = []

    async def again() -> Manifest:
        backup = Backup(store, wall_clock, said.append, piece_bytes=PIECE_BYTES)
        async with quire_client.connect(small.servers, timeout_s=20) as client:
            return (await backup.run(client, [small.servers])).manifest

    second = asyncio.run(again())

    assert any("a new chain begins, which does not join what is there" in sentence for sentence in said), said
    assert second.chain == first.chain + 1
    assert second.base > first.end.index
    manifests = read_all(store, print)
    Verification(store, lambda _: None).check(manifests)
    replay(store, manifests, Adder, lambda _: None)
    assert restored(store, tmp_path / "old", Point(index=first.end.index)) == expected(raw, first.end.index)
    end = restored(store, tmp_path / "new")
    assert (end.end, end.digest) == second.applied
    with pytest.raises(BackupRefused, match=r"is not in this backup, which has \[0, "):
        choose(manifests, Point(index=first.end.index + 1))


def test_a_node_that_is_named_must_answer(cluster: Cluster, store: FolderStore) -> None:
    with pytest.raises(SourceUnavailable, match=r"n9 is not among the nodes that answered .n1."):
        run(store, cluster, node="n9")


# What can be restored


@pytest.mark.parametrize(
    ("point", "sentence"),
    [
        (Point(index=0), r"index 0 is not in this backup, which has \[0, \d+\] of 20"),
        (Point(index=10**9), r"index 1000000000 is not in this backup, which has \[0, \d+\] of 20"),
        (Point(time=1), "1970-01-01T00:00:00.000001Z is not in this backup"),
        (Point(time=4 * 10**15), "2096-10-02T07:06:40.000000Z is not in this backup"),
    ],
)
def test_a_point_outside_the_backup_is_refused_with_what_there_is(
    whole: FolderStore, point: Point, sentence: str
) -> None:
    with pytest.raises(BackupRefused, match=sentence):
        choose(read_all(whole, print), point)


def test_a_time_restores_the_last_frame_that_is_not_later(cluster: Cluster, whole: FolderStore, tmp_path: Path) -> None:
    manifest = read_all(whole, print)[-1]
    piece = manifest.pieces[-1]
    raw = cluster.leader.raw_frames(0, manifest.end.index)

    found = restored(whole, tmp_path / "r", Point(time=piece.times[0]))

    assert found == expected(raw, found.end)
    assert piece.from_index < found.end <= piece.to_index


def test_a_time_between_two_frames_of_a_piece_before_its_snapshot_is_not_taken_for_the_snapshot(
    cluster: Cluster, store: FolderStore, tmp_path: Path
) -> None:
    run(store, cluster)
    grow(cluster)
    snapshot(cluster)
    grow(cluster)
    manifest = run(store, cluster, piece_bytes=40_000).manifest
    # As if it had been trimmed to the snapshot.
    rewrite(store, manifest, **{name: _rows(store, manifest, name)[-1:] for name in ("pieces", "snapshots")})
    manifest = read_all(store, print)[-1]
    assert manifest.base == manifest.snapshots[0].index > manifest.pieces[0].from_index
    early = Point(time=manifest.pieces[0].times[0])

    with pytest.raises(BackupRefused, match="whose first snapshot is of"):
        Contents(store, manifest).end_at(early)


def _rows(store: FolderStore, manifest: Manifest, name: str) -> list[object]:
    fields = json.loads((Path(store.name) / manifest.key).read_bytes().partition(b"\n")[0])
    return list(fields[name])


@pytest.mark.parametrize("text", ["", "soon", "-1", "12.5", "2026-13-01", "1e9"])
def test_what_is_neither_an_index_nor_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither an index nor a time such as 2026-11-27T05:20:00Z"):
        Point.parse(text)


def test_times_without_an_offset_are_utc() -> None:
    assert Point.parse("2026-11-27T05:20:00") == Point.parse("2026-11-27T07:20:00+02:00")
    assert Point.parse("0012") == Point(index=12)
