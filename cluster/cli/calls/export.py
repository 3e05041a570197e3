"""Exports: the commands of a cluster as lines of JSON, which `quire load` applies to another one.

    {"quire": "export", "version": 1, "cluster_id": ..., "machine": ..., "from": ..., "to": ...}
    {"index": ..., "session": ..., "sequence": ..., "timestamp": ..., "value": ...}
    ...
    {"quire": "end", "records": ...}

A row is a record that executed. Retries, records that their session refused, and system records are left out. The value
is in the forms of `quire.log.json_text`, which are only read in a file that starts with such a first line. The rows of
blobs and of records with headers also have `kind` or `headers`; no command can carry them. If the export broke off, the
last line is missing.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import IO

import orjson

from quire.log import PayloadInvalid
from quire.log.json_text import from_json, to_exact_json
from quire.log.packing import check_value
from quire.sm import SESSION_LIMITS, Assumed, Executed, Sessions

from ...client import Client, ClientError, Record, Status
from ...errors import Malformed
from ...terminal import escaped_json
from ...values import DEPTH_LIMIT, decode_ndjson
from ..connection import ClusterOptions, exit_of
from ..output import Exit, OutputLost, complain, interruptible

VERSION = 1
FIELDS = ("index", "session", "sequence", "timestamp", "value")
ROW_DEPTH = 3 * DEPTH_LIMIT + 2
"""How deep containers may be nested in a row: one map may become three levels, a map, a list of pairs, and a pair."""
END_BYTES = 64
"""Longer than the last line."""


class ExportFailed(ClientError):
    """The export could not be completed."""


class ExportInvalid(ClientError):
    """A file that starts like an export is not a complete, valid one. Nothing from that line on was sent."""


def export_range(cluster: ClusterOptions, from_index: int | None, to_index: int | None, timeout_s: float) -> Exit:
    """Write an export to stdout; return the exit code, which is DONE only if the export is complete."""
    unopened = cluster.connect(timeout_s)

    async def run() -> Assumed | None:
        async with unopened as client:
            return await write_export(client, from_index, to_index, sys.stdout.buffer)

    try:
        with interruptible():
            assumed = asyncio.run(run())
    except ClientError as error:
        return exit_of(error)
    except KeyboardInterrupt:
        complain("interrupted; the export is incomplete")
        return Exit.INTERRUPTED
    except OSError as error:
        raise OutputLost(error) from error
    if assumed is not None:
        complain(warning_of(assumed))
    return Exit.DONE


async def write_export(client: Client, from_index: int | None, to_index: int | None, out: IO[bytes]) -> Assumed | None:
    """Write the commands [from_index, to_index), by default all in the log that are acknowledged by now.

    Return `Executed.assumed`: the records of which the log does not show whether they executed. They are written.

    Raises:
        ExportFailed: a record has no exact form, or the range is not in the log.
        ClientError: as the client's calls.
        OSError: `out` cannot be written.
    """
    bounds = await client.bounds()
    first = bounds.lowest_index if from_index is None else from_index
    end = bounds.highest_index if to_index is None else to_index
    if not bounds.lowest_index <= first <= end <= bounds.highest_index:
        there = f"the log has [{bounds.lowest_index}, {bounds.highest_index})"
        raise ExportFailed(f"records [{first}, {end}) cannot be exported: {there}; correct --from and --to")
    status = await client.status()
    header = {"quire": "export", "version": VERSION, "cluster_id": status["cluster_id"]}
    header |= {"machine": status["machine"]["name"], "from": first, "to": end}
    out.write(_line(header))
    reader, records = _reader(status, bounds.lowest_index), 0
    # From the beginning of the log: what executed depends on everything before it.
    async with aclosing(client.pages.history(bounds.lowest_index, end)) as pages:
        async for page in pages:
            rows = [_row(record) for record in page if _executed(reader, record) and record.index >= first]
            out.writelines(rows)
            records += len(rows)
    out.write(_line({"quire": "end", "records": records}))
    out.flush()
    return reader.assumed


def _reader(status: Status, lowest_index: int) -> Executed:
    """A reader of the log of a cluster with this status."""
    limits = status["limits"]
    return Executed(Sessions(**{name: limits[name] for name in SESSION_LIMITS if name in limits}), lowest_index)


def _executed(reader: Executed, record: Record) -> bool:
    if record.kind == "system":
        event = record.value if isinstance(record.value, dict) else {}
        reader.take_system(record.index, record.timestamp, event)
        return False
    return reader.executes(record.index, record.timestamp, record.session, record.sequence, record.executed)


def _row(record: Record) -> bytes:
    """Raises ExportFailed."""
    try:
        value = to_exact_json(record.value)
    except PayloadInvalid as error:
        reason = f"the record at index {record.index} {error.reason}, so it has no exact form in JSON"
        raise ExportFailed(f"{reason}; export the ranges before and after it, with --to and --from") from None
    row = {name: getattr(record, name) for name in FIELDS[:-1]}
    if record.headers:
        row["headers"] = dict(record.headers)
    if record.kind != "records":
        row["kind"] = record.kind
    return escaped_json(f'{orjson.dumps(row)[:-1].decode()},"value":{value.decode()}}}').encode() + b"\n"


def _line(document: Mapping[str, object]) -> bytes:
    return escaped_json(json.dumps(document)).encode() + b"\n"


def warning_of(assumed: Assumed) -> str:
    """The sentence about `Executed.assumed`."""
    return (
        f"the beginning of the log has expired, so it is unknown whether {assumed.count} commands of sessions, from "
        f"index {assumed.first_index} to {assumed.last_index}, executed; "
        "all of them were exported, although some may be retries"
    )


def is_export(line: bytes) -> bool:
    """Whether this is the first line of an export. Raises ExportInvalid if a later version wrote it."""
    document = _document_of(line)
    if document.get("quire") != "export":
        return False
    if document.get("version") != VERSION:
        version = f"version {document.get('version')!r:.20}"
        raise ExportInvalid(f"the file is an export of {version}, and this program reads version {VERSION}; upgrade it")
    return True


def rows_of(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The rows of an export, after its first line.

    Raises:
        ExportInvalid: at the end, if the last line is missing or counts a different number of rows.
    """
    count = 0
    for line in lines:
        if (records := _end_of(line)) is None:
            count += 1
            yield line
            continue
        if records != count:
            raise ExportInvalid(f"the export's last line counts {records} rows, and there are {count}; export it again")
        if next(lines, b""):
            raise ExportInvalid(f"line {count + 3} of the file comes after the end of the export; remove it")
        return
    raise ExportInvalid(f"the export broke off after {count} rows: its last line is missing; export it again")


def refuse_broken(file: IO[bytes]) -> None:
    """Raise ExportInvalid if the last line of an export is missing, before anything is sent."""
    place = file.tell()
    size = file.seek(0, 2)
    file.seek(max(0, size - END_BYTES))
    *_, last = [b"", *file.read().splitlines()]
    file.seek(place)
    if _end_of(last) is None:
        raise ExportInvalid("the export broke off: its last line is missing; export it again")


def commands_of_rows(body: bytes) -> list[object]:
    """The commands of rows. Raises Malformed."""
    rows = decode_ndjson(body, depth_limit=ROW_DEPTH, containers_limit=len(body))
    return [_command_of(row) for row in rows]


def _command_of(row: object) -> object:
    if not isinstance(row, dict) or not row.keys() >= set(FIELDS):
        raise Malformed(f"is not a row of an export, which has {', '.join(FIELDS)}")
    if more := sorted(row.keys() - set(FIELDS)):
        raise Malformed(
            f"has {more[0]!r:.20}, which no command can carry; record {row['index']} is not a plain command"
        )
    try:
        value = from_json(row["value"])
        check_value(value)
    except PayloadInvalid as error:
        raise Malformed(error.reason) from None
    return value


def _end_of(line: bytes) -> int | None:
    """The number of rows in the last line; None if this is not the last line."""
    document = _document_of(line) if line.startswith(b'{"quire"') else {}
    records = document.get("records") if document.get("quire") == "end" else None
    return records if type(records) is int else None


def _document_of(line: bytes) -> Mapping[str, object]:
    """The JSON object in a line, empty if it holds none."""
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
