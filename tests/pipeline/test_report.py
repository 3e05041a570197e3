"""Reports: what is counted, and that the pages can be read. (The plots were looked at, too, in both themes.)"""

from __future__ import annotations

import io
import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from quire.log import Kind, LogOptions, Record, encode_blob, encode_frame, encode_records, encode_system
from quire.pipeline.jobs import Report, archive, report
from quire.pipeline.report.figures import NodeLag
from quire.pipeline.report.page import page_of
from quire.pipeline.report.plot import DARK, LIGHT, plot, shown_seconds
from quire.pipeline.report.report import BUCKETS, SHOWN_OPERATIONS
from quire.pipeline.report.tally import EpochStart
from quire.pipeline.source.options import SourceOptions
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
    assert told.peak == max(sum(each) for each in zip(*told.operations.values(), strict=True)) / 10


def test_leaderships_are_told_with_the_pause_before_each(made: tuple[Report, Path]) -> None:
    told, _ = made

    assert [(each.epoch, each.node_id, each.pause) for each in told.epochs] == [
        (1, "n1", 0),
        (2, "n3", 3 * SECOND),
        (4, "n2", 6 * SECOND),
    ]
    assert max(told.pauses_s) == 6


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

    assert (told.records, told.peak, told.epochs) == (0, 0, [])
    assert len(told.files) == 4


def test_a_log_of_one_moment_has_a_report(tmp_path: Path) -> None:
    with writing(tmp_path / "log") as log:
        append_and_flush(log, [["put", 1]])

    told = report(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "report"))

    assert told.operations == {"put": [1]}


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
