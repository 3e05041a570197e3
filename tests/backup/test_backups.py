"""A cluster under load is backed up, through kills and failures of the store, and restored to what it was."""

from pathlib import Path
from random import Random
from secrets import token_hex

import pytest

from quire.cluster.backup.contents import Point, read_all
from quire.cluster.backup.manifest import BackupRefused
from quire.cluster.backup.object_store import open_store
from quire.cluster.backup.store import FolderStore, Store, StoreFailed
from quire.cluster.backup.verify import Verification, replay
from tests.backup.backed_up import MACHINE, Died, Dying, Load, expected, restored, run
from tests.backup.gateway import BUCKET, QUICK, Gateway
from tests.processes.adder import Adder
from tests.processes.cluster import Cluster, Clusters

POINTS = range(1, 11)
RANDOM_RESTORES = 20


@pytest.fixture(params=["folder", "gateway"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "b")
    gateway: Gateway = request.getfixturevalue("gateway")
    return open_store(f"s3://{BUCKET}/{token_hex(4)}", gateway.options, QUICK)


def check_whole(store: Store) -> None:
    """Everything that a manifest names is there and right, and replays to what was reported."""
    manifests = read_all(store, print)
    Verification(store, lambda _: None).check(manifests)
    replay(store, manifests, Adder, lambda _: None)


def check_restored(store: Store, cluster: Cluster, folder: Path) -> bytes:
    """The newest manifest restores to the cluster's state and digest there; returns the cluster's frames."""
    newest = read_all(store, print)[-1]
    raw = cluster.leader.raw_frames(0, newest.end.index)
    found = restored(store, folder)
    assert found == expected(raw, newest.end.index)
    assert (found.end, found.digest) == newest.applied
    return raw


def test_a_cluster_under_load_is_backed_up_and_restored_to_the_same_state(
    clusters: Clusters, store: Store, tmp_path: Path
) -> None:
    cluster = clusters.formed(flags=MACHINE)
    with Load(list(cluster)) as load:
        outcomes = []
        for _ in range(4):
            load.wait_for(cluster, 100)
            outcomes.append(run(store, cluster))
            cluster["n2"].call("POST", "/admin/snapshot")
            cluster["n3"].call("POST", "/admin/snapshot")

    assert all(outcome.is_new for outcome in outcomes)
    outcome = outcomes[-1]
    assert outcome.manifest.node != cluster.leader.node_id  # A follower, for it feels the least.
    assert outcome.manifest.snapshots
    check_whole(store)
    raw = check_restored(store, cluster, tmp_path / "end")
    random = Random(3)
    for number in range(5):
        at = random.randrange(outcome.manifest.end.index)
        assert restored(store, tmp_path / f"r{number}", Point(index=at)) == expected(raw, at)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["killed", "failing"])
def test_a_backup_that_is_killed_or_fails_at_any_change_is_continued(
    clusters: Clusters, store: Store, tmp_path: Path, kind: str
) -> None:
    cluster = clusters.formed(flags=MACHINE)
    error = Died if kind == "killed" else StoreFailed
    struck = 0
    with Load(list(cluster), padding=400) as load:
        for point in POINTS:
            for after in (False, True):
                load.wait_for(cluster, 60 * point)
                if point % 3 == 0:
                    for node in cluster:
                        node.call("POST", "/admin/snapshot")
                dying = Dying(store, point, after=after, error=error)
                try:
                    run(dying, cluster)
                except error:
                    pass
                struck += dying.has_struck
                run(store, cluster)
                check_whole(store)
                check_restored(store, cluster, tmp_path / f"{point}-{after}")

    assert struck == 2 * len(POINTS)
    newest = read_all(store, print)[-1]
    raw, random = cluster.leader.raw_frames(0, newest.end.index), Random(5)
    for number in range(RANDOM_RESTORES):
        at = random.randrange(newest.end.index)
        assert restored(store, tmp_path / f"r{number}", Point(index=at)) == expected(raw, at)


@pytest.mark.slow
def test_a_restored_cluster_is_backed_up_elsewhere_and_restored_to_both_of_its_histories(tmp_path: Path) -> None:
    store, later = FolderStore(tmp_path / "b"), FolderStore(tmp_path / "later")
    alone = Cluster(tmp_path / "alone", ("n1",), flags=MACHINE)
    try:
        alone.start()
        alone.leader.apply(*[["add", 1]] * 50)
        first = run(store, alone).manifest
        alone.leader.stop()
        assert restored(store, tmp_path / "new", address=alone.leader.address).end == first.end.index
        alone.leader.data_dir = tmp_path / "new"
        alone.start()
        alone.leader.apply(*[["add", 2]] * 50)

        with pytest.raises(BackupRefused, match="since it was recovered or restored; choose another place"):
            run(store, alone)
        second = run(later, alone).manifest
        raw = alone.leader.raw_frames(0, second.end.index)
    finally:
        alone.close()

    (former, _), (history, begun) = second.histories
    assert (former, history) == (first.history, second.history)
    assert begun > first.end.index
    check_whole(later)
    for number, at in enumerate((first.end.index, begun, begun + 1, second.end.index)):
        assert restored(later, tmp_path / f"r{number}", Point(index=at)) == expected(raw, at)
        assert second.history_at(at) == (former if at <= begun else history)
