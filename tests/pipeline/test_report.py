"""Reports: what is counted, and that the pages can be read. (The plots were looked at, too, in both themes.)"""

from __future__ import annotations

import io
import json
import random
from contextlib import closing
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from typer.testing import CliRunner

from quire.log import Kind, LogOptions, Record, encode_blob, encode_frame, encode_records, encode_system
from quire.pipeline.cli import app
from quire.pipeline.jobs import Report, archive, report
from quire.pipeline.pieces import whole_frames
from quire.pipeline.report.figures import NodeLag
from quire.pipeline.report.page import facts, page_of
from quire.pipeline.report.plot import DARK, LIGHT, panels, plot, shown_seconds
from quire.pipeline.report.report import BUCKETS, SHOWN_OPERATIONS
from quire.pipeline.report.tally import EpochStart, Tally, TallyPiece, tally
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.reading import open_origin
from tests.pipeline.logs import SECOND, START, append_and_flush, every_kind, writing
from tests.pipeline.test_archive import expire

OPERATIONS = ["put", "get", "incr", "cas", "delete"]


def busy_log(path: Path) -> None:
    """Ten minutes of a cluster with commands of five operations, in which leaders changed twice, with pauses."""
    chance, now = random.Random(1), START
    with writing(path, LogOptions(segment_bytes=1 << 16)) as log:

        def add(kind: Kind, payload: bytes, count: int, epoch: int) -> None:
            tail = log.tail
            frame = encode_frame(
                index=tail.index,
                epoch=epoch,
                timestamp=now,
                count=count,
                prev_crc32c=tail.crc32c,
                kind=kind,
                payload=payload,
            )
            log.append_frames(frame)

        for epoch, node, seconds in ((1, "n1", 200), (2, "n3", 250), (4, "n2", 150)):
            add(Kind.SYSTEM, encode_system({"type": "epoch_start", "node_id": node}), 1, epoch)
            for second in range(seconds):
                now += SECOND
                count = 20 + second % 40
                operations = chance.choices(OPERATIONS, weights=[50, 30, 15, 4, 1], k=count)
                add(Kind.RECORDS, encode_records([[each, "key", 7] for each in operations]), count, epoch)
            now += 3 * SECOND * epoch
        log.flush()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("busy") / "n1"
    busy_log(path)
    return path


@pytest.fixture(scope="module")
def made(busy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("report")
    return report(SourceOptions(path=str(busy)), str(folder)), folder


def test_records_are_counted_by_operation_and_time(made: tuple[Report, Path]) -> None:
    told, _ = made

    assert list(told.operations) == ["put", "get", "incr", "cas", "delete", "system"]
    assert sum(map(sum, told.operations.values())) == told.records == told.to_index
    assert told.operations["system"] == [
        1 if place in (0, 20, 45) else 0 for place in range(len(told.operations["system"]))
    ]
    assert told.bucket_s == 10
    assert len(told.pauses_s) <= BUCKETS
    assert told.fullest_second == 20 + 39


def test_leaderships_are_told_with_the_pause_of_those_who_wrote(made: tuple[Report, Path]) -> None:
    told, _ = made

    assert [(each.epoch, each.node_id, each.pause) for each in told.epochs] == [
        (1, "n1", None),
        (2, "n3", 4 * SECOND),
        (4, "n2", 7 * SECOND),
    ]
    assert max(told.pauses_s) == 7


MILLISECOND = 1000


class History:
    """A log of commands, leaderships and other records of the cluster, at the times that the test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self._frames: list[tuple[int, int, Kind, bytes, int]] = []
        self._epoch = 0

    def steady(self, frames: int, every: int, records: int = 1) -> None:
        """Frames of so many commands, `every` microseconds one; the first comes after that time."""
        for _ in range(frames):
            self.idle(every)
            payload = encode_records([["put", 1]] * records)
            self._frames.append((self.now, self._epoch, Kind.RECORDS, payload, records))

    def idle(self, microseconds: int) -> None:
        self.now += microseconds

    def lead(self, node: str) -> None:
        self._epoch += 1
        self._system(type="epoch_start", node_id=node)

    def close_session(self) -> None:
        """What a leader writes without any writer: a session expired."""
        self._system(type="close_sessions", sessions=[1])

    def _system(self, **fields: Any) -> None:
        self._frames.append((self.now, self._epoch, Kind.SYSTEM, encode_system(fields), 1))

    def written(self) -> SourceOptions:
        with writing(self.path, LogOptions(segment_bytes=1 << 16)) as log:
            for now, epoch, kind, payload, count in self._frames:
                tail = log.tail
                frame = encode_frame(
                    index=tail.index,
                    epoch=epoch,
                    timestamp=now,
                    count=count,
                    prev_crc32c=tail.crc32c,
                    kind=kind,
                    payload=payload,
                )
                log.append_frames(frame)
            log.flush()
        return SourceOptions(path=str(self.path))

    def counted(self, bucket: int = SECOND) -> Tally:
        """What a report counts of it; the plots would take seconds."""
        options = self.written()
        total = Tally(START, bucket)
        with closing(open_origin(options)) as origin:
            partitions = whole_frames(origin, options, *origin.bounds())
        for partition in partitions:
            total.add(tally(TallyPiece(options, partition, START, bucket)))
        return total


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "log")
    made.lead("n1")
    return made


def test_idle_time_between_two_loads_is_no_pause(history: History) -> None:
    history.steady(500, 10 * MILLISECOND)
    for _ in range(3):
        history.idle(247 * SECOND)
        history.close_session()
    history.steady(500, 10 * MILLISECOND)

    told = history.counted()

    assert told.pauses == {}


def test_a_failover_under_load_is_a_pause_though_the_cluster_was_idle_before(history: History) -> None:
    history.idle(741 * SECOND)
    history.steady(300, 10 * MILLISECOND)
    history.idle(790 * MILLISECOND)
    history.lead("n2")
    history.steady(300, 10 * MILLISECOND)

    told = history.counted()

    assert max(told.pauses.values()) == 800 * MILLISECOND
    assert [(each.node_id, each.pause) for each in told.epochs] == [("n1", None), ("n2", 800 * MILLISECOND)]


def test_two_elections_in_one_outage_are_one_pause_which_may_be_long(history: History) -> None:
    history.steady(300, 10 * MILLISECOND)
    history.idle(300 * SECOND)
    history.lead("n2")
    history.idle(4 * SECOND)
    history.lead("n2")
    history.steady(300, 10 * MILLISECOND)

    told = history.counted()

    assert [each.pause for each in told.epochs] == [None, 304_010 * MILLISECOND, 304_010 * MILLISECOND]


def test_a_stall_under_load_is_a_pause_without_an_election(history: History) -> None:
    history.steady(300, 10 * MILLISECOND)
    history.idle(SECOND)
    history.close_session()
    history.idle(SECOND)
    history.steady(300, 10 * MILLISECOND)

    assert max(history.counted().pauses.values()) == 2010 * MILLISECOND


def test_an_election_of_an_idle_cluster_is_listed_and_is_no_pause(history: History) -> None:
    history.steady(300, 10 * MILLISECOND)
    history.idle(100 * SECOND)
    history.lead("n2")
    history.idle(100 * SECOND)
    history.steady(300, 10 * MILLISECOND)

    told = history.counted()

    assert [(each.node_id, each.pause) for each in told.epochs] == [("n1", None), ("n2", None)]
    assert told.pauses == {}


def test_a_slow_writer_does_not_pause(history: History) -> None:
    for node in ("n2", "n3"):
        history.steady(100, 10 * SECOND)
        history.lead(node)

    told = history.counted()

    assert told.pauses == {}
    assert [each.pause for each in told.epochs] == [None, None, None]


@pytest.mark.parametrize("bucket", [SECOND // 10, SECOND, 60 * SECOND, 7 * 86_400 * SECOND])
def test_the_fullest_second_is_the_same_in_buckets_of_any_width(history: History, bucket: int) -> None:
    history.idle(700 * MILLISECOND)
    history.steady(100, 10 * MILLISECOND, records=7)
    history.steady(100, 20 * MILLISECOND, records=7)

    assert history.counted(bucket).activity.fullest == 700


def test_any_split_of_a_log_counts_the_same() -> None:
    chance = random.Random(5)
    for _ in range(40):
        frames, whole = _random_frames(chance), Tally(START, SECOND)
        whole.add(_counted(frames))
        sums = [Tally(START, SECOND)]
        cuts = sorted(chance.randrange(len(frames) + 1) for _ in range(chance.choice([1, 3, 40])))
        parts = [_counted(frames[begin:end]) for begin, end in pairwise([0, *cuts, len(frames)])]
        while parts:  # As the pages of a piece are added, and the pieces of a log: in groups.
            group = Tally(START, SECOND)
            for part in parts[: chance.choice([1, 2, 9])]:
                group.add(part)
                parts = parts[1:]
            sums[0].add(group)

        assert sums[0].activity.fullest == whole.activity.fullest == _fullest_second(frames)
        assert (sums[0].pauses, sums[0].epochs) == (whole.pauses, whole.epochs)
        assert whole.pauses


def _random_frames(chance: random.Random) -> list[tuple[int, int]]:
    """(timestamp, commands), or 0 commands for an election: mostly steady, with pauses and outages."""
    now, frames = START, []
    for _ in range(chance.choice([50, 200, 500])):
        now += chance.choice([1, 5, 9, 12]) * MILLISECOND
        if chance.random() < 0.02:
            now += chance.choice([100, 800, 2000]) * MILLISECOND
        if chance.random() < 0.02:
            frames.append((now, 0))
        frames.append((now, chance.randrange(1, 9)))
    for _ in range(40):
        now += 10 * MILLISECOND
        frames.append((now, 1))
    now += SECOND
    return frames + [(now + each * 10 * MILLISECOND, 1) for each in range(40)]


def _counted(frames: list[tuple[int, int]]) -> Tally:
    counted = Tally(START, SECOND)
    for timestamp, commands in frames:
        if commands:
            counted.activity.note(timestamp, commands)
        else:
            counted.epochs.append(EpochStart(timestamp, "n", 0, timestamp, None))
    return counted


def _fullest_second(frames: list[tuple[int, int]]) -> int:
    slots = [(timestamp // 10_000, commands) for timestamp, commands in frames]
    return max(sum(n for at, n in slots if slot <= at < slot + 100) for slot in {slot for slot, _ in slots})


def test_the_same_is_counted_from_an_archive_and_the_log_behind_it(busy: Path, tmp_path: Path, made: Any) -> None:
    log = tmp_path / "log"
    busy_log(log)
    archive(SourceOptions(path=str(log)), str(tmp_path / "archive"))
    assert expire(log, 10_000) > 0

    told = report(SourceOptions(path=str(log), archive=str(tmp_path / "archive")), str(tmp_path / "report"))

    unlike = {"files": [], "seconds": 0.0}
    assert told.document() | unlike == made[0].document() | unlike


def test_what_is_no_command_is_told_as_what_it_is(tmp_path: Path) -> None:
    with writing(tmp_path / "log") as log:
        every_kind(log)
        log.append(
            [Record(["put", 1], {"trace": "1"}), b"raw", ["a-very-long-name-of-an-operation"], [], [7], None], epoch=2
        )
        log.append_payload(encode_blob(b"x", None), count=1, kind=Kind.BLOB, epoch=2)
        log.flush()

    told = report(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "report"))

    totals = {name: sum(counts) for name, counts in told.operations.items()}
    assert totals["set"] == 40
    assert totals["blob"] == 3
    assert totals["system"] == 2
    assert sum(totals.values()) == told.records


@pytest.mark.parametrize(("kinds", "others"), [(SHOWN_OPERATIONS, 0), (SHOWN_OPERATIONS + 1, 1)])
def test_so_many_operations_have_a_name_of_their_own(tmp_path: Path, kinds: int, others: int) -> None:
    with writing(tmp_path / "log") as log:
        append_and_flush(log, [[f"verb{each}"] for each in range(kinds) for _ in range(kinds - each)])

    told = report(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "report"))

    assert [name for name in told.operations if name != "other"] == [f"verb{each}" for each in range(SHOWN_OPERATIONS)]
    assert sum(told.operations.get("other", [])) == others


def test_an_empty_log_has_a_report(tmp_path: Path) -> None:
    with writing(tmp_path / "log"):
        pass

    told = report(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "report"))

    assert (told.records, told.fullest_second, told.epochs) == (0, 0, [])
    assert len(told.files) == 4
    assert not any("1970" in text or name.startswith("throughput") for name, text in facts(told))


def test_a_log_of_one_moment_has_a_report(tmp_path: Path) -> None:
    with writing(tmp_path / "log") as log:
        append_and_flush(log, [["put", 1]])

    told = report(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "report"))

    assert told.operations == {"put": [1]}
    shown = dict(facts(told))
    assert shown["throughput, mean"] == "unknown"
    assert shown["throughput, highest"] == "unknown: the log is shorter than a second, with 1 commands"


class _Page(HTMLParser):
    """What a page asks for from elsewhere, and what its cells hold."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_page_needs_nothing_but_itself_and_holds_both_themes(made: tuple[Report, Path]) -> None:
    told, folder = made
    page = _Page()
    page.feed((folder / "report.html").read_text())

    assert len(page.links) == 2
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert f"{told.records:,}" in [cell.strip() for cell in page.cells]
    assert json.loads((folder / "report.json").read_text())["records"] == told.records


def test_a_name_from_the_log_is_no_markup(made: tuple[Report, Path]) -> None:
    told = Report(**{name: getattr(made[0], name) for name in Report.__slots__})
    told.operations = {"<script>": told.operations["put"]}

    assert "<script>" not in page_of(told, b"", b"")


def test_only_another_node_is_drawn_as_another_and_no_axis_is_drawn_without_data(
    history: History, tmp_path: Path
) -> None:
    history.steady(10, SECOND)
    history.lead("n1")
    history.steady(10, SECOND)
    history.lead("n2")
    throughput, pauses, leaders = panels(report(history.written(), str(tmp_path / "report")), LIGHT).axes

    assert [line.get_linestyle() for line in pauses.lines] == [":", "--"]
    assert ([each.get_text() for each in pauses.texts], list(pauses.get_yticks())) == (["no pause"], [])
    assert len(throughput.get_yticks()) > 0
    assert [each.get_text() for each in leaders.get_yticklabels()] == ["n1", "n2"]

    with writing(tmp_path / "empty"):
        pass
    empty = report(SourceOptions(path=str(tmp_path / "empty")), str(tmp_path / "nothing"))
    for axes in panels(empty, LIGHT).axes:
        assert [each.get_text() for each in axes.texts] in (["no data"], ["no pause"])
        assert (list(axes.get_xticks()), list(axes.get_yticks())) == ([], [])


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_plot_has_its_theme_s_paper_and_no_text_beyond_its_edge(made: tuple[Report, Path], theme: Any) -> None:
    told = Report(**{name: getattr(made[0], name) for name in Report.__slots__})
    told.lag = [NodeLag("127.0.0.1:7001", "leader", 0, 0, 0.0), NodeLag("n2", "unknown", None, None, None)]
    told.epochs = [
        *told.epochs,
        *[EpochStart(9 + each, "n1", 1, int(told.start * 1e6) + each, 0) for each in range(20)],
    ]

    shown = plot(told, theme)
    image = matplotlib.image.imread(io.BytesIO(shown), format="png")

    height, width, _ = image.shape
    assert width > 1000
    assert height > 1000
    paper = [int(theme.paper[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    edge = [*image[0], *image[-1], *image[:, 0], *image[:, -1]]
    assert all(abs(pixel[:3] - paper).max() < 0.01 for pixel in edge)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.5, "0.5 s"), (60, "1 min"), (90, "90 s"), (7200, "2 h"), (86400, "1 d")]
)
def test_a_duration_is_told_in_its_unit(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown


def test_the_lines_of_a_report_are_in_columns(busy: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["report", str(tmp_path / "report"), "--path", str(busy)])

    lines = [line for line in run.output.splitlines() if str(tmp_path) not in line]
    width = len("longest pause of writers")
    assert "longest pause of writers" in run.output
    assert all(line[width] == " " and line[width + 1] != " " for line in lines)
