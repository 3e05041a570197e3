"""What a node says at start of its file system, from the kernel's own lines about mounts."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quire.cluster.data_dir import file_system
from quire.cluster.data_dir.file_system import Mount, alarms_of, mount_numbered, mount_of_line
from quire.cluster.node.views.status import node_status
from quire.cluster.standalone.config import StandaloneConfig
from quire.cluster.standalone.service import LogService
from tests.cluster.test_ignored_settings import config_of, running

PATH = Path("/data/n1")
EXT4 = "42 27 7:0 / /data rw,relatime shared:1 - ext4 /dev/vda rw"
BTRFS = "43 27 0:39 / /data rw,relatime - btrfs /dev/vda rw,discard=async,space_cache=v2,subvolid=5,subvol=/"
OVERLAY = "45 42 0:40 / /data rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w,uuid=on"
NFS = "50 27 0:45 / /data rw,relatime - {} host:/export rw,vers={},rsize=1048576,hard,proto=tcp,addr=10.0.0.1"


def said(line: str) -> list[str]:
    return alarms_of(mount_of_line(line), PATH)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("42 27 0:39 / /data rw,relatime - tmpfs tmpfs rw,size=409600k", "is on tmpfs, in memory: "),
        (f"{EXT4},nobarrier", "is mounted with nobarrier, so that nothing is flushed: "),
        (f"{BTRFS},nobarrier", "is mounted with nobarrier, so that nothing is flushed: "),
        (f"{OVERLAY},volatile", "is mounted with volatile, so that nothing is flushed: "),
        (f"{OVERLAY},fsync=volatile", "is mounted with fsync=volatile, so that nothing is flushed: "),
        (NFS.format("nfs", "3"), "is on NFS below version 4.2, which reserves no room: "),
        (NFS.format("nfs4", "4.1"), "is on NFS below version 4.2, which reserves no room: "),
    ],
)
def test_what_a_file_system_does_not_do_is_one_sentence_with_the_path(line: str, sentence: str) -> None:
    (alarm,) = said(line)
    assert alarm.startswith(f"data_dir {PATH} {sentence}")


@pytest.mark.parametrize("line", [EXT4, BTRFS, OVERLAY, NFS.format("nfs4", "4.2")])
def test_one_that_does_all_is_not_mentioned(line: str) -> None:
    assert said(line) == []


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\x0cb", "a\u2028b".encode()])
def test_a_mount_point_of_any_bytes_is_one_line(name: bytes) -> None:
    odd, plain = (EXT4.encode().replace(b"/data", b"/" + name), BTRFS.encode())
    mounts = b"\n".join((odd, plain, b""))

    assert mount_numbered(mounts, "42") == mount_of_line(EXT4)
    assert mount_numbered(mounts, "43") == mount_of_line(BTRFS)


async def test_a_node_says_it_at_its_start_and_in_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "mount_of", lambda _: Mount("tmpfs", frozenset()))
    async with running(config_of(tmp_path / "n1")) as (node, told):
        assert node_status(node)["alarms"] == told
        [alarm] = told
        assert alarm.startswith(f"data_dir {tmp_path / 'n1'} is on tmpfs")


async def test_a_standalone_log_says_it_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "mount_of", lambda _: Mount("tmpfs", frozenset()))
    service = LogService(StandaloneConfig(listen="127.0.0.1:1", data_dir=tmp_path))
    with capture_logs() as journal:
        await service.start()
    await service.stop()
    [alarm] = [line["alarm"] for line in journal if line["event"] == "alarm"]
    assert alarm.startswith(f"data_dir {tmp_path} is on tmpfs")
