"""A survivor of a lost majority becomes the one voter of a new history, wherever the recovery of it is interrupted."""

from dataclasses import replace
from pathlib import Path

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.genesis import make_genesis
from quire.cluster.data_dir.identity import DataDirRefused, NodeIdentity, write_identity
from quire.cluster.data_dir.new_history import EPOCH_STEP
from quire.cluster.data_dir.recovery import (
    AGAIN,
    PLAN_FILE,
    RecoveryPlan,
    make_plan,
    read_plan,
    recover,
)
from quire.cluster.data_dir.survivor import inspect
from quire.log import FEATURES, HISTORY, MEMBERSHIP, Kind, decode_system, encode_records, frame_values
from quire.log.simulated import Disk, Keep, PowerLoss
from quire.replication import Member, Members, Role
from tests.data_dir.voters import EPOCH, OPTIONS, PROMISE, opened, voter

N2, N3 = (Member(f"n{number}", bytes([number]) * 16, f"h:{number}", Role.VOTER) for number in (2, 3))


def survivor(*, features: frozenset[str] = FEATURES, acknowledged: int = 20) -> Disk:
    """The disk of n1, one of three voters: 30 frames of ten records, the newest of which were not acknowledged."""
    disk = Disk()
    data_dir = opened(disk)
    members = Members((Member("n1", data_dir.promises.disk_id, "h:1", Role.VOTER), N2, N3))
    config = ServeConfig(node="n1", listen="127.0.0.1:1", members={"n1": "127.0.0.1:1"}, data_dir=Path("n1"))
    data_dir.format("n1", make_genesis(members, ("arithmetic", 1), 42, config, features))
    data_dir.promises.write(PROMISE)
    log = data_dir.log
    assert log is not None
    for number in range(30):
        log.append_payload(encode_records([["add", number], ["sub", 1]] * 5), count=10, kind=Kind.RECORDS, epoch=EPOCH)
    log.flush()
    log.mark.commit_index = 1 + 10 * acknowledged
    data_dir.close()
    return disk


def planned(disk: Disk) -> RecoveryPlan:
    directory = disk.directory()
    return read_plan(directory) or make_plan(directory.path, inspect(directory), "lab", None)


def run(disk: Disk) -> RecoveryPlan:
    plan = planned(disk)
    recover(disk.directory(), plan, OPTIONS)
    return plan


def done_of(disk: Disk) -> RecoveryPlan:
    """The plan of a recovery that is complete, as the directory tells it."""
    found = inspect(disk.directory())
    former = found.members.removed[0].disk_id
    plan = planned(disk)
    return replace(
        plan,
        history=found.identity.history,
        disk_id=found.identity.disk_id,
        former_history=found.identity.cluster_id,
        former_disk_id=former,
        end=301,
        epoch=found.epoch_seen,
    )


def records_of(disk: Disk) -> list[object]:
    data_dir = opened(disk.fork())
    assert data_dir.log is not None
    return [
        value
        for frame in data_dir.log.reader.stream(1, data_dir.log.durable_index)
        if frame.header.kind == Kind.RECORDS
        for value in frame_values(frame)
    ]


def check(disk: Disk, plan: RecoveryPlan, before: list[object]) -> None:
    """The directory starts as a new disk of the new history, and all records of the survivor are in its log."""
    data_dir = opened(disk)
    log, identity = data_dir.log, data_dir.identity
    assert log is not None
    assert identity is not None
    assert (identity.history, identity.disk_id) == (plan.history, plan.disk_id)
    assert data_dir.history != identity.cluster_id
    assert data_dir.promises.disk_id == plan.disk_id
    assert data_dir.promises.promise.epoch == plan.epoch == EPOCH + EPOCH_STEP
    assert log.members_index is not None
    assert log.members_index == log.durable_index - 1
    record = decode_system(log.reader.frame(log.members_index).payload)
    members = Members.from_record(record)
    assert [(row.node_id, row.disk_id, row.role) for row in members.members] == [("n1", plan.disk_id, Role.VOTER)]
    gone = [("n1", plan.former_disk_id), ("n2", N2.disk_id), ("n3", N3.disk_id)]
    assert [(removed.node_id, removed.disk_id) for removed in members.removed] == gone
    assert {removed.index for removed in members.removed} == {log.members_index}
    assert record["from"] == [plan.former_history, plan.end]
    assert record["history"] == plan.history
    data_dir.close()
    assert records_of(disk) == before


def test_a_survivor_keeps_all_its_records_and_is_the_only_voter() -> None:
    disk = survivor()
    before = records_of(disk)

    plan = run(disk)

    assert (plan.commit_index, plan.end, plan.others) == (201, 301, (("n2", "h:2"), ("n3", "h:3")))
    check(disk, plan, before)


def test_the_features_that_a_history_needs_are_named_before_it() -> None:
    disk = survivor(features=FEATURES - {MEMBERSHIP, HISTORY})

    plan = run(disk)

    data_dir = opened(disk)
    assert data_dir.log is not None
    named = decode_system(data_dir.log.reader.frame(plan.end).payload)
    assert named == {"type": "features", "names": sorted(FEATURES)}
    data_dir.close()
    found = inspect(disk.directory())
    assert (found.features, found.tail.index) == (FEATURES, plan.end + 2)


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("features", [FEATURES, FEATURES - {HISTORY}], ids=["named", "unnamed"])
def test_a_recovery_that_is_stopped_at_any_operation_is_refused_at_a_start_and_finished_by_the_next_run(
    keep: Keep, features: frozenset[str]
) -> None:
    whole = survivor(features=features)
    before = records_of(whole)
    stop, stopped = 1, True
    while stopped:
        disk = whole.fork()
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        try:
            run(disk)
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        names = disk.directory().list()
        if PLAN_FILE in names:
            with pytest.raises(DataDirRefused, match=AGAIN):
                opened(disk.fork())
        if PLAN_FILE in names or inspect(disk.directory()).tail.index == 301:
            check(disk, run(disk), before)
        else:
            check(disk, done_of(disk), before)
        stop += 1
    assert stop > 40


@pytest.mark.parametrize("keep", list(Keep))
def test_records_that_a_killed_node_had_not_synced_are_durable_before_the_plan_counts_them(keep: Keep) -> None:
    whole = survivor()
    killed = opened(whole)
    assert killed.log is not None
    killed.log.append_payload(encode_records([["add", 1]]), count=1, kind=Kind.RECORDS, epoch=EPOCH)
    killed.log.read_frames(301, 1, unflushed=True)  # As to ship it: this writes it out.
    stop, stopped = 1, True
    while stopped:
        disk = whole.fork()
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        try:
            assert run(disk).end == 302
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        if PLAN_FILE in disk.directory().list():
            assert run(disk).end == 302
            opened(disk).close()
        stop += 1
    assert stop > 40


def test_a_recovery_may_be_repeated_and_each_is_another_history() -> None:
    disk = survivor()
    first = run(disk)
    opened(disk).close()

    second = run(disk)

    assert second.former_history == first.history
    assert second.history != first.history
    assert second.epoch == first.epoch + EPOCH_STEP
    assert second.others == ()
    opened(disk).close()


def test_two_isolated_recoveries_are_two_histories() -> None:
    one = survivor()
    other = one.fork()

    assert run(one).history != run(other).history


def test_survivors_compare_by_the_epoch_of_the_last_record_and_the_end() -> None:
    found = inspect(survivor(acknowledged=3).directory())

    assert found.last == (EPOCH, 301)
    assert found.commit_index == 31
    assert (found.role, found.removed_at) == (Role.VOTER, None)


def test_records_above_the_mark_count_and_a_torn_frame_does_not() -> None:
    disk = survivor()
    data_dir = opened(disk)
    assert data_dir.log is not None
    data_dir.log.append_payload(encode_records([["add", 1]]), count=1, kind=Kind.RECORDS, epoch=EPOCH)
    data_dir.log.flush()
    disk.lose_power(Keep.EVERYTHING)

    found = inspect(disk.directory())

    assert found.tail.index == 302
    plan = run(disk)
    assert plan.end == 302


def test_a_disk_that_was_removed_is_not_recovered() -> None:
    disk = survivor()
    run(disk)
    found = inspect(disk.directory())
    former = found.members.removed[0]
    old = found._replace(identity=NodeIdentity(found.identity.cluster_id, "n1", former.disk_id, ("arithmetic", 1), 42))

    with pytest.raises(DataDirRefused, match="n1 was removed at index"):
        make_plan("d", old, "lab", None)


def test_an_identity_of_an_earlier_history_than_its_log_is_refused() -> None:
    disk = survivor()
    plan = run(disk)
    identity = inspect(disk.directory()).identity
    earlier = NodeIdentity(identity.cluster_id, "n1", plan.disk_id, identity.machine, identity.initial)
    write_identity(disk.directory(), earlier)

    with pytest.raises(DataDirRefused, match="which its log ended at index 301"):
        opened(disk)


def test_a_directory_that_was_never_formatted_has_nothing_to_recover() -> None:
    with pytest.raises(DataDirRefused, match="there is nothing to recover"):
        inspect(Disk().directory())


def test_a_damaged_plan_is_refused_with_the_next_step() -> None:
    disk = survivor()
    plan = planned(disk)
    raw = plan.to_bytes()
    assert RecoveryPlan.from_bytes(raw) == plan
    with pytest.raises(ValueError, match="crc32c differs"):
        RecoveryPlan.from_bytes(raw[:-1] + b"x")


def test_a_voter_alone_can_be_recovered_from_its_snapshot() -> None:
    disk = voter(snapshots=True)
    plan = run(disk)
    assert plan.end == 301
    opened(disk).close()
