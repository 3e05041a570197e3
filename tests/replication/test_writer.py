"""Rule 2's queue by itself: what may begin while the disk is busy."""

from quire.replication.core import Promise
from quire.replication.core.messages import Last, VoteRequest
from quire.replication.core.writer import FollowLeader, HandleVote, Job, TruncateLog, WriteFrames, Writer

CONSIDER = HandleVote("n2", VoteRequest(Promise(3, "n2", 7), Last(1, 1)))
ADOPT = FollowLeader(Promise(3, "n2", 7))
CUT = TruncateLog(1, 5)
WRITE = WriteFrames(1, b"frames")


def flushing() -> Writer:
    """A writer whose flush is running."""
    writer = Writer()
    writer.appended()
    assert writer.take_flush(0)
    return writer


def test_jobs_are_taken_in_the_order_they_came() -> None:
    writer = Writer()
    jobs: list[Job] = [WRITE, CUT, CONSIDER, ADOPT]
    for job in jobs:
        writer.submit(job)

    assert [writer.take() for _ in range(5)] == [*jobs, None]


def test_frames_are_appended_beside_a_flush_and_nothing_else_is() -> None:
    for job in (CONSIDER, ADOPT, CUT):
        writer = flushing()
        writer.submit(WRITE)
        writer.submit(job)

        assert writer.take() == WRITE
        assert writer.take() is None
        writer.end_flush()
        assert writer.take() == job


def test_frames_queued_after_a_promise_wait_with_it_for_the_flush() -> None:
    writer = flushing()
    writer.submit(CONSIDER)
    writer.submit(WRITE)

    assert writer.take() is None
    writer.end_flush()
    assert writer.take() == CONSIDER


def test_nothing_begins_while_a_promise_or_a_truncation_goes_to_disk() -> None:
    for job in (CONSIDER, ADOPT, CUT, WRITE):
        writer = Writer()
        writer.appended()
        writer.begin_exclusive(0)
        writer.submit(job)

        assert writer.take() is None
        assert not writer.take_flush(0)
        writer.end_exclusive()
        assert writer.take() == job


def test_a_flush_begins_only_when_something_was_appended_since_the_last() -> None:
    writer = Writer()
    assert not writer.take_flush(0)
    writer.appended()
    assert writer.take_flush(0)
    writer.end_flush()
    assert not writer.take_flush(0)


def test_an_append_while_a_flush_runs_needs_another_flush() -> None:
    writer = flushing()
    writer.appended()

    assert not writer.take_flush(0)
    writer.end_flush()
    assert writer.take_flush(0)


def test_a_leader_appends_only_when_nothing_is_queued_and_the_disk_is_free() -> None:
    writer = Writer()
    admitted = [writer.may_append]
    writer.submit(CONSIDER)
    admitted.append(writer.may_append)
    writer.take()
    writer.begin_exclusive(0)
    admitted.append(writer.may_append)
    writer.end_exclusive()
    admitted.append(writer.may_append)

    assert admitted == [True, False, False, True]
    assert not flushing().may_append


def test_a_writer_is_quiet_only_when_no_flush_is_due_or_on_its_way() -> None:
    writer = Writer()
    quiet = [writer.is_quiet]
    writer.appended()
    quiet.append(writer.is_quiet)
    writer.take_flush(0)
    quiet.append(writer.is_quiet)
    writer.end_flush()
    quiet.append(writer.is_quiet)

    assert quiet == [True, False, False, True]


def test_a_job_that_waits_is_known_by_its_kind_and_node_and_one_that_was_taken_is_not() -> None:
    writer = Writer()
    writer.submit(ADOPT)
    assert (writer.has_job(FollowLeader, "n2"), writer.has_job(FollowLeader)) == (True, True)
    assert (writer.has_job(FollowLeader, "n3"), writer.has_job(HandleVote, "n2")) == (False, False)
    writer.take()
    assert not writer.has_job(FollowLeader, "n2")


def test_a_disk_hangs_if_one_operation_takes_longer_than_the_timeout() -> None:
    # Rule 11: a hung flush ends a leadership as a failed one does.
    writer = Writer()
    writer.appended()
    writer.take_flush(1_000)
    assert not writer.hangs(1_500, 500)
    assert writer.hangs(1_501, 500)
    writer.end_flush()
    assert not writer.hangs(9_999, 500)
    writer.begin_exclusive(10_000)
    assert not writer.hangs(10_500, 500)
    assert writer.hangs(10_501, 500)
    writer.end_exclusive()
    assert not writer.hangs(99_999, 500)


def expiring() -> Writer:
    """A writer with a segment that is being removed, and more to remove."""
    writer = Writer()
    writer.expiry_due()
    assert writer.may_expire()
    writer.begin_expiry(0)
    return writer


def test_frames_are_appended_beside_the_removal_of_a_segment_and_nothing_else_begins() -> None:
    for job in (CONSIDER, ADOPT, CUT):
        writer = expiring()
        writer.submit(WRITE)
        writer.submit(job)

        assert writer.take() == WRITE
        writer.appended()
        assert writer.take() is None
        assert not writer.take_flush(0)
        writer.end_expiry(is_over=False)
        assert writer.take() == job


def test_no_segment_is_removed_beside_a_flush_or_a_promise() -> None:
    writer = flushing()
    writer.expiry_due()
    assert not writer.may_expire()
    writer.end_flush()
    writer.begin_exclusive(0)
    assert not writer.may_expire()
    writer.end_exclusive()
    assert writer.may_expire()


def test_flushes_and_removals_take_turns_while_both_are_due() -> None:
    writer = expiring()
    for _ in range(3):
        writer.appended()
        writer.end_expiry(is_over=False)
        assert not writer.may_expire()
        assert writer.take_flush(0)
        writer.appended()
        writer.end_flush()
        assert writer.may_expire()
        writer.begin_expiry(0)
    writer.end_expiry(is_over=True)
    assert not writer.may_expire()
