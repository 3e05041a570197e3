"""What a node has not received, and what it has not applied: two lags, each in records and seconds."""

import pytest

from quire.log import Log, Tail, time_since_boot, wall_clock
from quire.log.simulated import Disk
from quire.replication import Replica
from quire.replication.core import Core
from quire.replication.lag import (
    MAX_ENDS,
    NO_APPLY_LAG,
    NO_LAG,
    ApplyLag,
    Ends,
    Lag,
    Position,
    apply_lag_of,
    first_lacking,
    lacking_bytes,
    lag_of,
)
from tests.log.histories import open_log
from tests.replication.loopback import until
from tests.replication.running import OPTIONS, Cluster, alone, cluster_of

SECOND = 1_000_000
DIGEST = bytes(16)


def log_of(count: int) -> Log:
    """A durable log with so many frames of one record."""
    log = open_log(Disk())
    for number in range(count):
        log.append([number])
    log.flush()
    return log


def test_an_apply_lag_counts_records_and_the_seconds_since_the_first_that_is_not_applied() -> None:
    log = log_of(3)
    clock = log.reader.frame(1).header.timestamp + 4 * SECOND

    assert apply_lag_of(log, 1, 3, clock) == ApplyLag(2, 4.0)
    assert apply_lag_of(log, 3, 3, clock) == apply_lag_of(log, 3, 2, clock) == NO_APPLY_LAG


def test_an_apply_lag_in_seconds_is_never_below_zero() -> None:
    log = log_of(1)
    assert apply_lag_of(log, 0, 1, log.reader.frame(0).header.timestamp - SECOND) == ApplyLag(1, 0.0)


def test_of_a_frame_that_cannot_be_read_the_apply_lag_is_counted_all_the_same() -> None:
    log = log_of(2)
    clock = log.durable_tail.timestamp + SECOND
    log.close()
    assert apply_lag_of(log, 0, 2, clock) == ApplyLag(2, 1.0)


def test_of_a_log_that_an_install_left_empty_a_node_lacks_what_the_snapshot_ends_with() -> None:
    # Its leader is elected before it has flushed a record of its own: reading there would halt it.
    log = log_of(2)
    log.reset(Tail(53, 3, 7 * SECOND, 1), members_index=0)

    assert (first_lacking(log, 2), lacking_bytes(log, 2)) == (7 * SECOND, 0)
    assert lag_of(log, 2, 9 * SECOND) == Lag(51, 0, 2.0)
    assert apply_lag_of(log, 2, 53, 9 * SECOND) == ApplyLag(51, 2.0)


async def test_a_leader_and_each_other_node_has_an_apply_lag_of_its_own() -> None:
    async with alone() as leader:
        end = leader.log.durable_index
        clock = leader.log.reader.frame(end - 1).header.timestamp + 3_600 * SECOND
        assert leader.replica.lags.own(clock).records == 0
        assert leader.replica.lags.own_apply(end - 1, clock) == ApplyLag(1, 3_600.0)
        assert leader.replica.lags.own_apply(end, clock) == NO_APPLY_LAG
        behind = Position(durable_index=end - 1, applied_index=end - 1, digest=DIGEST, heard_at=0)
        late = Position(durable_index=end, applied_index=end - 1, digest=DIGEST, heard_at=0)

        def both(position: Position) -> tuple[int, int]:
            replica = leader.replica
            return replica.lags.of(position, clock).records, replica.lags.apply_of(position, clock).records

        assert (both(behind), both(late)) == ((1, 0), (0, 1))


async def test_a_lag_is_known_from_the_present_leader_s_report_of_the_last_election_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not Cluster("n1", "n2", "n3").make("n3").replica.lags.is_known
    async with cluster_of("n1", "n2", "n3") as cluster:
        replica = cluster["n3"].replica
        await until(lambda: replica.lags.is_known)

        with monkeypatch.context() as other:
            other.setattr(Core, "leader_id", "n2")
            assert is_known(replica) is False, "it is another leader's report"
        assert is_known(replica)
        with monkeypatch.context() as later:
            now = time_since_boot() + 2 * OPTIONS.election_timeout_us
            later.setattr(replica.lags, "_now", lambda: now)
            assert is_known(replica) is False, "that leader may have written for long since"
        assert is_known(replica)


def test_an_end_has_been_lacking_since_it_was_first_seen_and_no_longer_if_it_was_truncated() -> None:
    ends = Ends()
    for number in range(1, 11):
        ends.note(10 * number, number * SECOND)
        ends.note(10 * number, number * SECOND + 1)

    assert [ends.lacking_s(index, 20 * SECOND) for index in (0, 9, 10, 99, 100)] == [19.0, 19.0, 18.0, 10.0, 0.0]
    ends.note(75, 11 * SECOND)
    assert [ends.lacking_s(index, 20 * SECOND) for index in (69, 70, 74, 75)] == [13.0, 9.0, 9.0, 0.0]


@pytest.mark.parametrize("count", [MAX_ENDS, MAX_ENDS + 1, 10 * MAX_ENDS])
def test_of_many_ends_some_are_forgotten_and_none_is_lacking_for_longer_than_it_is(count: int) -> None:
    ends = Ends()
    for number in range(1, count + 1):
        ends.note(number, number)

    assert ends.lacking_s(0, count) == (count - 1) / SECOND
    assert ends.lacking_s(count - 1, count + SECOND) == 1.0
    for index in range(0, count, count // 50):
        lacking = ends.lacking_s(index, count)
        assert (count - index - 1) / 2 / SECOND <= lacking <= (count - index - 1) / SECOND


async def test_a_clock_that_went_back_makes_no_lag_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    back, later = wall_clock() - 3_600 * SECOND, time_since_boot() + 60 * SECOND
    async with cluster_of("n1", "n2", "n3") as cluster:
        leader, follower = cluster["n1"].replica, cluster["n3"].replica
        await until(lambda: leader.core.leads and follower.lags.is_known and follower.core.commit_index > 0)
        await until(lambda: leader.core.commit_index == cluster["n1"].log.durable_index)
        await until(lambda: follower.core.commit_index == cluster["n3"].log.durable_index)
        end = cluster["n3"].log.durable_index
        position = Position(durable_index=end - 1, applied_index=end - 1, digest=DIGEST, heard_at=0)
        # Each knows the end of the leader's log from a report.
        await until(lambda: follower.lags.own_apply(end - 1, 0).seconds > 0 and leader.lags.of(position, 0).seconds > 0)
        with monkeypatch.context() as time:
            for replica in (leader, follower):
                time.setattr(replica.lags, "_now", lambda: later)
            assert follower.lags.own(back).seconds > 30, "it has not heard its leader for so long"
            assert follower.lags.own_apply(end - 1, back).seconds > 30
            assert follower.lags.most_unapplied(end - 1, back).seconds > 30
            assert leader.lags.of(position, back).seconds > 30
            late = position._replace(durable_index=end)
            assert leader.lags.apply_of(late, back).seconds > 30
            assert leader.lags.of(late, back) == NO_LAG


async def test_what_may_be_committed_though_a_follower_has_not_heard_of_it_counts_as_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of("n1", "n2", "n3") as cluster:
        follower, log = cluster["n3"].replica, cluster["n3"].log
        await until(lambda: follower.core.commit_index == log.durable_index > 0)
        end = log.durable_index
        monkeypatch.setattr(Core, "commit_index", end - 1)  # Its stream hangs, while its link goes on.
        assert follower.lags.own_apply(end - 1, 0) == NO_APPLY_LAG
        assert follower.lags.most_unapplied(end - 1, 0).records == 1


def is_known(replica: Replica[None]) -> bool:
    return replica.lags.is_known
