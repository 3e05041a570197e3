"""The report's plots: throughput by operation, pauses and leaders over time, lag by node, in a light or dark theme."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from .figures import Report

WIDTH_INCHES = 11.0
PANEL_INCHES = 2.9
_dates: Any = matplotlib.dates  # The module has no types.
PAD_INCHES = 0.12
DPI = 110
LABELLED_LEADERS = 12
"""More labels would overlap."""

# The palette of Okabe and Ito, which colour-blind people can distinguish; the last colour is for `other`.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C"]


class Theme(NamedTuple):
    """Colours of a page."""

    name: str
    paper: str
    ink: str
    faint: str
    grid: str
    alarm: str


LIGHT = Theme("light", "#ffffff", "#1b1f24", "#57606a", "#d8dee4", "#B3261E")
DARK = Theme("dark", "#14181d", "#e6edf3", "#9da7b3", "#343b44", "#FF8A80")


def plot(report: Report, theme: Theme) -> bytes:
    """The plots as a PNG."""
    output = io.BytesIO()
    panels(report, theme).savefig(output, format="png", dpi=DPI, facecolor=theme.paper)
    return output.getvalue()


def panels(report: Report, theme: Theme) -> Figure:
    """The plots, one below the other."""
    count = 4 if report.lag else 3
    layout = ConstrainedLayoutEngine(w_pad=PAD_INCHES, h_pad=PAD_INCHES)
    figure = Figure(figsize=(WIDTH_INCHES, 0.6 + PANEL_INCHES * count), facecolor=theme.paper, layout=layout)
    FigureCanvasAgg(figure)
    axes: list[Axes] = figure.subplots(count, 1, squeeze=False)[:, 0].tolist()
    for each in axes:
        _dress(each, theme)
    _throughput(axes[0], report, theme)
    _pauses(axes[1], report, theme)
    _leaders(axes[2], report, theme)
    for each in axes[:3]:
        if report.frames:
            _time_axis(each, report)
        else:
            each.set_xticks([])
    if report.lag:
        _lag(axes[3], report, theme)
    return figure


def _dress(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.faint, labelcolor=theme.ink, labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(theme.faint)


def _title(axes: Axes, theme: Theme, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", color=theme.ink, fontsize=11, fontweight="bold")
    axes.set_ylabel(unit, color=theme.ink, fontsize=9)


def _no_data(axes: Axes, theme: Theme, text: str = "no data") -> None:
    """Say so instead of showing an axis without anything on it."""
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=theme.faint)


def _times(report: Report) -> list[float]:
    """The middle of each bucket, as `_moment`."""
    count = len(report.pauses_s)
    return [_moment(report.start + (place + 0.5) * report.bucket_s) for place in range(count)]


def _moment(seconds: float) -> float:
    """A time as matplotlib counts it: in days."""
    days: float = _dates.date2num(datetime.fromtimestamp(seconds, UTC))
    return days


def _time_axis(axes: Axes, report: Report) -> None:
    axes.set_xlim(_moment(report.start), _moment(report.start + max(report.span_s, report.bucket_s)))
    locator = _dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=14)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, tz=UTC))
    axes.xaxis.get_offset_text().set_color(axes.yaxis.label.get_color())
    axes.set_xlabel("time, UTC", color=axes.yaxis.label.get_color(), fontsize=9)


def _throughput(axes: Axes, report: Report, theme: Theme) -> None:
    _title(axes, theme, f"Throughput by operation, in buckets of {shown_seconds(report.bucket_s)}", "records/s")
    if not report.operations:
        _no_data(axes, theme)
        return
    times, below = _times(report), [0.0] * len(report.pauses_s)
    width = report.bucket_s / 86_400
    for place, (name, counts) in enumerate(report.operations.items()):
        colour = COLOURS[-1] if name == "other" else COLOURS[place % (len(COLOURS) - 1)]
        rates = [count / report.bucket_s for count in counts]
        axes.bar(times, rates, width=width, bottom=below, color=colour, label=name, linewidth=0)
        below = [low + rate for low, rate in zip(below, rates, strict=True)]
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylim(bottom=0)
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        labelcolor=theme.ink,
        fontsize=9,
        title="operation",
    )
    legend.get_title().set_color(theme.ink)


def _pauses(axes: Axes, report: Report, theme: Theme) -> None:
    _title(axes, theme, "Longest pause of writers; dashed: another node began to lead, dotted: the same one", "seconds")
    colour = COLOURS[0 if theme is LIGHT else 4]
    axes.bar(_times(report), report.pauses_s, width=report.bucket_s / 86_400, color=colour, linewidth=0)
    for before, start in pairwise(report.epochs):
        style = ":" if start.node_id == before.node_id else "--"
        axes.axvline(_moment(start.timestamp / 1e6), color=theme.alarm, linewidth=1, linestyle=style)
    axes.set_ylim(bottom=0)
    if not any(report.pauses_s):
        _no_data(axes, theme, "no pause")


def _leaders(axes: Axes, report: Report, theme: Theme) -> None:
    _title(axes, theme, f"Who led: {len(report.epochs)} epochs", "node")
    if not report.epochs:
        _no_data(axes, theme)
        return
    nodes = sorted({start.node_id for start in report.epochs})
    end = report.start + report.span_s
    for place, start in enumerate(report.epochs):
        begin = start.timestamp / 1e6
        until = report.epochs[place + 1].timestamp / 1e6 if place + 1 < len(report.epochs) else end
        row = nodes.index(start.node_id)
        left, width = _moment(begin), (until - begin) / 86_400
        axes.barh(row, width, left=left, height=0.55, color=COLOURS[row % 7], linewidth=0)
        if len(report.epochs) <= LABELLED_LEADERS:
            axes.annotate(
                f"epoch {start.epoch}",
                (left, row + 0.33),
                xytext=(3, 0),
                textcoords="offset points",
                color=theme.ink,
                fontsize=8,
                annotation_clip=True,
                va="bottom",
            )
    axes.set_yticks(range(len(nodes)), nodes)
    axes.set_ylim(-0.6, len(nodes) - 0.2)
    axes.xaxis_date(tz=UTC)


def _lag(axes: Axes, report: Report, theme: Theme) -> None:
    _title(axes, theme, "Lag behind the leader, at the time of the report", "node")
    names = [f"{each.server}\n{each.role}" for each in report.lag]
    records = [each.records or 0 for each in report.lag]
    axes.barh(range(len(names)), records, height=0.55, color=COLOURS[1], linewidth=0)
    for row, each in enumerate(report.lag):
        text = "unknown" if each.records is None else f"{each.records:,} records, {each.seconds:,.3f} s"
        axes.annotate(
            text,
            (records[row], row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=theme.ink,
            fontsize=9,
        )
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max([*records, 1]) * 1.35)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("records", color=theme.ink, fontsize=9)
    if all(each.records is None for each in report.lag):
        axes.set_xticks([])


def shown_seconds(seconds: float) -> str:
    """A duration in the largest unit of which it is a whole number."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
