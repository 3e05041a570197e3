"""`quire log`: inspects the files of a log, and repairs a standalone one, while no process uses them.

A cluster node's log is never repaired: the node acknowledged those frames, and would then deny having them.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..terminal import escaped
from .connection import Json
from .group import Group
from .output import Exit, complain, interruptible, say, to_json
from .progress import shown_bytes

if TYPE_CHECKING:
    from quire.log import Directory, Fault, FrameHeader, Mark, Plan, Repaired, SegmentFacts, Verdict

LOG_FOLDER, MARK_NAME = "log", "mark"

app = typer.Typer(
    name="log",
    cls=Group,
    help="Inspect or repair the files of a log. No process may be using it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DataDir = Annotated[Path, typer.Argument(metavar="DATA_DIR", help="The directory that contains log/ and mark.")]
Keep = Annotated[
    Literal["before", "after"] | None,
    typer.Option("--keep", help="Which part to keep: before the first corruption, or after the last."),
]


@app.command()
def segments(data_dir: DataDir, as_json: Json = False) -> None:
    """List the segments, and what is durable and committed."""
    from quire.log import list_segments, stored_mark

    with _closed_log(data_dir) as directory:
        found, mark = list_segments(directory), stored_mark(directory)
    if as_json:
        say(to_json({"segments": [_facts(each) for each in found], "mark": _mark(mark)}))
        return
    say(f"{'from':>20}  {'to':>20}  {'epoch before':>12}  {'store bytes':>14}  {'index bytes':>11}")
    for each in found:
        highest = "" if each.highest_index is None else str(each.highest_index)
        index_bytes = "-" if each.index_bytes is None else f"{each.index_bytes:,}"
        row = f"{each.base_index:>20}  {highest:>20}  {each.epoch:>12}  {each.store_bytes:>14,}  {index_bytes:>11}"
        say(row)
    if mark is not None:
        clean = "stopped cleanly" if mark.clean else "not stopped cleanly"
        say(f"mark: durable below {mark.durable_index}, committed below {mark.commit_index}; {clean}")


@app.command()
def dump(
    data_dir: DataDir,
    from_index: Annotated[int, typer.Option("--from", min=0, help="First index.")] = 0,
    to_index: Annotated[int | None, typer.Option("--to", min=0, help="End of the range, exclusive.")] = None,
    frames: Annotated[bool, typer.Option("--frames", help="Print frame headers instead of records.")] = False,
    as_json: Json = False,  # noqa: ARG001  # Accepted as everywhere; the output is JSON in any case.
) -> None:
    """Print the records as lines of JSON. After a corrupt frame, report it and continue with the next segment."""
    from quire.log import FrameCorrupt, frames_of, store_bases

    end = (1 << 64) - 1 if to_index is None else to_index
    corrupt = False
    with _closed_log(data_dir) as directory:
        bases = store_bases(directory.child(LOG_FOLDER))
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            if following <= from_index or base >= end:
                continue
            try:
                for header, payload in frames_of(directory, base):
                    if header.next_index > from_index and header.index < end:
                        _dump_frame(header, payload, from_index, end, frames=frames)
            except FrameCorrupt as error:
                corrupt = True
                complain(f"segment {base} ends at byte {error.position}: {error.reason}; see `quire log verify`")
    if corrupt:
        raise typer.Exit(Exit.FAILED)


@app.command(name="verify")
def verify_log(data_dir: DataDir, as_json: Json = False) -> None:
    """Check every byte of the log, and print what is wrong. Exits with 1 if durable bytes are corrupt."""
    with _closed_log(data_dir) as directory:
        verdict = _verdict(directory, as_json=as_json)
    if as_json:
        say(to_json(_verdict_facts(verdict)))
    else:
        for fault in verdict.faults:
            say(_fault_text(fault))
        total = sum(each.records for each in verdict.segments)
        say(f"{len(verdict.segments)} segments, {total:,} records: {'corrupt' if verdict.is_rotten else 'intact'}")
    if verdict.is_rotten:
        raise typer.Exit(Exit.FAILED)


@app.command(name="repair")
def repair_log(data_dir: DataDir, keep: Keep = None, as_json: Json = False) -> None:
    """Move the corrupt part of a standalone log to quarantine/. Deletes nothing."""
    from quire.log import log_bytes, repair

    with _closed_log(data_dir) as directory:
        verdict = _verdict(directory, as_json=as_json)
        if not verdict.is_rotten:
            say(to_json({"repaired": False, "faults": []}) if as_json else "nothing is corrupt; nothing was done")
            return
        if _belongs_to_cluster(directory):
            for fault in verdict.faults:
                complain(_fault_text(fault))
            complain("this is a cluster node's log: nothing was done; start the node with an empty data_dir instead")
            raise typer.Exit(Exit.FAILED)
        plan = _chosen_plan(verdict, keep)
        with shown_bytes("repair", log_bytes(directory), hidden=as_json) as progress:
            done = repair(directory, plan, progress)
    for line in [to_json(_repaired_facts(done))] if as_json else _repaired_lines(done):
        say(line)


def _chosen_plan(verdict: "Verdict", keep: Literal["before", "after"] | None) -> "Plan":
    """The plan that keeps this side, or the only possible plan if no side was given. Otherwise print why and exit."""
    from quire.log import NothingToKeep, plan_repair

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
        complain(f"--keep {side}: records [{plan.kept_from}, {plan.kept_to}) stay, the others move to quarantine/")
    complain(
        "a log cannot have a gap; choose which part to keep" if plans else "no whole segment is left; nothing was done"
    )
    raise typer.Exit(Exit.USAGE if plans else Exit.FAILED)


@contextmanager
def _closed_log(data_dir: Path) -> "Generator[Directory]":
    """The directory, locked. If it has no log or a process uses it, print that and exit."""
    from quire.log import FileDirectory, LogError, LogLocked, sentence_of

    files = data_dir / LOG_FOLDER
    if not files.is_dir() or not ((data_dir / MARK_NAME).exists() or any(files.glob("*.store"))):
        what = "is a file" if data_dir.is_file() else "has no log" if data_dir.exists() else "does not exist"
        complain(f"{data_dir} {what}; name the directory that contains {LOG_FOLDER}/ and {MARK_NAME}")
        raise typer.Exit(Exit.USAGE)
    try:
        directory = FileDirectory(data_dir)
        directory.lock()
        try:
            with interruptible():
                yield directory
        finally:
            directory.unlock()
    except LogLocked:
        complain(f"{data_dir} is in use; stop that process first, or work on a copy")
        raise typer.Exit(Exit.FAILED) from None
    except LogError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        complain(sentence_of(error, data_dir))
        raise typer.Exit(Exit.FAILED) from None


def _belongs_to_cluster(directory: "Directory") -> bool:
    from quire.replication.promises import PROMISE_FILE

    from ..data_dir.identity import DataDirRefused, read_identity

    if PROMISE_FILE in directory.list():
        return True
    try:
        identity = read_identity(directory)
    except DataDirRefused:
        return True
    return identity is not None and identity.mode == "cluster"


def _verdict(directory: "Directory", *, as_json: bool) -> "Verdict":
    from quire.log import log_bytes, verify

    with shown_bytes("verify", log_bytes(directory), hidden=as_json) as progress:
        return verify(directory, progress)


def _dump_frame(
    header: "FrameHeader", payload: memoryview | None, from_index: int, to_index: int, *, frames: bool
) -> None:
    from quire.log import Frame, Kind, stored_records

    from ..rows import line_of

    if frames or payload is None:
        crcs = {name: f"{value:08x}" for name, value in header._asdict().items() if name.endswith("crc32c")}
        say(to_json(header._asdict() | crcs | {"kind": Kind(header.kind).name.lower()}))
        return
    for record in stored_records(Frame(header, bytes(payload))):
        if from_index <= record.index < to_index:
            say(to_json(line_of(record, executed=None)))


def _facts(facts: "SegmentFacts") -> dict[str, object]:
    return {**asdict(facts), "cluster_id": facts.cluster_id.hex()}


def _mark(mark: "Mark | None") -> dict[str, object] | None:
    return None if mark is None else mark._asdict()


def _verdict_facts(verdict: "Verdict") -> dict[str, object]:
    return {
        "rotten": verdict.is_rotten,
        "faults": [asdict(fault) for fault in verdict.faults],
        "segments": [
            {"from": each.base_index, "to": each.tail.index, "frames": each.frames, "records": each.records}
            for each in verdict.segments
        ],
        "mark": _mark(verdict.mark),
    }


def _repaired_facts(done: "Repaired") -> dict[str, object]:
    plan = done.plan
    return {
        "repaired": True,
        "kept": [plan.kept_from, plan.kept_to],
        "lost": list(plan.lost),
        "folder": done.folder,
        "files": list(done.files),
    }


def _repaired_lines(done: "Repaired") -> list[str]:
    plan = done.plan
    lines = [f"records [{plan.kept_from}, {plan.kept_to}) stay"]
    if plan.lost[0] < plan.lost[1]:
        lines.append(f"records [{plan.lost[0]}, {plan.lost[1]}) are no longer in the log; their bytes are in:")
    return [*lines, *(escaped(f"{done.folder}/{name}") for name in done.files)]


def _fault_text(fault: "Fault") -> str:
    text = f"{fault.kind}: {fault.file} at byte {fault.position}: {fault.reason}"
    if fault.from_index is None:
        return text
    to = "" if fault.to_index is None else f" to {fault.to_index}"
    return f"{text}; records from {fault.from_index}{to} cannot be read"
