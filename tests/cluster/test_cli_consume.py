"""`quire consume` and `quire cursor` without nodes: which index may be committed, and what a command line may say."""

import asyncio
import os
import stat
import sys
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from quire.cluster.cli import output
from quire.cluster.cli.calls import consuming
from quire.cluster.cli.calls.consuming import Batches, Unfinished, print_records
from quire.cluster.cli.calls.handlers import SkippedRecords
from quire.cluster.cli.commands import app
from quire.cluster.cli.nodes.rows import NodeRow
from quire.cluster.cli.nodes.table import BEHIND_LISTED, cursor_lines
from quire.cluster.cli.output import Exit, OutputLost, say_all
from quire.cluster.client import Batch, Record, Status
from tests.ports import HOST, free_port


def delivered(*indices: int, next_index: int) -> Unfinished:
    unfinished = Unfinished()
    unfinished.deliver(indices, next_index)
    return unfinished


@pytest.mark.parametrize("order", list(permutations([3, 4, 7, 9])))
def test_what_is_committed_is_never_above_an_unfinished_record_and_never_below_a_finished_beginning(
    order: tuple[int, ...],
) -> None:
    unfinished, open_ones = delivered(3, 4, 7, 9, next_index=12), {3, 4, 7, 9}

    for index in order:
        assert unfinished.committable == min(open_ones)
        unfinished.finish(index)
        open_ones.remove(index)

    assert (unfinished.committable, unfinished.out_of_order) == (12, 0)


def test_a_record_that_no_handler_has_yet_is_unfinished() -> None:
    unfinished = delivered(3, 4, next_index=5)

    unfinished.finish(4)

    assert (unfinished.committable, unfinished.out_of_order) == (3, 1)


def test_a_later_batch_is_committed_only_after_the_earlier_one() -> None:
    unfinished = delivered(3, 4, next_index=6)
    unfinished.deliver([6, 8], 10)

    unfinished.finish(6)
    unfinished.finish(3)
    assert unfinished.committable == 4
    unfinished.finish(4)
    assert unfinished.committable == 8
    unfinished.finish(8)
    assert unfinished.committable == 10


def test_before_the_first_batch_nothing_is_finished() -> None:
    assert Unfinished().committable == 0


class Printed:
    """A batch, and whether it was committed."""

    def __init__(self) -> None:
        self.records = [Record(3, 1, 1, "records", 0, 0, True, {}, "x")]
        self.lost = 0
        self.is_committed = False

    async def commit(self) -> None:
        self.is_committed = True


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_batch_is_committed_at_the_end_only_if_stdout_took_it(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, begun, taken = Printed(), asyncio.Event(), asyncio.Event()

    async def say_all(lines: Iterable[str]) -> None:
        begun.set()
        await taken.wait()

    async def one() -> Batches:
        yield cast("Batch", batch)

    monkeypatch.setattr(consuming, "say_all", say_all)
    monkeypatch.setattr(consuming, "DRAIN_S", 60.0 if is_taken else 0.01)
    stdout = SimpleNamespace(is_given_up=False)
    monkeypatch.setattr(consuming, "stdout_queue", lambda: stdout, raising=False)
    task = asyncio.create_task(print_records(one()))
    await begun.wait()
    task.cancel()
    if is_taken:
        taken.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert batch.is_committed == is_taken
    assert stdout.is_given_up != is_taken


async def test_records_for_a_stdout_that_was_closed_at_the_start_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SimpleNamespace(encoding="utf-8", deliver=lambda _, done: done(None))
    monkeypatch.setattr(output, "stdout_queue", lambda: queue)
    await say_all(["x"])
    monkeypatch.setattr(sys, "__stdout__", None)

    with pytest.raises(OutputLost, match="bad file descriptor"):
        await say_all(["x"])


WRONG = [
    ("consume ''", "has no name"),
    ("consume mail/0-4", "quire consume mail --shard 0/4"),
    *((f"consume mail --shard {share}", "is not I/N") for share in ("0/0", "4/4", "9/4", "x", "-1/4", "1/65537", "1")),
    *((f"consume mail --start {start}", "neither first nor end nor an index") for start in ("nonsense", "-1", "1.5")),
    ("consume mail --until -1", "--until"),
    ("consume mail --hold-bytes -1", "--hold-bytes"),
    ("consume mail --exec true --max-in-flight 0", "--max-in-flight"),
    ("consume mail --exec true --max-in-flight 101", "--max-in-flight"),
    ("consume mail --exec true --attempts 0", "--attempts"),
    ("consume mail --exec true --handler-timeout 0", "--handler-timeout"),
    ("consume mail --exec true --handler-timeout nan", "is no number of seconds"),
    ("consume mail --exec ''", "--exec names no command"),
    ("consume mail --exec '\"'", "No closing quotation"),
    ("consume mail --exec no-such-command", "'no-such-command' is not a command that can be run"),
    ("consume mail --skip-failed failed", "need --exec"),
    ("consume mail --attempts 2", "need --exec"),
    ("consume mail --exec true --skip-failed absent/failed", "'absent/failed': no such file or directory"),
    ("consume mail --exec true --skip-failed /", "is a directory"),
    ("consume mail --exec true --skip-failed /dev/null", "is not a file that keeps what is written"),
    ("cursor show ''", "the name is empty"),
    ("cursor set mail -- -1", "INDEX"),
    ("cursor set mail x", "INDEX"),
    ("cursor reshard mail 0 2", "SHARDS"),
    ("cursor reshard mail 4 4", "are to differ"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_argument_is_a_sentence_and_exit_code_2_before_anything_is_consumed(line: str, said: str) -> None:
    ended = CliRunner().invoke(app, line, env={"QUIRE_SERVER": f"{HOST}:1", "COLUMNS": "200"})

    assert (ended.exit_code, ended.stdout) == (Exit.USAGE, "")
    assert said in ended.stderr


@pytest.mark.parametrize("line", ["consume mail", "consume mail --exec true", "cursor list", "cursor set mail 3"])
def test_without_a_server_it_is_unavailable(line: str) -> None:
    ended = CliRunner().invoke(app, f"{line} --server {HOST}:{free_port()} --timeout 0.2")

    assert (ended.exit_code, ended.stdout) == (Exit.UNAVAILABLE, "")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_skipped_records_have_the_mode_of_a_log_s_file_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        SkippedRecords(tmp_path / "failed").add(7, b"{}\n")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "failed").stat().st_mode) == 0o640


def test_a_line_of_skipped_records_that_a_crash_cut_short_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "failed").write_text('{"index":1}\n{"ind')

    SkippedRecords(tmp_path / "failed").add(7, b'{"index":7}\n')

    assert (tmp_path / "failed").read_text() == '{"index":1}\n{"ind\n{"index":7}\n'


def status(count: int, *behind: tuple[str, int, float], applied_index: int = 9) -> NodeRow:
    rows = [{"name": name, "index": 0, "records": records, "seconds": s, "lost": 0} for name, records, s in behind]
    document = {"applied_index": applied_index, "cursors": {"count": count, "behind": rows}}
    return NodeRow("a:1", cast("Status", document))


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (NodeRow("a:1", None), []),
        (NodeRow("a:1", cast("Status", {"applied_index": 3})), []),
        (status(0), []),
        (status(1_200), ["cursors: 1,200, none behind"]),
        (status(3, ("mail", 1_234, 12.3)), ["cursors: 3, 1 behind: mail 1,234 records, 12 s"]),
        (
            status(9, *((name, 5, 1.0) for name in "abcd")),
            ["cursors: 9, 4 behind: a 5 records, 1 s; b 5 records, 1 s; c 5 records, 1 s; ..."],
        ),
    ],
)
def test_the_line_about_cursors_names_those_that_are_furthest_behind(row: NodeRow, lines: list[str]) -> None:
    older = status(7, applied_index=1)

    assert cursor_lines({"n1": row}) == lines
    assert cursor_lines({"n1": older, "n2": status(8)}) == ["cursors: 8, none behind"]


def test_the_line_about_cursors_does_not_count_beyond_what_a_status_lists() -> None:
    row = status(50, *((f"c{number}", 5, 1.0) for number in range(BEHIND_LISTED)))

    assert cursor_lines({"n1": row})[0].startswith("cursors: 50, 10 or more behind: c0 5 records, 1 s; ")
