"""An append that breaks the log: nobody who waits for this node waits on."""

import pytest

from quire.log import LogReadOnly
from quire.log.segment.store import UNFINISHED_SUFFIX
from quire.replication import Reason
from quire.replication.core import actions, events
from quire.replication.core.membership.changing import Remove
from quire.replication.replica import CheckedDriver
from tests.replication.running import Recorder, records
from tests.replication.test_refused_writes import blob, leading


def failing_next() -> tuple[CheckedDriver[None], Recorder]:
    """A leader whose next append rotates, and breaks the log."""
    node, driver, device, owner = leading()
    node.storage.failing = lambda _, name: name.endswith(UNFINISHED_SUFFIX)
    for _ in range(3):
        driver.propose(blob(30_000))
        driver.pass_on_proposed()
        device.let_go()
    return driver, owner


def test_writes_that_were_being_appended_are_in_doubt_and_what_was_asked_meanwhile_is_refused() -> None:
    node, driver, device, owner = leading()
    before, breaks, beside, meanwhile = [blob(30_000) for _ in range(3)], blob(1), records(1), records(2)
    for write in (*before, breaks):
        driver.propose(write)
        driver.pass_on_proposed()
        if write in before[:2]:
            device.let_go()
    driver.propose(beside)

    def fails(_operation: str, name: str) -> bool:
        if not name.endswith(UNFINISHED_SUFFIX):
            return False
        if meanwhile.session == 0:
            meanwhile.session = 1  # Once.
            driver.propose(meanwhile)
            driver.pass_on_proposed()
            driver.ask_read(7)
            driver.transfer(None)
            driver.change(8, Remove("n2"))
        return True

    node.storage.failing = fails
    device.let_go()

    assert [share.write for placed in owner.placements for share in placed.shares] == [*before, breaks, beside]
    assert owner.rejections == [(meanwhile, Reason.NOT_LEADER)]
    assert owner.reads == {7: None}
    assert (len(owner.transfers), list(owner.changes)) == (1, [8])
    assert ["rotating to a new segment" in reason for reason in owner.halts] == [True]


def test_what_the_same_step_answers_is_told_though_its_append_breaks_the_log() -> None:
    driver, owner = failing_next()
    append = actions.AppendRequests(1, 0, (blob(1),))
    with pytest.raises(LogReadOnly):
        driver.carry_out_step(events.Tick(), [append, actions.ReadReady(9, 5)])
    assert owner.reads == {9: 5}


def test_a_write_that_is_to_be_appended_after_an_action_that_breaks_the_log_is_refused() -> None:
    driver, owner = failing_next()
    breaks, left = blob(1), blob(2)
    with pytest.raises(LogReadOnly):
        driver.carry_out_step(events.Tick(), [actions.AppendRequests(1, 0, (write,)) for write in (breaks, left)])
    assert owner.rejections == [(left, Reason.NOT_LEADER)]


def test_writes_that_wait_when_the_program_has_a_bug_are_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    node, driver, _, owner = leading()
    first, waits = blob(30_000), blob(30_000)
    for write in (first, waits):
        driver.propose(write)
        driver.pass_on_proposed()

    def broken() -> None:
        raise ValueError("planted")

    monkeypatch.setattr(node.core, "_tick", broken)
    with pytest.raises(ValueError, match="planted"):
        driver.tick()
    assert [share.write for placed in owner.placements for share in placed.shares] == [first, waits]
    assert owner.rejections == []
    assert owner.halts == ["ValueError('planted')"]
