"""`quire spark`: the jobs on the command line, in this process or on Spark.

The dependencies of a job are imported only when it runs, and those of Spark only when it runs on Spark.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from importlib.util import find_spec
from time import sleep
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cluster.standard_streams import queue_standard_streams
from quire.cluster.terminal import escaped, escaped_json
from quire.log.json_text import to_json

from .session import Where, session_of

if TYPE_CHECKING:
    from .archive.hold import LogHold
    from .jobs import ArchiveSummary, ReplaySummary, Report, ScrubSummary
    from .origin.access import Access
    from .replay.difference import Difference
    from .replay.keys import KeyDifference
    from .source.options import SourceOptions

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 2, 3
MEBIBYTE = 1 << 20
HOLD_BYTES = 1 << 30
"""The default of `archive --hold-bytes`."""

app = typer.Typer(
    name="spark",
    help="Run jobs over a whole log, here or on Spark: archive, scrub, replay, report.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Path_ = Annotated[str, typer.Option("--path", metavar="DIR", help="A node's data_dir, or an archive.")]
Bootstrap = Annotated[str, typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Nodes of a running cluster.")]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar="QUIRE_TOKEN_FILE",
        metavar="FILE",
        help="The file with the token to show to nodes, on every host. Needs --ca.",
    ),
]
Ca = Annotated[
    str, typer.Option("--ca", envvar="QUIRE_CA", metavar="FILE", help="The cluster's ca.crt, on every host.")
]
OnSpark = Annotated[
    bool,
    typer.Option(
        "--spark",
        help="Run on Spark as configured (spark-defaults.conf, SPARK_*), else on a local one. "
        "Without --spark, --on and --conf, the job runs in this process.",
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="URL",
        help="Run on this Spark master (local[4], spark://...) or Spark Connect server (sc://...).",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Run on Spark with this setting; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON value.")]


@app.callback()
def spark_command() -> None:
    """Run jobs over a whole log: in this process, or on Spark with --spark, --on or --conf."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@app.command()
def archive(
    archive_dir: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder; created if missing.")],
    path: Path_ = "",
    bootstrap: Bootstrap = "",
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0, help="Repeat at this interval, even after outages, until Ctrl-C."
        ),
    ] = 0,
    cursor: Annotated[
        str,
        typer.Option(
            "--cursor",
            metavar="NAME",
            help="The cursor that keeps the cluster's log from expiring before it is archived. Default with --every: "
            "archive: and the archive's path.",
        ),
    ] = "",
    hold_bytes: Annotated[
        int | None,
        typer.Option(
            "--hold-bytes",
            metavar="N",
            min=0,
            help=f"How much of the log the cursor may hold; 0: none. Default: {HOLD_BYTES}.",
        ),
    ] = None,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap",
            help="Record in the archive which records were lost before they were archived, and continue after them. "
            "With --every: all later gaps, too.",
        ),
    ] = False,
    token_file: TokenFile = "",
    ca: Ca = "",
    on_spark: OnSpark = False,
    on: On = "",
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Append the log's committed records after the archive's end to a Parquet archive."""
    where = Where(on_spark, on, conf or [])
    with _complaining(*where.needed()):
        from .archive.rounds import Rounds  # noqa: PLC0415
        from .jobs import archive as run  # noqa: PLC0415

        options = _options(path, bootstrap, access=_access(bootstrap, token_file, ca))
        _folder(archive_dir, "archive")
        hold = _hold(options, archive_dir, cursor, hold_bytes, repeats=every > 0)
        if every:
            queue_standard_streams()
        with (
            _until_stopped() if every else nullcontext(),
            session_of("archive", where) as spark,
            _progress("archive", hidden=as_json) as progress,
        ):

            def run_once(told: Callable[[int, int], None]) -> ArchiveSummary:
                return run(options, archive_dir, accept_gap=accept_gap, hold=hold, spark=spark, progress=told)

            rounds = Rounds(run_once, every, progress, _complain, sleep).summaries() if every else [run_once(progress)]
            for summary in rounds:
                _tell(asdict(summary) | {"records": summary.records}, _archive_lines(summary), as_json=as_json)


def _hold(
    options: SourceOptions, archive_dir: str, cursor: str, hold_bytes: int | None, *, repeats: bool
) -> LogHold | None:
    """The hold on the log, if there is one. Raises OptionRefused: an option would be ignored."""
    from .archive.hold import LogHold, cursor_of  # noqa: PLC0415
    from .errors import OptionRefused  # noqa: PLC0415

    if hold_bytes == 0:
        if cursor:
            raise OptionRefused("cursor", "with --hold-bytes 0 there is no cursor; leave out one of them")
        return None
    if hold_bytes and options.path:
        raise OptionRefused("hold-bytes", "files have no cursors; name nodes with bootstrap")
    if cursor or (repeats and options.bootstrap):
        return LogHold(options, cursor or cursor_of(archive_dir), hold_bytes or HOLD_BYTES)
    if hold_bytes:
        raise OptionRefused("hold-bytes", "a single run uses a cursor only with --cursor; name one, or use --every")
    return None


@contextmanager
def _until_stopped() -> Generator[None]:
    """End the block at Ctrl-C, or at SIGTERM, as if it had ended by itself."""

    def stopped(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(number, frame)  # Spark's own cancels its jobs first.
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _archive_lines(summary: ArchiveSummary) -> list[str]:
    rate = summary.records / summary.seconds if summary.seconds else 0.0
    lines = [
        f"{summary.records:,} records, [{summary.from_index}, {summary.to_index}), in {summary.files} new files",
        f"{summary.log_bytes / MEBIBYTE:,.1f} MiB of the log, {summary.file_bytes / MEBIBYTE:,.1f} MiB of Parquet",
        f"{summary.seconds:.1f} s, {rate:,.0f} records/s",
    ]
    lines += [f"a gap was accepted: records [{first}, {last}) are not in the archive" for first, last in summary.gaps]
    if summary.snapshots:
        lines.append(f"snapshots copied: {', '.join(map(str, summary.snapshots))}")
    return lines


@app.command()
def scrub(
    path: Annotated[
        list[str] | None, typer.Option("--path", metavar="DIR", help="A data_dir or an archive; repeatable.")
    ] = None,
    bootstrap: Bootstrap = "",
    token_file: TokenFile = "",
    ca: Ca = "",
    on_spark: OnSpark = False,
    on: On = "",
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Verify every frame of some nodes, and compare the nodes. Exits with 1 if anything is damaged or differs."""
    where = Where(on_spark, on, conf or [])
    with _complaining(*where.needed()):
        from .jobs import scrub as run  # noqa: PLC0415

        for each in path or ():
            _folder(each, "path")
        access = _access(bootstrap, token_file, ca)
        servers = _servers(bootstrap, access)
        if not path and not servers:
            _complain("name data_dirs and archives with --path, or nodes with --bootstrap")
            raise typer.Exit(EXIT_USAGE)
        with session_of("scrub", where) as spark, _progress("scrub", hidden=as_json) as progress:
            summary = run(path or (), servers, access=access, spark=spark, progress=progress)
        document = asdict(summary) | {"findings": [each._asdict() for each in summary.findings]}
        _tell(document | {"whole": summary.is_whole}, _scrub_lines(summary), as_json=as_json)
        if not summary.is_whole:
            raise typer.Exit(EXIT_FAILED)


def _scrub_lines(summary: ScrubSummary) -> list[str]:
    lines = [finding.sentence() for finding in summary.findings]
    for name, node in summary.nodes.items():
        lines.append(
            f"{name}: {node.records:,} records, [{node.from_index}, {node.to_index}), in {node.frames:,} frames, "
            f"{node.log_bytes / MEBIBYTE:,.1f} MiB"
        )
    return [*lines, f"{summary.verdict}; {summary.seconds:.1f} s"]


@app.command()
def replay(
    path: Path_ = "",
    archive_dir: Annotated[
        str, typer.Option("--archive", metavar="ARCHIVE", help="An archive to read before the data_dir at --path.")
    ] = "",
    bootstrap: Annotated[
        str,
        typer.Option("--bootstrap", metavar="HOST:PORT,...", help="Nodes whose answers to compare with the replay's."),
    ] = "",
    machine: Annotated[
        str, typer.Option("--machine", metavar="PACKAGE.MODULE:CLASS", help="The cluster's machine, if not built in.")
    ] = "",
    key_parts: Annotated[
        int,
        typer.Option("--key-parts", metavar="N", min=1, help="For kv: split stretches into this many parts by key."),
    ] = 1,
    token_file: TokenFile = "",
    ca: Ca = "",
    on_spark: OnSpark = False,
    on: On = "",
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Replay the log, in parallel between snapshots. Exits with 1 if a result differs, and names the first index."""
    where = Where(on_spark, on, conf or [])
    with _complaining(*where.needed()):
        from .jobs import replay as run  # noqa: PLC0415

        access = _access(bootstrap, token_file, ca)
        options, servers = _options(path, "", archive_dir), _servers(bootstrap, access)
        with session_of("replay", where) as spark, _progress("replay", hidden=as_json) as progress:
            summary = run(
                options,
                machine=machine or None,
                servers=servers,
                access=access,
                key_parts=key_parts,
                spark=spark,
                progress=progress,
            )
        document = asdict(summary) | {"difference": summary.difference and document_of(summary.difference)}
        document["keys"] = [document_of(each) for each in summary.keys]
        _tell(document | {"proven": summary.is_proven}, _replay_lines(summary), as_json=as_json)
        if not summary.is_proven:
            raise typer.Exit(EXIT_FAILED)


def document_of(difference: Difference | KeyDifference) -> dict[str, object]:
    """A difference as `--json` prints it. The boundary's key is `border` there, since programs read it."""
    fields = difference._asdict()
    return {"border": fields.pop("boundary")} | fields


def _replay_lines(summary: ReplaySummary) -> list[str]:
    rate = summary.records / summary.seconds if summary.seconds else 0.0
    lines = [
        (
            f"machine {summary.machine}: {summary.records:,} records, [{summary.from_index}, {summary.to_index}), "
            f"in {summary.stretches} stretches; {summary.seconds:.1f} s, {rate:,.0f} records/s"
        ),
        f"{summary.checked} digests compared and equal; at the end {summary.digest}",
    ]
    if summary.compared_keys:
        lines.append(f"{summary.compared_keys:,} values compared at snapshots, {len(summary.keys)} differ")
    lines += [f"left out: {reason}" for reason in summary.left_out]
    lines += [each.sentence() for each in summary.keys]
    lines += [f"{server}: {verdict}" for server, verdict in summary.live.items()]
    if summary.difference is not None:
        lines.append(summary.difference.sentence())
    return [*lines, summary.verdict]


@app.command()
def report(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder for the report; created if missing.")],
    path: Path_ = "",
    bootstrap: Bootstrap = "",
    archive_dir: Annotated[
        str, typer.Option("--archive", metavar="ARCHIVE", help="An archive to read together with the live log.")
    ] = "",
    token_file: TokenFile = "",
    ca: Ca = "",
    on_spark: OnSpark = False,
    on: On = "",
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Report commands, throughput, pauses and failovers on a page with plots; with --bootstrap, lag as well."""
    where = Where(on_spark, on, conf or [])
    with _complaining(*where.needed(), "matplotlib"):
        from .errors import RecordsLost  # noqa: PLC0415
        from .jobs import report as run  # noqa: PLC0415

        access = _access(bootstrap, token_file, ca)
        options = _options(path, bootstrap, archive_dir, access=access)
        _folder(folder, "folder")
        servers = _servers(bootstrap, access)
        try:
            with session_of("report", where) as spark, _progress("report", hidden=as_json) as progress:
                made = run(options, folder, servers=servers, spark=spark, progress=progress)
        except RecordsLost as error:
            _complain(f"{error.loss}; a report needs all records of its range")
            raise typer.Exit(EXIT_FAILED) from None
        _tell(made.document(), _report_lines(made), as_json=as_json)


def _report_lines(made: Report) -> list[str]:
    from .report.page import facts  # noqa: PLC0415

    rows = facts(made) + [(name, f"{sum(counts):,} records") for name, counts in made.operations.items()]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}} {text}" for name, text in rows] + made.files


def _access(bootstrap: str, token_file: str, ca: str) -> Access:
    """What to show to the named nodes, if there are any. Raises OptionRefused, AccessRefused."""
    from .origin.access import PLAIN, Access  # noqa: PLC0415
    from .source.options import check_access, parse_file, parse_servers  # noqa: PLC0415

    if not bootstrap:
        return PLAIN  # The variables may be set for other commands.
    files = [parse_file(name, text) if text else None for name, text in (("tokenFile", token_file), ("ca", ca))]
    access = Access(*files)
    check_access(access, parse_servers(bootstrap))
    access.credentials()  # Refuses a file before Spark starts.
    return access


def _servers(bootstrap: str, access: Access) -> tuple[str, ...]:
    """All members that the named nodes know."""
    if not bootstrap:
        return ()
    from .origin.cluster import ClusterLog  # noqa: PLC0415
    from .source.options import SourceOptions  # noqa: PLC0415

    options = SourceOptions.parse({"bootstrap": bootstrap}, streaming=False)
    cluster = ClusterLog(options.bootstrap, options.fetchTimeoutMs / 1000, access=access)
    try:
        return cluster.servers
    finally:
        cluster.close()


def _folder(path: str, name: str) -> None:
    """Refuse a URL before Spark starts. Raises OptionRefused."""
    from .source.options import parse_path  # noqa: PLC0415

    parse_path(path, name)


def _options(path: str, bootstrap: str, archive_dir: str = "", *, access: Access | None = None) -> SourceOptions:
    from .source.options import SourceOptions  # noqa: PLC0415

    given = {"path": path, "bootstrap": bootstrap, "archive": archive_dir}
    if access is not None:
        given |= {"tokenFile": access.token_file or "", "ca": access.ca or ""}
    return SourceOptions.parse({name: value for name, value in given.items() if value}, streaming=False)


@contextmanager
def _progress(name: str, *, hidden: bool) -> Generator[Callable[[int, int], None]]:
    """A progress bar on stderr while the block runs, if stderr is a terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _done, _all: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _tell(document: Mapping[str, object], lines: list[str], *, as_json: bool) -> None:
    for line in [escaped_json(to_json(document).decode())] if as_json else map(escaped, lines):
        typer.echo(line)


@contextmanager
def _complaining(*needed: str) -> Generator[None]:
    """Report a package that is needed and missing, or an error, as one sentence and an exit code."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        how = "in quire's checkout, .venv/bin/pip install -e '.[spark]'"
        _complain(f"quire spark needs {', '.join(missing)}, which is not installed; {how}")
        raise typer.Exit(EXIT_USAGE)
    from quire.log import LogError  # noqa: PLC0415
    from quire.sm import MachineError  # noqa: PLC0415

    from .errors import AccessRefused, ClusterUnavailable, OptionRefused, PipelineError, RecordsLost  # noqa: PLC0415

    try:
        yield
    except (OptionRefused, AccessRefused) as error:
        _complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except ClusterUnavailable as error:
        _complain(f"{error}; check --bootstrap and `quire status`, then try again")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except RecordsLost as error:
        _complain(error.loss)
        raise typer.Exit(EXIT_FAILED) from None
    except (PipelineError, LogError, MachineError, OSError) as error:
        _complain(str(error))
        raise typer.Exit(EXIT_FAILED) from None


def _complain(sentence: str) -> None:
    typer.echo(f"quire: {escaped(sentence)}", err=True)
