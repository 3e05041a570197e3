"""What a backup that runs for long meets: outages between its runs, wrong clocks, manifests that cannot be read."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cluster import client as quire_client
from quire.cluster.backup import manifest as manifest_module
from quire.cluster.backup import run as run_module
from quire.cluster.backup.contents import Point, choose, read_all
from quire.cluster.backup.keeper import Keeper
from quire.cluster.backup.keeping import ORPHAN_S
from quire.cluster.backup.manifest import BackupRefused
from quire.cluster.backup.run import Backup, Outcome
from quire.cluster.backup.source import Source
from quire.cluster.backup.store import FolderStore, Store, Stored, StoreFailed
from quire.cluster.backup.verify import Verification
from quire.cluster.cli.backup import app
from quire.cluster.cli.output import Exit
from quire.cluster.client import Unavailable, documents
from quire.log import time_since_boot, wall_clock
from tests.backup.backed_up import MACHINE, PIECE_BYTES, newest_only
from tests.processes.cluster import Cluster

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY


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


def numbers(store: Store) -> list[int]:
    return [each.number for each in read_all(store, print)]


def dated(store: FolderStore, days: Callable[[int], float]) -> None:
    """Make each manifest and its last frame look as if they had been written so many days ago, by its number."""
    now = wall_clock()
    for each in read_all(store, print):
        time = now - round(days(each.number) * DAY)
        end = each.end._replace(timestamp=min(time, each.end.timestamp))
        store.put(each.key, each._replace(time=time, end=end).encode())


def daily(store: FolderStore, cluster: Cluster, count: int) -> None:
    """So many manifests, the last of which is a day old, and each other one a day older than the next one."""
    for last in range(count):
        Running(store, cluster).run()
        dated(store, lambda number, last=last: 1 + last - number)  # type: ignore[misc]


def shifted(store: FolderStore, us: int) -> None:
    """Make every file look as if the store's clock had been ahead by so much."""
    for path in Path(store.name).rglob("*.json"):
        then = path.stat().st_mtime + us / SECOND
        os.utime(path, (then, then))


class Ahead(FolderStore):
    """A folder of a machine whose clock is ahead: what is written gets a later time."""

    ahead = 0

    def list(self, prefix: str) -> dict[str, Stored]:
        return {
            key: each._replace(modified=each.modified + self.ahead / SECOND)
            for key, each in super().list(prefix).items()
        }


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

    assert any("the clock here is 8,760.0 h ahead of the cluster's" in each for each in ahead.said)
    assert before < set(store.list("manifests/"))
    verified(store)
    Running(store, cluster).run()
    verified(store)


def test_a_run_on_a_machine_that_is_400_days_ahead_thins_nothing_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    store = Ahead(tmp_path / "b")
    daily(store, cluster, 9)
    store.ahead = 400 * DAY
    wrong = Running(store, cluster, lambda: wall_clock() + 400 * DAY)
    for _ in range(3):
        wrong.run()

    assert numbers(store) == list(range(12))
    assert any("the clock here is 9,600.0 h ahead of the cluster's" in each for each in wrong.said)
    assert any("nothing is thinned or deleted" in each for each in wrong.said)
    assert read_all(store, print)[-1].time < wall_clock(), "the cluster's clock counts, which is right"

    store.ahead = 0
    right = Running(store, cluster)
    dated(store, lambda number: 37.5 - number if number < 9 else 1.0)
    for _ in range(2):
        right.run()

    assert right.said == []
    assert numbers(store) == [8, 11, 12, 13], "what is older than 30 days is gone, and all but the last of one hour"
    verified(store)


def test_by_a_store_s_clock_that_is_ahead_nothing_is_deleted_and_it_is_said(cluster: Cluster, tmp_path: Path) -> None:
    store = Ahead(tmp_path / "b")
    daily(store, cluster, 3)
    dated(store, lambda number: 40 - number)
    store.ahead = 400 * DAY
    running = Running(store, cluster)
    for _ in range(2):
        running.run()

    assert numbers(store) == list(range(5))
    assert any(f"the clock of {store.name} is 9,600.0 h ahead of the cluster's" in each for each in running.said)


def test_manifests_of_a_run_whose_clock_was_ahead_do_not_keep_later_runs_from_thinning(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "b")
    daily(store, cluster, 4)
    dated(store, lambda number: -400 if number == 2 else 40 - 2 * number)
    shifted(store, 400 * DAY)  # As an earlier version of this program left it, and the machine that it ran on.
    right = Running(store, cluster)
    for _ in range(2):
        right.run()

    assert right.said == []
    assert numbers(store) == [2, 4, 5], "of the third one, only the frames' time can be right, which is today's"
    verified(store)


def test_what_thinning_removes_can_be_restored_until_another_run_comes_to_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "b")
    daily(store, cluster, 3)
    dated(store, lambda number: 40 - number)

    named = Running(store, cluster).run().manifest.thinned

    assert named == (0, 1, 2)
    assert numbers(store) == [0, 1, 2, 3]
    verified(store)
    dated(store, lambda number: 20 - number)  # Another judgement, as with the right --keep.
    assert Running(store, cluster).run().manifest.thinned == ()
    dated(store, lambda number: 40 - number if number < 3 else 0)
    Running(store, cluster).run()
    assert numbers(store) == list(range(6)), "one run alone does not delete it"
    Running(store, cluster).run()
    assert not {0, 1, 2} & set(numbers(store))
    verified(store)


def test_a_time_after_the_last_manifest_is_not_in_one_whose_clock_was_ahead(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    daily(store, cluster, 3)
    dated(store, lambda number: -400 if number == 1 else 0)
    manifests = read_all(store, print)

    with pytest.raises(BackupRefused, match="is not in this backup"):
        choose(manifests, Point(time=manifests[-1].time + DAY))
    assert choose(manifests, Point(time=manifests[-1].time)) is manifests[-1]


def test_the_lag_of_a_backup_grows_although_the_clock_went_back(cluster: Cluster, tmp_path: Path) -> None:
    class Away(FolderStore):
        """Fails once it is away."""

        is_away = False

        def put(self, key: str, data: bytes) -> None:
            if self.is_away:
                raise StoreFailed("it is away")
            super().put(key, data)

    store, now, ahead = Away(tmp_path / "b"), [time_since_boot()], [0]

    def keeper() -> Keeper:
        backup = Backup(store, lambda: wall_clock() + ahead[0], lambda _: None)
        servers = cluster.servers.split(",")
        connect = partial(quire_client.connect, servers, timeout_s=20)
        return Keeper(backup, connect, servers, lambda: wall_clock() + ahead[0], now=lambda: now[0])

    kept = keeper()
    asyncio.run(kept.run())
    assert kept.lag.records == 0
    store.is_away, ahead[0] = True, -HOUR
    cluster.leader.apply(["add", 1])
    for each in (kept, keeper()):  # The second one finds a manifest that was written an hour from now.
        began = now[0]
        with pytest.raises(StoreFailed):
            asyncio.run(each.run())
        now[0] += 600 * SECOND
        assert each.lag.seconds >= (now[0] - began) / SECOND


def test_a_cluster_s_clock_that_went_back_is_no_lag_of_0_s(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Running(FolderStore(tmp_path / "b"), cluster).run()
    arguments = ["status", str(tmp_path / "b"), "--server", cluster.servers]
    assert CliRunner().invoke(app, arguments).exit_code == Exit.DONE
    cluster.leader.apply(["add", 1])
    monkeypatch.setattr(documents, "cluster_clock", lambda status: status["clock"] - HOUR)

    ended = CliRunner().invoke(app, arguments)
    as_json = CliRunner().invoke(app, [*arguments, "--json"])

    assert (ended.exit_code, as_json.exit_code) == (Exit.FAILED, Exit.FAILED)
    assert "1 records, for an unknown time" in ended.stdout
    assert "the cluster's clock is 3" in ended.stderr
    assert json.loads(as_json.stdout)["lag_seconds"] is None


def test_an_idle_cluster_s_backup_says_once_an_hour_that_nothing_is_new(cluster: Cluster, tmp_path: Path) -> None:
    store, began = FolderStore(tmp_path / "b"), wall_clock()
    Running(store, cluster).run()
    assert not Running(store, cluster).run(records=0).is_new
    dated(store, lambda _: 0.5 / 24)
    outcome = Running(store, cluster).run(records=0)
    assert not outcome.is_new
    assert outcome.age > DAY // 49
    dated(store, lambda _: 1.01 / 24)

    outcome = Running(store, cluster).run(records=0)

    assert outcome.is_new
    assert choose([outcome.manifest], Point(time=began)) is outcome.manifest


def test_a_piece_that_rotted_is_put_once(cluster: Cluster, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    running.run(records=150)
    running.run(records=1)
    piece = read_all(store, print)[-1].pieces[-1]
    raw = bytearray(store.get(piece.file, piece.size))
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


def test_a_run_whose_manifest_is_nearly_full_says_so_and_one_that_would_fill_it_copies_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path / "b")
    running = Running(store, cluster)
    size = len(running.run().manifest.encode())
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", size * 5 // 4)

    longer = running.run().manifest

    assert [each for each in running.said if "full, with 2 pieces; back up to another place" in each]
    told = CliRunner().invoke(app, ["status", store.name, "--server", cluster.servers])
    assert "full, with 2 pieces; back up to another place" in told.stderr
    assert told.exit_code == Exit.DONE
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", len(longer.encode()))
    before = store.list("")
    with pytest.raises(BackupRefused, match="is 100% full, with 2 pieces; back up to another place"):
        running.run()
    assert store.list("") == before
    verified(store)


def test_a_long_run_ends_at_a_full_manifest_and_what_it_copied_is_stated(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        cluster.leader.apply(*[["add", 1, "x" * 100]] * 50)
    size = len(Running(FolderStore(tmp_path / "a"), cluster).run().manifest.encode())
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", size + 500)
    monkeypatch.setattr(run_module, "MANIFEST_EACH_BYTES", 1)
    monkeypatch.setattr(run_module, "FULL", 0.8)  # A piece takes much of so small a manifest.
    store = FolderStore(tmp_path / "b")

    with pytest.raises(BackupRefused, match=r"full, with [0-9] pieces; back up to another place"):
        Running(store, cluster, piece_bytes=PIECE_BYTES).run(0)

    last = read_all(store, print)[-1]
    assert sorted(store.list("frames/")) == [piece.file for piece in last.pieces]
    verified(store)
