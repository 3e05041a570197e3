"""The harness itself: what is mounted is what was asked for."""

import os

import pytest

from .mounts import MAKE, MIB, as_root, mounted

pytestmark = pytest.mark.full

NAMES = {"ext4": "ext2/ext3", "overlay": "overlayfs"}


@pytest.mark.parametrize("kind", [*MAKE, "overlay", "tmpfs"])
def test_a_mount_is_of_its_kind_and_size_and_gone_at_the_end(kind: str) -> None:
    with mounted(kind, 400 * MIB) as path:
        assert as_root("stat", "--file-system", "--format=%T", path).strip() == NAMES.get(kind, kind)
        room = os.statvfs(path)
        assert room.f_frsize * room.f_blocks <= 400 * MIB
        (path / "file").write_bytes(b"x")
    assert not path.exists()
