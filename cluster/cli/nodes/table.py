"""The table of `quire status`: a column for each node. What is wrong stands before it, as lines."""

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...terminal import escaped
from ..console import EscapingConsole
from ..output import printable
from .problems import problem_lines, shown_problems
from .rows import NodeRow, Rows

SHOWN = ("role", "epoch", "highest_index", "durable_index", "commit_index", "applied_index", "lag", "apply_lag")

ANSWER_CHARACTERS = 200  # Of a state in the table; a whole state may take megabytes.
BEHIND_LISTED = 10
"""How many cursors a status lists at most as behind."""
BEHIND_NAMED = 3
"""How many of them the line below the table names."""


def print_nodes(console: EscapingConsole, rows: Rows) -> None:
    """Print what is wrong, if anything is, and the table."""
    lines = problem_lines(rows)
    for line in shown_problems(lines) if lines else ():
        console.print(line, highlight=False, soft_wrap=True)
    console.print(node_table(rows))


def node_table(rows: Rows) -> Table:
    """A table with a column for each node, so that three fit into 80 characters."""
    table = Table("", *map(escaped, rows), box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.overflow = "fold"
        column.justify = "right"

    def add(name: str, cell: Callable[[NodeRow], str]) -> None:
        table.add_row(name, *map(cell, rows.values()))

    add("address", lambda row: escaped(row.address))
    for name in (*SHOWN, "log_bytes"):
        add(name, lambda row, name=name: _shown(row, name))  # type: ignore[misc]
    if any(map(_commands, rows.values())):
        add("commands", _commands)
    add("snapshot", _newest_snapshot)
    if any(map(_held, rows.values())):
        add("held", _held)
    if any(row.answer is not None or _state_failure(row) for row in rows.values()):
        add("answer", _answer)
    applied = {row.status.get("applied_index") for row in rows.values() if row.status is not None}
    add("digest", lambda row: _digest(row, is_indexed=len(applied) > 1))
    if differing := _differing(rows):
        table.add_row("differs", *(differing.get(node_id, "") for node_id in rows))
    return table


def cursor_lines(rows: Rows) -> list[str]:
    """What stands after the table: a line on the cursors, if there are any, as the node with the newest state has them.

    Each node measures their lag by its own log.
    """
    answered = [row.status for row in rows.values() if row.status is not None]
    if not answered:
        return []
    newest = max(answered, key=lambda status: (status.get("applied_index", 0), status.get("serving", False)))
    cursors = newest.get("cursors")  # Absent from older versions, and before a node joins.
    if not cursors or not cursors["count"]:
        return []
    behind = cursors["behind"]
    if not behind:
        return [f"cursors: {cursors['count']:,}, none behind"]
    named = [f"{row['name']} {row['records']:,} records, {row['seconds']:,.0f} s" for row in behind[:BEHIND_NAMED]]
    count = f"{len(behind)}{' or more' if BEHIND_LISTED <= len(behind) < cursors['count'] else ''}"
    more = "; ..." if len(behind) > BEHIND_NAMED else ""
    return [escaped(f"cursors: {cursors['count']:,}, {count} behind: {'; '.join(named)}{more}")]


def _state_failure(row: NodeRow) -> str:
    """Why a node that gave its status gave no state."""
    return "" if row.status is None else row.failure


def _answer(row: NodeRow) -> str:
    """The machine's answer, or why there is none, unless that is among the problems."""
    if row.status is None:
        return ""
    if row.failure:
        is_said = any(reason in row.failure for reason in row.status.get("reasons", ()))
        return "none, see problems" if is_said else escaped(row.failure)
    return _short(printable(row.answer))


def _digest(row: NodeRow, *, is_indexed: bool) -> str:
    """The digest, unless nothing is in it yet; with its index if not all are at one, as unequal ones are right then."""
    digest = _shown(row, "digest")
    if not digest.strip("0"):
        return ""
    return f"{digest}\nat {_shown(row, 'applied_index')}" if is_indexed else digest


def _differing(rows: Rows) -> dict[str, str]:
    """The nodes whose digest the leader found to differ from its own, and at which index."""
    found: dict[str, str] = {}
    for row in rows.values():
        nodes = {} if row.status is None else row.status.get("nodes", {})
        for node_id, seen in nodes.items():
            if difference := seen.get("differs"):
                found[node_id] = f"from the leader, at {difference['index']:,}"
    return found


def _newest_snapshot(row: NodeRow) -> str:
    """Its index and the start of its sha256, which is equal on all nodes that have a snapshot at that index."""
    snapshots = None if row.status is None else row.status.get("snapshots")
    kept = snapshots["kept"] if snapshots else ()
    return f"{kept[-1]['index']:,}\n{escaped(kept[-1]['sha256'][:8])}" if kept else ""


def _commands(row: NodeRow) -> str:
    """How many a leader executed a second lately, and how long half of them and all but one in a hundred took."""
    commands = None if row.status is None else row.status.get("commands")  # Absent from older versions.
    if row.status is None or not commands or row.status["role"] != "leader":
        return ""
    return "{per_second:,.1f}/s\np50 {p50_ms:,.1f} ms\np99 {p99_ms:,.1f} ms".format(**commands)


def _held(row: NodeRow) -> str:
    """How much has expired but is held, and by what; `quire expire --dry-run` says why."""
    expiry = None if row.status is None else row.status.get("expiry")
    if not expiry or not expiry["held"]["segments"]:
        return ""
    return f"{expiry['held']['bytes']:,} bytes\n{escaped(str(expiry['holds'][0].get('what', '')))}"


def _short(answer: str) -> str:
    return answer if len(answer) <= ANSWER_CHARACTERS else answer[: ANSWER_CHARACTERS - 3] + "..."


def _shown(row: NodeRow, name: str) -> str:
    if row.status is None:
        return _absence(row) if name == "role" else ""
    value = row.status.get(name)
    if isinstance(value, dict):  # Only the lags are maps.
        size = f"{value['bytes']:,} bytes\n" if "bytes" in value else ""
        return f"{value['records']:,} records\n{size}{value['seconds']:.2f} s"
    return f"{value:,}" if isinstance(value, int) else escaped(str(value or ""))


def _absence(row: NodeRow) -> str:
    return "no answer" if row.absent is None else row.absent.absence
