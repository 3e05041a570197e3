"""Features that the log names: noted, kept in snapshots, and applying stops at one that this program lacks."""

from typing import Any

import pytest

from quire.log import FEATURES
from quire.log.simulated import Disk
from quire.sm import Applier, ApplyFailed, ArithmeticMachine, Owner, Sessions, SnapshotStore, write_snapshot
from quire.sm.snapshots.store import restore_newest
from tests.sm.frames import Frames


def applier(supported: frozenset[str] = FEATURES) -> Applier:
    return Applier(ArithmeticMachine(), supported=supported)


def test_a_feature_is_in_use_from_its_record_on() -> None:
    frames, machine = Frames(), applier(frozenset({"a", "b"}))
    assert machine.features == frozenset()

    machine.apply(frames.system({"type": "features", "names": ["a"]}))
    assert machine.features == {"a"}
    machine.apply(frames.system({"type": "features", "names": ["a", "b"]}))
    assert machine.features == {"a", "b"}


def test_the_genesis_of_a_new_cluster_names_the_features_of_its_first_members() -> None:
    machine = applier()

    machine.apply(Frames().system({"type": "genesis", "members": [], "features": ["fitness"]}))

    assert machine.features == {"fitness"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {"type": "features", "names": ["fitness", "of a later version"]},
            "the log uses the feature 'of a later version'",
        ),
        ({"type": "of a later version"}, "it is a system record of type 'of a later version'"),
    ],
)
def test_applying_stops_at_what_this_version_does_not_know_and_says_what_to_do(
    record: dict[str, Any], reason: str
) -> None:
    frames, machine = Frames(), applier()
    machine.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))

    with pytest.raises(ApplyFailed, match=f"index 1: .*{reason}, .*upgrade this node"):
        machine.apply(frames.system(record))

    assert machine.applied_index == 1
    assert machine.features == frozenset()


def test_nothing_is_applied_to_a_snapshot_that_uses_what_this_version_does_not_know() -> None:
    frames, later = Frames(), applier(frozenset({"of a later version"}))
    later.apply(frames.system({"type": "features", "names": ["of a later version"]}))

    machine = Applier(ArithmeticMachine(), boundary=later.boundary)

    assert machine.failure is not None
    assert "upgrade this node" in str(machine.failure)
    with pytest.raises(ApplyFailed):
        machine.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))


@pytest.mark.parametrize("features", [[], ["fitness"]])
def test_a_snapshot_keeps_the_features(features: list[str]) -> None:
    frames, machine = Frames(), applier()
    machine.apply(frames.system({"type": "features", "names": features}))
    store = SnapshotStore.open(Disk().directory(), Owner(bytes(16), ("arithmetic", 1)))
    write_snapshot(store.begin(1), store.owner, machine.boundary, machine.content())
    store.complete(1)

    assert restore_newest(store, ArithmeticMachine, Sessions).features == frozenset(features)
