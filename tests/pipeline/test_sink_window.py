"""The sink's commit at the borders of its window: drivers that die, blocks of mixed sizes, late answers."""

import pytest

from quire.pipeline.sink import spool
from quire.pipeline.sink.errors import CommandsRefused, SessionMoved
from quire.pipeline.sink.state import SinkState
from tests.pipeline.fake_cluster import Cut, FakeCluster, RefusingMachine
from tests.pipeline.test_sink_commit import SinkDisk, Spark


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two commands: a partition has several, and a batch several messages."""
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 2)


@pytest.mark.parametrize(("window", "messages"), [(2, 2), (3, 3), (4, 4), (8, 5), (9, 5)])
def test_a_driver_that_dies_with_a_window_unanswered_leaves_every_reply_to_the_next(window: int, messages: int) -> None:
    """Each command is refused, so a reply that nobody asks for is missing in the count."""
    cluster = FakeCluster(machine=RefusingMachine(42), window=window)
    cluster.late = True
    spark, rows = Spark(SinkDisk(), cluster), [[["add", 13]] * (window - 1), [["add", 13]], [["add", 13]] * window]
    cluster.cut_after = messages
    with pytest.raises(Cut):
        spark.write(0, rows)
    assert (cluster.most_unanswered, len(cluster.executed)) == (window, window), "exactly a window"

    with pytest.raises(CommandsRefused, match=f"refused {2 * window} of its commands"):
        spark.write(0, rows)
    assert len(cluster.executed) == 2 * window
    assert cluster.most_unanswered == window


@pytest.mark.parametrize("window", [2, 3, 5, 8])
@pytest.mark.parametrize("sizes", [(1, 2, 2, 1, 2), (2, 1, 1, 2, 1, 2), (5, 1, 4)])
def test_blocks_of_mixed_sizes_never_exceed_the_window_and_fill_it(window: int, sizes: tuple[int, ...]) -> None:
    cluster = FakeCluster(window=window)
    cluster.late = True
    spark = Spark(SinkDisk(), cluster)
    rows = [[["add", size]] * size for size in sizes]

    spark.write(0, rows)

    assert [command for _, command in cluster.executed] == [command for part in rows for command in part]
    block = max(1, window // 4)
    assert window - block < cluster.most_unanswered <= window


def test_replies_that_no_answer_could_hold_are_counted_though_the_driver_dies_and_the_window_passes() -> None:
    cluster = FakeCluster(window=2)
    cluster.answer_results = 0
    spark, rows = Spark(SinkDisk(), cluster), [[["add", 1]] * 6]
    cluster.cut_after = 5
    with pytest.raises(Cut):
        spark.write(0, rows)

    with pytest.raises(CommandsRefused, match=r"refused 0 of its .* the replies to 6 more are gone"):
        spark.write(0, rows)
    assert [command for _, command in cluster.executed] == rows[0]


def test_one_command_of_another_writer_after_the_plan_s_last_is_told_and_nothing_is_sent() -> None:
    cluster = FakeCluster()
    spark, rows = Spark(SinkDisk(), cluster), [[["add", 1], ["add", 2]]]
    cluster.cut_after = 1
    with pytest.raises(Cut):
        spark.write(0, rows)
    session = SinkState(spark.disk.directory_of_life()).holder()
    assert session is not None
    cluster.send(session, 3, [["add", 3]])

    with pytest.raises(SessionMoved):
        spark.write(0, rows)
    assert len(cluster.executed) == 3
