"""The report as one self-contained HTML page, with embedded plots for light and dark screens."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .figures import Report

SHOWN_EPOCHS = 200
"""How many leaderships the page lists: the latest ones."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --faint: #57606a; --line: #d8dee4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #14181d; --ink: #e6edf3; --faint: #9da7b3; --line: #343b44; }}
}}
body {{ background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0 2rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .3rem .9rem; text-align: right; }}
th {{ color: var(--faint); font-weight: 600; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; height: auto; }}
p {{ color: var(--faint); }}
</style>
</head>
<body>
<h1>{title}</h1>
{tables}
<picture>
<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">
<img alt="Throughput by operation, pauses and leaders over time" src="data:image/png;base64,{light}">
</picture>
</body>
</html>
"""


def page_of(report: Report, light: bytes, dark: bytes) -> str:
    """The page; `light` and `dark` are the plots as PNGs."""
    tables = [_table("The log", ("", ""), facts(report)), _operations(report), _failovers(report), _lag(report)]
    return _PAGE.format(
        title=escape(f"quire: cluster {report.cluster_id}"),
        tables="\n".join(filter(None, tables)),
        light=b64encode(light).decode(),
        dark=b64encode(dark).decode(),
    )


def facts(report: Report) -> list[tuple[str, str]]:
    """The figures of the log as (name, text)."""
    return [
        ("records", f"{report.records:,}"),
        ("indices", f"[{report.from_index}, {report.to_index})"),
        ("frames", f"{report.frames:,}"),
        ("size", f"{report.log_bytes / (1 << 20):,.1f} MiB"),
        *_rates(report),
        ("longest pause of writers", _shown_pause(max(report.pauses_s, default=0.0))),
        ("leaderships", f"{len(report.epochs)}"),
    ]


def _rates(report: Report) -> list[tuple[str, str]]:
    if report.first is None or report.last is None:
        return []
    seconds = report.last - report.first
    highest = f"{report.fullest_second:,} commands in a second"
    if seconds < 1:
        highest = f"unknown: the log is shorter than a second, with {report.fullest_second:,} commands"
    return [
        ("from", shown_time(report.first)),
        ("to", shown_time(report.last)),
        ("time", f"{seconds:,.3f} s"),
        ("throughput, mean", f"{report.records / seconds:,.1f} records/s" if seconds else "unknown"),
        ("throughput, highest", highest),
    ]


def _shown_pause(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds else "none"


def _operations(report: Report) -> str:
    rows = [
        (name, f"{sum(counts):,}", f"{100 * sum(counts) / max(report.records, 1):.2f} %")
        for name, counts in report.operations.items()
    ]
    return _table("Commands", ("operation", "records", "share"), rows)


def _failovers(report: Report) -> str:
    rows = [
        (
            str(each.epoch),
            each.node_id,
            f"{each.index:,}",
            shown_time(each.timestamp / 1e6),
            _shown_pause((each.pause or 0) / 1e6),
        )
        for each in report.epochs[-SHOWN_EPOCHS:]
    ]
    return _table("Leaderships", ("epoch", "node", "first index", "began", "pause of writers"), rows)


def _lag(report: Report) -> str:
    rows = [
        (each.server, each.role, "unknown", "", "")
        if each.records is None
        else (each.server, each.role, f"{each.records:,}", f"{each.bytes:,}", f"{each.seconds:,.3f} s")
        for each in report.lag
    ]
    return _table("Lag at the time of the report", ("node", "role", "records", "bytes", "time"), rows) if rows else ""


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2>\n<table>\n<tr>{head}</tr>\n{body}\n</table>"


def shown_time(seconds: float) -> str:
    """A time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
