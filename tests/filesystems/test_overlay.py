"""An overlay, which renames no folder of its lower layer, under a data directory that is part of that layer."""

from pathlib import Path

import pytest

from tests.sm.test_snapshots_in_a_layer import goes_on_above, with_two_snapshots

from .mounts import MIB, layers, mounted

pytestmark = pytest.mark.full


def test_snapshots_that_are_in_an_image_are_replaced_and_quarantined(tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    machine, taken = with_two_snapshots(lower)
    at = tmp_path / "at"
    at.mkdir()
    with mounted("ext4", 64 * MIB) as above, layers(lower, above, at, ("redirect_dir=off",)):
        goes_on_above(at, machine, taken)
