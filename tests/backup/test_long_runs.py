"""What a backup that runs for long meets: outages between its runs, wrong clocks, manifests that cannot be read."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.cluster import client as quire_client
from quire.cluster.backup.contents import Point, choose, read_all
from quire.cluster.backup.keeping import ORPHAN_S
from quire.cluster.backup.manifest import BackupRefused
from quire.cluster.backup.run import Backup, Outcome
from quire.cluster.backup.source import Source
from quire.cluster.backup.store import FolderStore, Store, StoreFailed
from quire.cluster.backup.verify import Verification
from quire.cluster.client import Unavailable
from quire.log import wall_clock
from tests.backup.backed_up import MACHINE, PIECE_BYTES, newest_only
from tests.processes.cluster import Cluster

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    alone = Cluster(tmp_path_factory.mktemp("cluster"), ("n1",), flags=MACHINE)
    try:
        alone.start()
        yield alone
    finally:
        alone.close()


class Running:
    """One backup over several runs, as `--every` has it."""

    def __init__(
        self, store: Store, cluster: Cluster, clock: Callable[[], int] = wall_clock, piece_bytes: int = 1 << 20
    ) -> None:
        self.said: list[str] = []
        self._cluster = cluster
        self.backup = Backup(store, clock, self.said.append, piece_bytes=piece_bytes, keep_us=30 * 86_400 * SECOND)

    def run(self, records: int = 50) -> Outcome:
        """A run after some more records."""
        if records:
            self._cluster.leader.apply(*[["add", 1, "x" * 100]] * records)

        async def once() -> Outcome:
            async with quire_client.connect(self._cluster.servers, timeout_s=20) as client:
                return await self.backup.run(client, [self._cluster.servers])

        return asyncio.run(once())


def age(store: FolderStore) -> None:
    """Make every file look as if it had been written two days ago."""
    for path in Path(store.name).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - 2 * ORPHAN_S
            os.utime(path, (then, then))


def verified(store: Store) -> None:
    Verification(store, lambda _: None).check(read_all(store, print))


def test_files_are_kept_as_long_as_a_manifest_cannot_be_read(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    Running(store, cluster).run()
    first = Path(store.name) / read_all(store, print)[-1].key
    raw = first.read_bytes()
    age(store)
    first.write_bytes(b"misread")
    running = Running(store, cluster)

    running.run()

    assert any("files are kept as long as manifests/000000000000.json cannot be read" in each for each in running.said)
    first.write_bytes(raw)
    verified(store)


def test_old_files_that_no_manifest_names_are_deleted(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    running.run()
    left = f"frames/{5:020d}-{6:020d}-00000000"
    store.put(left, b"of a run that was cut short")
    other = Path(store.name) / "frames" / "notes.txt"
    other.write_text("of somebody else")
    running.run()
    assert left in store.list("frames/")
    age(store)

    running.run()

    assert left not in store.list("frames/")
    assert other.exists()
    verified(store)


def test_by_a_clock_that_is_a_year_ahead_nothing_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    for _ in range(3):
        Running(store, cluster).run()
    before = set(store.list("manifests/"))
    ahead = Running(store, cluster, lambda: wall_clock() + YEAR)

    ahead.run()

    assert any("differ by more than an hour: nothing is deleted" in each for each in ahead.said)
    assert before < set(store.list("manifests/"))
    verified(store)
    Running(store, cluster).run()
    verified(store)


def test_an_idle_cluster_s_backup_says_once_an_hour_that_nothing_is_new(cluster: Cluster, tmp_path: Path) -> None:
    store, now = FolderStore(tmp_path / "b"), [wall_clock()]
    running = Running(store, cluster, lambda: now[0])
    running.run()
    assert not running.run(records=0).is_new
    now[0] += 3_000 * SECOND
    assert not running.run(records=0).is_new
    now[0] += 601 * SECOND

    outcome = running.run(records=0)

    assert outcome.is_new
    assert choose([outcome.manifest], Point(time=now[0])) is outcome.manifest


def test_a_piece_that_rotted_is_put_once(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    running.run(records=150)
    running.run(records=1)
    piece = read_all(store, print)[-1].pieces[-1]
    raw = bytearray(store.get(piece.file))
    raw[7] ^= 1
    store.put(piece.file, bytes(raw))
    for _ in range(3):
        running.run()
    said = len(running.said)

    running.run()

    assert any("has lost or damaged" in each for each in running.said)
    assert len(running.said) == said
    verified(newest_only(store, tmp_path / "newest"))


def test_a_snapshot_that_the_source_cannot_give_does_not_hold_up_the_frames(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(source: Source, index: int, number: int) -> bytes:
        raise Unavailable(f"chunk {number} of the snapshot at {index} cannot be read")

    monkeypatch.setattr(Source, "snapshot_chunk", unreadable)
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    cluster.leader.apply(["add", 1])
    assert cluster.leader.call("POST", "/admin/snapshot").status == 200

    outcome = running.run()

    assert outcome.manifest.snapshots == ()
    assert any("was not copied from n1" in each for each in running.said)
    verified(store)


def test_a_place_that_is_suddenly_empty_is_an_outage_and_not_a_new_backup(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    running.run()
    (tmp_path / "b").rename(tmp_path / "away")  # As a mount that is gone.
    (tmp_path / "b").mkdir()

    with pytest.raises(StoreFailed, match=r"has lost the last manifest, manifests/000000000000.json; if that was on"):
        running.run()

    assert store.list("manifests/") == {}
    (tmp_path / "b").rmdir()
    (tmp_path / "away").rename(tmp_path / "b")
    assert running.run().is_new
    verified(store)


def test_a_manifest_that_was_written_although_the_store_failed_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    class Late(FolderStore):
        """Writes the manifest, and then fails."""

        fails = False

        def create(self, key: str, data: bytes) -> None:
            super().create(key, data)
            if self.fails:
                raise StoreFailed("it did not answer")

    store = Late(tmp_path / "b")
    running = Running(store, cluster)
    running.run()
    store.fails = True
    with pytest.raises(StoreFailed, match="it did not answer"):
        running.run()
    store.fails = False

    assert running.run().is_new
    verified(store)


def test_a_time_after_a_run_that_was_cut_short_is_not_in_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(FolderStore):
        """Fails after the first manifest."""

        def create(self, key: str, data: bytes) -> None:
            if self.list("manifests/"):
                raise StoreFailed("cut short")
            super().create(key, data)

    monkeypatch.setattr("quire.cluster.backup.run.MANIFEST_EACH_BYTES", 1)
    store = Short(tmp_path / "b")
    with pytest.raises(StoreFailed, match="cut short"):
        Running(store, cluster, piece_bytes=PIECE_BYTES).run()

    (manifest,) = read_all(store, print)

    assert manifest.time == manifest.end.timestamp
    assert manifest.applied == (0, "00" * 16)
    verified(store)
    with pytest.raises(BackupRefused, match="is not in this backup"):
        choose([manifest], Point(time=manifest.time + 1))
    assert choose([manifest], Point(time=manifest.time)) is manifest
