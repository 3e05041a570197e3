"""A node that comes back to a leader whose log has gone on without it: a snapshot, then the stream, under load."""

import asyncio
import gc
import os
import shutil
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSServerHandshakeError
from structlog.testing import capture_logs

from quire.cluster.compaction.installing import Installing, check_usable
from quire.cluster.compaction.serving import StoreSource
from quire.cluster.node.applying import Applying
from quire.cluster.node.views.status import node_status, not_ready_reasons, visible_bounds
from quire.log import FEATURES, Tail
from quire.log.simulated import Disk
from quire.replication.net.hello import dial
from quire.replication.net.snapshots import FETCHES_LIMIT, SnapshotFetch, SnapshotRefused
from quire.sm import (
    Applier,
    ArithmeticMachine,
    Owner,
    SnapshotDamaged,
    SnapshotStore,
    StateMachine,
    snapshot_name,
    write_snapshot,
)
from quire.sm.boundary import Boundary
from quire.sm.snapshots.manifest import Manifest
from quire.sm.snapshots.store import chunk_name
from tests.cluster.running import RunningCluster, applied_index, running_cluster, started
from tests.replication.loopback import trusting, unformatted

DEADLINE_S = 60.0
SEGMENT_BYTES = 64 * 1024
SECRET = b"a secret of the peers"
SETTINGS: dict[str, Any] = {
    "machine": "tests.cluster.machines:Notes",
    "segment_bytes": SEGMENT_BYTES,
    "snapshot_records": 0,
    "snapshot_log_bytes": 0,
    "retention_bytes": 1,
    "retention_follower_bytes": 0,
}


async def until(cluster: RunningCluster, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await cluster.ask(next(iter(cluster.nodes)), "GET", "/healthz")


async def gone_on(cluster: RunningCluster) -> int:
    """Segments written, snapshots taken, everything expired that may: the leader's lowest index."""
    node = cluster.nodes["n1"].node
    before = visible_bounds(node).lowest_index
    async with asyncio.timeout(DEADLINE_S):
        while visible_bounds(node).lowest_index <= before:
            for _ in range(3):
                await cluster.commands("n1", *["x" * 10_000] * 8)
            for node_id in cluster.nodes:
                assert (await cluster.ask(node_id, "POST", "/admin/snapshot")).status == 200
                await cluster.ask(node_id, "POST", "/admin/expire")
    return visible_bounds(node).lowest_index


def caught_up(cluster: RunningCluster, node_id: str) -> Callable[[], bool]:
    def holds() -> bool:
        node, leader = cluster.nodes[node_id].node, cluster.nodes["n1"].node
        return (applied_index(node), node.components.applying.digest) == (
            applied_index(leader),
            leader.components.applying.digest,
        )

    return holds


@pytest.mark.asyncio
async def test_a_node_that_missed_expiries_gets_a_snapshot_and_follows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[weakref.ref[StateMachine]] = []
    continue_from = Applying.continue_from

    def noted(applying: Applying, applier: Applier) -> None:
        replaced.append(weakref.ref(applying.applier.machine))
        continue_from(applying, applier)

    monkeypatch.setattr(Applying, "continue_from", noted)
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.commands("n1", "first")
        await until(cluster, caught_up(cluster, "n3"))
        assert (await cluster.ask("n3", "POST", "/admin/snapshot")).status == 200  # From which it never starts again.
        await cluster.stop("n3")
        lowest = await gone_on(cluster)
        cluster.nodes["n3"] = await started(config)
        await until(cluster, caught_up(cluster, "n3"))
        node = cluster.nodes["n3"].node
        await until(cluster, lambda: len(node.components.compaction.store.indices) == 1)
        status = node_status(node)
        assert visible_bounds(node).lowest_index >= lowest
        assert [kept["index"] for kept in status["snapshots"]["kept"]] == [status["lowest_index"]]
        assert status["install"]["failure"] == ""
        gc.collect()
        assert {machine() for machine in replaced} == {None}  # A whole state is not kept until the next start.
        # It goes on as any other: through the stream, a restart, and as one of a majority.
        await cluster.commands("n1", "more")
        await until(cluster, caught_up(cluster, "n3"))
        await cluster.restart("n3")
        await cluster.stop("n2")
        await cluster.commands("n1", "with n3 alone")
        await until(cluster, caught_up(cluster, "n3"))


@pytest.mark.asyncio
async def test_a_node_whose_disk_was_wiped_gets_a_snapshot_and_follows_as_an_observer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        shutil.rmtree(tmp_path / "n3")
        cluster.nodes["n3"] = await started(config)
        writing = asyncio.create_task(gone_on(cluster_without(cluster, "n3")))
        await until(cluster, lambda: applied_index(cluster.nodes["n3"].node) > 1)
        await writing
        await until(cluster, caught_up(cluster, "n3"))
        assert cluster.nodes["n3"].node.leadership.role.role == "observer"


@pytest.mark.asyncio
async def test_a_snapshot_that_was_offered_is_kept_with_the_log_after_it_before_its_fetch_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[int] = []
    monkeypatch.setattr(Installing, "fetch_snapshot", lambda _, action: offered.append(action.index))
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        cluster.nodes["n3"] = await started(config)
        await until(cluster, lambda: bool(offered))
        for _ in range(3):
            await cluster.commands("n1", *["x" * 10_000] * 8)
            await cluster.ask("n1", "POST", "/admin/snapshot")
            await cluster.ask("n1", "POST", "/admin/expire")
        node = cluster.nodes["n1"].node
        kept = [kept["index"] for kept in node_status(node)["snapshots"]["kept"]]
        assert kept[0] == offered[-1]
        assert len(kept) == 3
        # And so is the log after it, by which the follower goes on from there.
        assert ("install", offered[-1]) in {
            (hold["what"], hold["index"]) for hold in node_status(node)["expiry"]["holds"]
        }
        assert visible_bounds(node).lowest_index <= offered[-1]


@pytest.mark.asyncio
async def test_a_snapshot_that_a_peer_still_fetches_is_kept_beside_the_two_newest(tmp_path: Path) -> None:
    """Whatever this node leads by then: the peer may have dialled under an earlier leadership."""
    secret = tmp_path / "peer-secret"
    secret.write_bytes(SECRET)
    async with running_cluster(tmp_path, 1, peer_secret_file=secret, **SETTINGS) as cluster:

        async def kept_after_another() -> list[int]:
            await cluster.commands("n1", "more")
            assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200
            return cluster.nodes["n1"].node.components.compaction.store.indices

        [fetched] = await kept_after_another()
        me = replace(unformatted("n9"), features=FEATURES)
        dialled = SnapshotFetch.dialled(
            cluster.session, lambda: me, ("n1", cluster.address("n1")), fetched, trusting(SECRET)
        )
        async with dialled as fetch:
            await fetch.manifest()
            kept = [await kept_after_another() for _ in range(3)][-1]
            assert (len(kept), kept[0]) == (3, fetched)
        await until(cluster, lambda: not cluster.nodes["n1"].node.components.compaction.server.served)
        kept = await kept_after_another()
        assert (len(kept), fetched in kept) == (2, False)


@pytest.mark.asyncio
async def test_who_waits_for_more_to_read_looks_again_when_a_snapshot_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        parts = node.components
        monkeypatch.setattr(parts.compaction.installing, "installed", lambda _: parts.applying.applier)
        waiting = asyncio.create_task(node.visibility.next_growth(DEADLINE_S / 10))
        await asyncio.sleep(0)

        node.components.compaction.installing.snapshot_installed(applied_index(node))

        assert await waiting


def cluster_without(cluster: RunningCluster, node_id: str) -> RunningCluster:
    """The others: load that does not wait for that node."""
    return RunningCluster(cluster.session, {name: node for name, node in cluster.nodes.items() if name != node_id})


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_fetch_that_breaks_off_goes_on_with_the_chunks_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quire.cluster.compaction.snapshotting.write_snapshot", partial(write_snapshot, chunk_bytes=20_000)
    )
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        parts = cluster.nodes["n1"].node.formed
        assert parts is not None
        asked: list[int] = []
        source = parts.compaction.server.source
        chunk = source.chunk

        def stingy(index: int, number: int) -> bytes:
            asked.append(number)
            if len(asked) == 4:
                raise SnapshotRefused("not now")
            return chunk(index, number)

        monkeypatch.setattr(source, "chunk", stingy)
        cluster.nodes["n3"] = await started(config)
        await until(cluster, caught_up(cluster, "n3"))
        assert len(asked) > 5
        twice = {number for number in asked if asked.count(number) > 1}
        assert twice <= {asked[3], asked[4]}, asked  # What was asked for and did not come; nothing else again.


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_chunk_that_is_damaged_at_the_leader_is_not_sent_and_its_other_snapshot_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        kept = [kept["index"] for kept in node_status(cluster.nodes["n1"].node)["snapshots"]["kept"]]
        chunk = tmp_path / "n1" / "snapshots" / snapshot_name(kept[-1]) / "00000000.chunk"
        chunk.write_bytes(b"\xff" + chunk.read_bytes()[1:])
        cluster.nodes["n3"] = await started(config)
        await until(cluster, caught_up(cluster, "n3"))
        status = node_status(cluster.nodes["n1"].node)
        assert "fails its crc32c" in status["snapshots"]["damaged"][0]
        assert node_status(cluster.nodes["n3"].node)["lowest_index"] == kept[0]


@pytest.mark.asyncio
async def test_a_chunk_that_changes_on_its_way_is_refused_and_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        parts = cluster.nodes["n1"].node.formed
        assert parts is not None
        source = parts.compaction.server.source
        chunk, given = source.chunk, []

        def torn_once(index: int, number: int) -> bytes:
            data = chunk(index, number)
            given.append(number)
            return b"\xff" + data[1:] if len(given) == 1 else data

        monkeypatch.setattr(source, "chunk", torn_once)
        cluster.nodes["n3"] = await started(config)
        await until(cluster, caught_up(cluster, "n3"))
        assert given[0] in given[1:]
        # Neither the failure nor the fetch is told of any more.
        assert node_status(cluster.nodes["n3"].node)["install"] == {
            "index": None,
            "chunks": 0,
            "fetched_chunks": 0,
            "failure": "",
        }


@pytest.mark.full
@pytest.mark.asyncio
async def test_a_follower_that_lags_is_kept_its_log_up_to_its_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"retention_follower_bytes": 1 << 30}
    async with running_cluster(tmp_path, 3, **settings) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.commands("n1", "first")
        await until(cluster, caught_up(cluster, "n3"))
        await cluster.stop("n3")
        stood_at = applied_index(cluster.nodes["n1"].node)
        for _ in range(6):
            await cluster.commands("n1", *["x" * 10_000] * 8)
            await cluster.ask("n1", "POST", "/admin/snapshot")
            await cluster.ask("n1", "POST", "/admin/expire")
        node = cluster.nodes["n1"].node
        assert visible_bounds(node).lowest_index <= stood_at
        assert any("n3 has what is below" in hold["why"] for hold in node_status(node)["expiry"]["holds"])
        cluster.nodes["n3"] = await started(config)
        await until(cluster, caught_up(cluster, "n3"))
        assert node_status(cluster.nodes["n3"].node)["snapshots"]["kept"] == []


@pytest.mark.full
@pytest.mark.asyncio
async def test_what_is_damaged_is_told_and_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SnapshotDamaged(snapshot="x", reason="says the test")
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        cluster.nodes["n3"] = await started(config)
        node = cluster.nodes["n3"].node
        with monkeypatch.context() as patched:
            attempts = list[None]()
            patched.setattr("quire.sm.snapshots.store.restore_content", _raises(error, attempts))
            with capture_logs() as journal:
                await until(cluster, lambda: bool(attempts) and node.components.compaction.installing.failure != "")
            failure = node.components.compaction.installing.failure
            assert "says the test" in failure
            assert any(failure in reason for reason in not_ready_reasons(node))
            assert len([line for line in journal if line["event"] == "no snapshot was fetched"]) == 1
        await until(cluster, caught_up(cluster, "n3"))
        assert [name for name in os.listdir(tmp_path / "n3" / "snapshots") if name.endswith(".part")] == []


def _raises(error: Exception, attempts: list[None]) -> Callable[..., None]:
    def raising(*_: object) -> None:
        attempts.append(None)
        raise error

    return raising


@pytest.mark.asyncio
async def test_as_many_snapshots_as_the_limit_are_sent_at_once_and_one_more_has_to_come_again(tmp_path: Path) -> None:
    secret = tmp_path / "peer-secret"
    secret.write_bytes(SECRET)
    async with (
        running_cluster(tmp_path, 1, peer_secret_file=secret, **SETTINGS) as cluster,
        AsyncExitStack() as open_sockets,
    ):
        me, to = replace(unformatted("n9"), features=FEATURES), (cluster.session, cluster.address("n1"))

        async def fetching() -> ClientWebSocketResponse:
            socket, _ = await dial(*to, lambda: me, "n1", "snapshot", trusting(SECRET), None)
            open_sockets.push_async_callback(socket.close)
            return socket

        sockets = [await fetching() for _ in range(FETCHES_LIMIT)]
        with pytest.raises(WSServerHandshakeError, match="503"):
            await fetching()
        await sockets[0].close()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await fetching()
                    break
                except WSServerHandshakeError:
                    await cluster.ask("n1", "GET", "/healthz")


@pytest.mark.asyncio
async def test_another_snapshot_than_the_one_that_was_offered_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 3, **SETTINGS) as cluster:
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        await gone_on(cluster)
        source = cluster.nodes["n1"].node.components.compaction.server.source
        older, newer = cluster.nodes["n1"].node.components.compaction.store.indices
        with monkeypatch.context() as wrong:
            manifest = source.manifest
            wrong.setattr(source, "manifest", lambda index: manifest(older + newer - index))
            cluster.nodes["n3"] = await started(config)
            installing = cluster.nodes["n3"].node.components.compaction.installing
            await until(cluster, lambda: installing.failure != "")
            assert "sent the one at" in installing.failure
        await until(cluster, caught_up(cluster, "n3"))


INDEX = 9
VOTER = ["n1", b"1" * 16, "n1:1", "voter"]


def taken(disk: Disk) -> SnapshotStore:
    """A store with one snapshot of several chunks."""
    store = SnapshotStore.open(disk.directory(), Owner(bytes(16), ("arithmetic", 1)))
    boundary = Boundary(Tail(INDEX, 1, 1, 1), 0, [VOTER])
    content = Applier(ArithmeticMachine()).content()
    write_snapshot(store.begin(INDEX), store.owner, boundary, content, chunk_bytes=2)
    store.complete(INDEX)
    return store


def test_a_snapshot_that_is_served_from_a_damaged_file_is_set_aside() -> None:
    disk = Disk()
    store = taken(disk)
    source = StoreSource(store)
    assert source.manifest(INDEX) == store.manifests[0].encode()
    assert len(source.chunk(INDEX, 1)) == 2
    disk.flip_bit(f"snapshots/{snapshot_name(INDEX)}/{chunk_name(1)}", 0)

    with pytest.raises(SnapshotRefused, match="fails its crc32c"):
        source.chunk(INDEX, 1)

    assert (store.indices, len(store.damaged)) == ([], 1)
    with pytest.raises(SnapshotRefused, match="there is no snapshot"):
        source.manifest(INDEX)


def test_a_snapshot_that_is_removed_while_a_chunk_is_read_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = taken(Disk())
    read = store.chunk

    def removed_first(manifest: Manifest, number: int) -> bytes:
        store.remove(INDEX)
        return read(manifest, number)

    monkeypatch.setattr(store, "chunk", removed_first)

    with pytest.raises(SnapshotRefused, match="was removed"):
        StoreSource(store).chunk(INDEX, 0)

    assert store.damaged == []


@pytest.mark.parametrize(("index", "number"), [(8, 0), (9, -1), (9, 1000), (10, 0)])
def test_a_chunk_that_there_is_not_is_refused(index: int, number: int) -> None:
    with pytest.raises(SnapshotRefused, match=f"no chunk {number} of a snapshot at {index}"):
        StoreSource(taken(Disk())).chunk(index, number)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"members": []}, "names no members"),
        ({"members": [[*VOTER[:3], "observer"]]}, "names no members"),
        ({"members_index": None}, "names no members"),
        ({"features": ("unheard-of",)}, "uses unheard-of, which this version does not know"),
    ],
)
def test_a_snapshot_that_this_node_could_not_go_on_from_is_not_installed(changed: dict[str, Any], says: str) -> None:
    # Its own log would be gone, and each of its starts would fail.
    boundary = Boundary(Tail(9, 1, 1, 1), 0, [VOTER])
    manifest = Manifest(bytes(16), ("arithmetic", 1), boundary, (), bytes(32))
    check_usable(manifest)

    with pytest.raises(SnapshotRefused, match=says):
        check_usable(manifest._replace(boundary=boundary._replace(**changed)))
