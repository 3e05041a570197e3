"""A node and a log alone live through all that a disk does to them, on each of the file systems most disks have."""

from pathlib import Path

import pytest

from .lives import SIZE, NodeLife, live_log
from .mounts import MAKE, mounted

pytestmark = pytest.mark.full


@pytest.mark.parametrize("kind", MAKE)
def test_a_node_and_a_log_live_through_kills_and_a_full_disk(kind: str, tmp_path: Path) -> None:
    with mounted(kind, SIZE) as at:
        live_log(at / "log")
        NodeLife(at, tmp_path).run()
