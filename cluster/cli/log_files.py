"""`quire log`: a log's files, looked at and repaired while no process uses them.

A cluster's directory is only looked at: a cut there would pretend that acknowledged frames never were.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from quire.log import (
    Directory,
    Fault,
    FileDirectory,
    Frame,
    FrameHeader,
    FrameInvalid,
    Kind,
    LogError,
    LogLocked,
    Mark,
    NothingToKeep,
    Plan,
    Repaired,
    SegmentFacts,
    Verdict,
    frames_of,
    list_segments,
    log_bytes,
    plan_repair,
    repair,
    store_bases,
    stored_mark,
    stored_records,
    verify,
)
from quire.replication.promises import PROMISE_FILE

from ..data_dir.data_dir import LOG_FOLDER
from ..data_dir.identity import DataDirRefused, read_identity
from ..http.routes.ranges import line_of
from .asking import Json
from .exits import Exit, complain
from .output import to_json
from .progress import shown_bytes

app = typer.Typer(
    name="log",
    help="Look at the files of a log, and repair a standalone one, while no process uses them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DataDir = Annotated[Path, typer.Argument(metavar="DATA_DIR", help="The directory that `log/` and `mark` stand in.")]
Keep = Annotated[
    Literal["before", "after"] | None,
    typer.Option("--keep", help="Which part stays: what stands before the first rot, or after the last."),
]


@app.command()
def segments(data_dir: DataDir, as_json: Json = False) -> None:
    """List the segments with their bounds and sizes, and what the mark says."""
    with _closed_log(data_dir) as directory:
        found, mark = list_segments(directory), stored_mark(directory)
    if as_json:
        typer.echo(to_json({"segments": [_facts(each) for each in found], "mark": _mark(mark)}))
        return
    typer.echo(f"{'from':>20}  {'to':>20}  {'epoch before':>12}  {'store bytes':>14}  {'index bytes':>11}")
    for each in found:
        highest = "" if each.highest_index is None else str(each.highest_index)
        index_bytes = "-" if each.index_bytes is None else f"{each.index_bytes:,}"
        row = f"{each.base_index:>20}  {highest:>20}  {each.epoch:>12}  {each.store_bytes:>14,}  {index_bytes:>11}"
        typer.echo(row)
    if mark is not None:
        clean = "stopped cleanly" if mark.clean else "not stopped cleanly"
        typer.echo(f"mark: durable below {mark.durable_index}, committed below {mark.commit_index}; {clean}")


@app.command()
def dump(
    data_dir: DataDir,
    from_index: Annotated[int, typer.Option("--from", min=0, help="First index.")] = 0,
    to_index: Annotated[int | None, typer.Option("--to", min=0, help="Index behind the last one.")] = None,
    frames: Annotated[bool, typer.Option("--frames", help="The frames' headers instead of their records.")] = False,
    as_json: Json = False,  # noqa: ARG001  # Its lines are JSON in any case; the flag is taken everywhere.
) -> None:
    """Print the records as lines of JSON. At rot: say where, and go on with the next segment."""
    end = (1 << 64) - 1 if to_index is None else to_index
    rotten = False
    with _closed_log(data_dir) as directory:
        bases = store_bases(directory.child(LOG_FOLDER))
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            if following <= from_index or base >= end:
                continue
            try:
                for header, payload in frames_of(directory, base):
                    if header.next_index > from_index and header.index < end:
                        _dump_frame(header, payload, from_index, end, frames=frames)
            except FrameInvalid as error:
                rotten = True
                complain(f"segment {base} ends at byte {error.position}: {error.reason}; see `quire log verify`")
    if rotten:
        raise typer.Exit(Exit.FAILED)


@app.command(name="verify")
def verify_log(data_dir: DataDir, as_json: Json = False) -> None:
    """Look at every byte, and say what is wrong; ends with 1 if durable bytes are not what was written."""
    with _closed_log(data_dir) as directory:
        verdict = _verdict(directory, as_json=as_json)
    if as_json:
        typer.echo(to_json(_verdict_facts(verdict)))
    else:
        for fault in verdict.faults:
            typer.echo(_sentence(fault))
        total = sum(each.records for each in verdict.segments)
        typer.echo(f"{len(verdict.segments)} segments, {total:,} records: {'rotten' if verdict.is_rotten else 'whole'}")
    if verdict.is_rotten:
        raise typer.Exit(Exit.FAILED)


@app.command(name="repair")
def repair_log(data_dir: DataDir, keep: Keep = None, as_json: Json = False) -> None:
    """Set what is rotten in a standalone log aside, into `quarantine/`; nothing is deleted."""
    with _closed_log(data_dir) as directory:
        verdict = _verdict(directory, as_json=as_json)
        if not verdict.is_rotten:
            typer.echo(to_json({"repaired": False, "faults": []}) if as_json else "nothing is rotten, nothing was done")
            return
        if _is_clusters(directory):
            for fault in verdict.faults:
                complain(_sentence(fault))
            complain("this is a cluster's node: nothing was done; with an empty data_dir it comes back as a new member")
            raise typer.Exit(Exit.FAILED)
        plan = _chosen_plan(verdict, keep)
        with shown_bytes("set aside", log_bytes(directory), hidden=as_json) as progress:
            done = repair(directory, plan, progress)
    typer.echo(to_json(_repaired_facts(done)) if as_json else _told(done))


def _chosen_plan(verdict: Verdict, keep: Literal["before", "after"] | None) -> Plan:
    """The plan for that side; for the only one there is, where none was named. Ends the process otherwise."""
    plans: dict[str, Plan] = {}
    for side in ("before", "after"):
        try:
            plans[side] = plan_repair(verdict, side)
        except NothingToKeep as error:
            if keep == side:
                complain(f"{error}; nothing was done; try the other side")
                raise typer.Exit(Exit.FAILED) from None
    if keep is None and len(plans) == 1:
        return next(iter(plans.values()))
    if keep is not None:
        return plans[keep]
    for side, plan in plans.items():
        complain(f"--keep {side}: records [{plan.kept_from}, {plan.kept_to}) stay, the others are set aside")
    complain("a log has no holes: say which part is to stay" if plans else "no whole segment is left; nothing was done")
    raise typer.Exit(Exit.USAGE if plans else Exit.FAILED)


@contextmanager
def _closed_log(data_dir: Path) -> Generator[Directory]:
    """The directory, locked; ends the process with a sentence if there is no log, or a process uses it."""
    if not (data_dir / LOG_FOLDER).is_dir():
        complain(f"{data_dir} holds no log; name the directory that {LOG_FOLDER}/ and mark stand in")
        raise typer.Exit(Exit.USAGE)
    try:
        directory = FileDirectory(data_dir)
        directory.lock()
        try:
            yield directory
        finally:
            directory.unlock()
    except LogLocked:
        complain(f"{data_dir} is in use; stop that process first, or look at a copy")
        raise typer.Exit(Exit.FAILED) from None
    except LogError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        complain(f"{error.filename or data_dir} cannot be used: {(error.strerror or str(error)).lower()}")
        raise typer.Exit(Exit.FAILED) from None


def _is_clusters(directory: Directory) -> bool:
    if PROMISE_FILE in directory.list():
        return True
    try:
        identity = read_identity(directory)
    except DataDirRefused:
        return True
    return identity is not None and identity.mode == "cluster"


def _verdict(directory: Directory, *, as_json: bool) -> Verdict:
    with shown_bytes("verify", log_bytes(directory), hidden=as_json) as progress:
        return verify(directory, progress)


def _dump_frame(
    header: FrameHeader, payload: memoryview | None, from_index: int, to_index: int, *, frames: bool
) -> None:
    if frames or payload is None:
        crcs = {name: f"{value:08x}" for name, value in header._asdict().items() if name.endswith("crc32c")}
        typer.echo(to_json(header._asdict() | crcs | {"kind": Kind(header.kind).name.lower()}))
        return
    for record in stored_records(Frame(header, bytes(payload))):
        if from_index <= record.index < to_index:
            typer.echo(to_json(line_of(record)))


def _facts(facts: SegmentFacts) -> dict[str, Any]:
    return asdict(facts) | {"cluster_id": facts.cluster_id.hex()}


def _mark(mark: Mark | None) -> dict[str, Any] | None:
    return None if mark is None else mark._asdict()


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "rotten": verdict.is_rotten,
        "faults": [asdict(fault) for fault in verdict.faults],
        "segments": [
            {"from": each.base_index, "to": each.tail.index, "frames": each.frames, "records": each.records}
            for each in verdict.segments
        ],
        "mark": _mark(verdict.mark),
    }


def _repaired_facts(done: Repaired) -> dict[str, Any]:
    plan = done.plan
    return {
        "repaired": True,
        "kept": [plan.kept_from, plan.kept_to],
        "lost": list(plan.lost),
        "folder": done.folder,
        "files": list(done.files),
    }


def _told(done: Repaired) -> str:
    plan = done.plan
    lines = [f"records [{plan.kept_from}, {plan.kept_to}) stay"]
    if plan.lost[0] < plan.lost[1]:
        lines.append(f"records [{plan.lost[0]}, {plan.lost[1]}) are in the log no more; their bytes are set aside:")
    lines += [f"{done.folder}/{name}" for name in done.files]
    return "\n".join(lines)


def _sentence(fault: Fault) -> str:
    text = f"{fault.kind}: {fault.file} at byte {fault.position}: {fault.reason}"
    if fault.from_index is None:
        return text
    behind = "" if fault.to_index is None else f" to {fault.to_index}"
    return f"{text}; records from {fault.from_index}{behind} cannot be read"
