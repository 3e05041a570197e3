"""The code file: what a start records, that no damage of it refuses a start, and a write stopped at each step."""

import pytest
from structlog.testing import capture_logs

from quire.cluster.data_dir.code import CODE_FILE, RUN_KEPT, CodeRecord
from quire.cluster.node.code import MachineCode
from quire.log.simulated import Disk, Keep, PowerLoss

from .voters import content, files_of, formatted, lose, new_applier, opened, voter

BANK = ("bank", 1)
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def started(disk: Disk, code: bytes, machine: tuple[str, int] = BANK) -> CodeRecord | None:
    """Open the directory with this code, as a start does, and close it."""
    data_dir = opened(disk)
    record = data_dir.note_code(machine, code)
    new_applier(data_dir)
    data_dir.close()
    return record


def test_the_first_start_accepts_its_code_and_a_later_one_adds_what_it_runs() -> None:
    disk = formatted()

    assert started(disk, A) == CodeRecord(BANK, (A,), (A,))
    assert started(disk, A) == CodeRecord(BANK, (A,), (A,))
    assert started(disk, B) == CodeRecord(BANK, (A,), (A, B))
    assert started(disk, A) == CodeRecord(BANK, (A,), (A, B))
    assert started(disk, C) == CodeRecord(BANK, (A,), (A, B, C))


def test_a_directory_from_before_the_file_records_what_it_runs_first() -> None:
    disk = voter()
    assert CODE_FILE not in files_of(disk)

    assert started(disk, B) == CodeRecord(BANK, (B,), (B,))


def test_unknown_code_changes_nothing() -> None:
    disk = formatted()
    assert started(disk, b"") is None
    assert CODE_FILE not in files_of(disk)
    started(disk, A)

    assert started(disk, b"") == CodeRecord(BANK, (A,), (A,))
    assert started(disk, B) == CodeRecord(BANK, (A,), (A, B))


def test_another_version_of_the_machine_begins_anew() -> None:
    disk = formatted()
    started(disk, A)
    started(disk, B)

    assert started(disk, C, ("bank", 2)) == CodeRecord(("bank", 2), (C,), (C,))


def test_as_many_codes_as_the_limit_are_kept_and_the_oldest_goes() -> None:
    disk = formatted()
    codes = [bytes([number]) * 32 for number in range(RUN_KEPT + 1)]

    records = [started(disk, code) for code in codes]

    assert records[-2] == CodeRecord(BANK, (codes[0],), tuple(codes[:-1]))
    assert records[-1] == CodeRecord(BANK, (codes[0],), tuple(codes[1:]))


def test_no_damage_of_the_file_refuses_a_start_and_the_code_is_recorded_anew() -> None:
    before = formatted()
    started(before, A)
    whole = before.content(CODE_FILE)
    damaged = [whole[:end] for end in range(len(whole) - 1)]
    damaged += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole) - 1)]

    for data in [b"\0" * 8192, *damaged]:
        disk = before.fork()
        disk.replace(CODE_FILE, data)
        with capture_logs() as logs:
            assert started(disk, B) == CodeRecord(BANK, (B,), (B,)), data
        assert any("the code file is damaged" in log["event"] for log in logs)


def test_a_lost_file_is_recorded_anew() -> None:
    disk = formatted()
    started(disk, A)
    lose(disk, CODE_FILE)

    assert started(disk, B) == CodeRecord(BANK, (B,), (B,))


def test_a_full_disk_keeps_no_node_from_starting_with_other_code_and_what_was_accepted_stays() -> None:
    disk = formatted()
    started(disk, A)
    disk.full = True
    with capture_logs() as logs:
        assert started(disk, B) == CodeRecord(BANK, (A,), (A, B))
    assert any("could not be recorded" in log["event"] for log in logs)
    disk.full = False

    assert started(disk, B) == CodeRecord(BANK, (A,), (A, B))


@pytest.mark.parametrize("keep", list(Keep))
def test_a_write_that_is_stopped_at_any_step_leaves_the_old_record_or_the_new_one(keep: Keep) -> None:
    before = formatted()
    started(before, A)
    old, new = CodeRecord(BANK, (A,), (A,)), CodeRecord(BANK, (A,), (A, B))
    stop, stopped, left = 1, True, list[CodeRecord]()
    while stopped:
        disk = before.fork()
        data_dir = opened(disk)
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        try:
            data_dir.note_code(BANK, B)
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        left.append(CodeRecord.from_line(content(disk)[CODE_FILE]))
        assert started(disk, B) == new
        stop += 1
    assert set(left) == {old, new}
    assert left[-1] == new
    assert stop > 5


@pytest.mark.parametrize("keep", list(Keep))
async def test_an_acceptance_that_was_answered_outlives_a_power_loss(keep: Keep) -> None:
    disk = formatted()
    started(disk, A)
    data_dir = opened(disk)
    code = MachineCode(data_dir, BANK, B)
    await code.start()
    assert code.alarms({}, (), None)

    await code.accept({"n1": B, "n2": C, "n3": b""})
    assert code.alarms({}, (), None) == []

    disk.lose_power(keep)
    assert started(disk, B) == CodeRecord(BANK, (B, C), (B,))
