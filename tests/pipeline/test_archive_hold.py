"""An archiver holds the log of real nodes by a cursor: expiry waits for the archive, and whoever takes it ends that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.cluster.access.roles import Role
from quire.cluster.client import BlockingClient
from quire.pipeline.archive.archive import ArchiveSummary
from quire.pipeline.archive.hold import LogHold, cursor_of
from quire.pipeline.archive.log import ArchiveLog
from quire.pipeline.archive.manifest import ArchiveManifest, is_archive
from quire.pipeline.cli import app
from quire.pipeline.errors import ClusterUnavailable, HoldRefused, OptionRefused
from quire.pipeline.jobs import archive
from quire.pipeline.source.options import SourceOptions
from tests import tuned
from tests.pipeline.test_archive import rows_of
from tests.ports import free_port
from tests.processes.cluster import Cluster, ending_clusters

FLAGS = [
    "--machine=log",
    "--segment-bytes=65536",
    "--snapshot-records=5",
    "--retention-bytes=1",
    *tuned.flags(follower_bytes=0),
]
RECORD = b"x" * 50_000
HOLD_BYTES = 1 << 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node that expires all it can."""
    with ending_clusters(tmp_path_factory.mktemp("clusters")) as made:
        cluster = made.make(("n1",), flags=FLAGS, locked=True)
        cluster.start()
        yield cluster


def options_of(cluster: Cluster, role: Role = Role.WRITE) -> SourceOptions:
    assert cluster.files is not None
    caller = cluster.files.caller(role)
    return SourceOptions(bootstrap=(cluster["n1"].address,), tokenFile=str(caller.token), ca=str(caller.ca))


def write(cluster: Cluster, records: int = 12) -> None:
    for _ in range(records):
        assert cluster["n1"].call("POST", "/records", RECORD).status == 200


def lowest(cluster: Cluster) -> int:
    return int(cluster["n1"].status()["lowest_index"])


def is_held(cluster: Cluster, name: str) -> bool:
    """Whether this cursor alone keeps segments from expiring."""
    expiry = cluster["n1"].status()["expiry"]
    return bool(expiry["held"]["segments"]) and name in str(expiry["holds"][0])


def client_of(cluster: Cluster) -> BlockingClient:
    return quire.connect_sync(cluster.servers, token=cluster.caller.token, ca=cluster.caller.ca)


def cursors(cluster: Cluster) -> dict[str, Any]:
    with client_of(cluster) as client:
        return {row["name"]: row for row in client.cursors.all()}


class CheckedHold(LogHold):
    """A hold whose cursor is never past what is durable in the archive."""

    def __init__(self, cluster: Cluster, name: str, archive: str) -> None:
        super().__init__(options_of(cluster), name, HOLD_BYTES)
        self._cluster, self._archive = cluster, archive

    def commit(self, index: int, servers: Sequence[str]) -> None:
        super().commit(index, servers)
        if is_archive(self._archive):
            reached = cursors(self._cluster)[self.name]["index"]
            assert max(index, reached) <= ArchiveManifest.read(self._archive).tail.index


@pytest.mark.full
def test_the_log_waits_for_an_archiver_that_is_behind(cluster: Cluster, tmp_path: Path) -> None:
    options, path = options_of(cluster), str(tmp_path / "archive")
    hold = CheckedHold(cluster, "behind", path)
    write(cluster)
    first = archive(options, path, hold=hold)
    write(cluster, 24)

    cluster.wait_until("the cursor holds the log", partial(is_held, cluster, "behind"))
    assert lowest(cluster) <= first.to_index
    second = archive(options, path, hold=hold)
    assert (second.from_index, second.gaps) == (first.to_index, [])
    write(cluster)
    cluster.wait_until("the log expires after the archive's end", lambda: lowest(cluster) > first.to_index)
    assert len(rows_of(ArchiveLog(path))) == second.to_index - first.from_index
    assert cursors(cluster)["behind"]["hold_bytes"] == HOLD_BYTES


@pytest.mark.full
def test_rounds_over_a_quiet_log_come_to_rest(cluster: Cluster, tmp_path: Path) -> None:
    options, hold = options_of(cluster), LogHold(options_of(cluster), "quiet", HOLD_BYTES)
    write(cluster, 3)

    def run() -> ArchiveSummary:
        return archive(options, str(tmp_path / "archive"), hold=hold)

    runs = [run() for _ in range(5)]

    assert runs[0].files > 0
    assert [one.files for one in runs[3:]] == [0, 0]
    assert cursors(cluster)["quiet"]["lag"]["records"] == 0


@pytest.mark.full
def test_a_cursor_past_the_archive_s_end_is_refused_and_left_to_whoever_has_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    options, path = options_of(cluster), str(tmp_path / "archive")
    write(cluster, 3)
    lost = archive(options, str(tmp_path / "lost"), hold=LogHold(options, "ahead", HOLD_BYTES))
    before = cursors(cluster)["ahead"]
    assert lost.from_index < lost.to_index <= before["index"]

    with pytest.raises(HoldRefused, match=rf"it is at {before['index']}, past the archive's end .*--cursor"):
        archive(options, path, hold=LogHold(options, "ahead", HOLD_BYTES))
    assert not is_archive(path)
    after = cursors(cluster)["ahead"]
    assert [after[field] for field in ("index", "token", "hold_bytes")] == [
        before[field] for field in ("index", "token", "hold_bytes")
    ]
    deleted(cluster, "ahead")
    assert archive(options, path, hold=LogHold(options, "ahead", HOLD_BYTES)).files > 0


def taken(cluster: Cluster, name: str) -> None:
    LogHold(options_of(cluster), name, HOLD_BYTES).commit(cursors(cluster)[name]["index"], (cluster.servers,))


def moved(cluster: Cluster, name: str) -> None:
    with client_of(cluster) as client:
        client.cursors.set(name, client.cursors.get(name)["index"])


def deleted(cluster: Cluster, name: str) -> None:
    with client_of(cluster) as client:
        client.cursors.delete(name)


@pytest.mark.full
@pytest.mark.parametrize("change", [taken, moved, deleted])
def test_an_archiver_whose_cursor_is_another_s_ends_and_does_not_take_it_back(
    cluster: Cluster, tmp_path: Path, change: Callable[[Cluster, str], None]
) -> None:
    options, name = options_of(cluster), f"cursor-{change.__name__}"
    hold = LogHold(options, name, HOLD_BYTES)
    write(cluster, 3)
    archive(options, str(tmp_path / "archive"), hold=hold)
    change(cluster, name)
    token = cursors(cluster).get(name, {}).get("token")
    write(cluster, 3)

    for _ in range(2):
        with pytest.raises(HoldRefused, match="a cursor of its own with --cursor"):
            archive(options, str(tmp_path / "archive"), hold=hold)
    assert cursors(cluster).get(name, {}).get("token") == token


@pytest.mark.full
def test_a_token_without_the_role_write_is_told_what_to_give(cluster: Cluster, tmp_path: Path) -> None:
    options = options_of(cluster, Role.READ)

    with pytest.raises(HoldRefused, match=r"a token with the role write.*--hold-bytes 0"):
        archive(options, str(tmp_path / "archive"), hold=LogHold(options, "read", HOLD_BYTES))
    assert archive(options, str(tmp_path / "archive")).files > 0
    assert "read" not in cursors(cluster)


def test_a_cluster_that_cannot_be_reached_is_an_outage_and_no_refusal() -> None:
    servers = (f"127.0.0.1:{free_port()}",)
    hold = LogHold(SourceOptions(bootstrap=servers, fetchTimeoutMs=200), "away", HOLD_BYTES)

    with pytest.raises(ClusterUnavailable, match="the cursor away"):
        hold.commit(0, servers)


NAMES = re.compile(r"(?!\.+(?:/|$))[A-Za-z0-9._:@~-]+(?:/(?!\.+(?:/|$))[A-Za-z0-9._:@~-]+)*")
"""As the nodes check them."""


@pytest.mark.parametrize(
    "path", ["/", "//srv/a", "/srv/two words", "/srv/a/0-2", "/srv/.../a", "/srv/é", "/srv/" + "a" * 300, "/srv/\udcff"]
)
def test_any_path_has_a_cursor_of_its_own(path: str) -> None:
    name = cursor_of(path)

    assert NAMES.fullmatch(name)
    assert len(name) <= 200
    assert not re.search("/[0-9]+-[0-9]+$", name)
    assert name != cursor_of(path + "b")


def test_a_plain_path_is_the_cursor_s_name() -> None:
    assert cursor_of("/srv/archive/") == cursor_of("/srv/./archive") == "archive:/srv/archive"


def test_files_have_no_cursor() -> None:
    with pytest.raises(OptionRefused, match="files have no cursors"):
        LogHold(SourceOptions(path="data"), "name", HOLD_BYTES)
    run = CliRunner().invoke(app, ["archive", "data/archive", "--path", "data/n1", "--cursor", "name"])
    assert run.exit_code == 2
    assert "files have no cursors" in run.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--path", "n1", "--every", "1", "--hold-bytes", "5"), "option hold-bytes: files have no cursors"),
        (("--bootstrap", "n1:1", "--hold-bytes", "5"), "option hold-bytes: a single run uses a cursor only with"),
        (("--bootstrap", "n1:1", "--cursor", "name", "--hold-bytes", "0"), "option cursor: with --hold-bytes 0"),
        (("--bootstrap", "n1:1", "--every", "1", "--cursor", "name", "--hold-bytes", "0"), "option cursor: with"),
    ],
)
def test_no_option_of_a_hold_is_ignored(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    run = CliRunner().invoke(app, ["archive", str(tmp_path / "archive"), *options])

    assert run.exit_code == 2
    assert says in run.output
