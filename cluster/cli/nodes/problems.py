"""What is wrong with a cluster, one line for each cause, with what to do.

A node reports a cause in several ways: as a reason why it is not ready, as an alarm, as a link that failed; and several
nodes report the same one. Each is said once. What the others report of a node that does not answer here either is left
out, as that node has a line of its own.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ...terminal import escaped
from .rows import LogRow, NodeRow, Rows

INDENT = "          "
"""Of the lines after the first, so that they begin below what follows `problems: `."""


class _Cause(NamedTuple):
    """A problem of one or several nodes that answer: the verb for one and for several, and what follows."""

    singular: str
    plural: str
    text: str

    def of(self, nodes: Collection[str]) -> str:
        return f"{', '.join(nodes)}{self.singular if len(nodes) == 1 else self.plural}{self.text}"

    def alone(self) -> str:
        """The problem without its subject."""
        return f"{self.singular}{self.text}".removeprefix(": ").strip()


def problems_of(rows: Rows) -> dict[str, list[str]]:
    """What is wrong with each node, by its id, the most severe first; sentences without their subject."""
    causes = _causes(rows)
    return {
        node_id: [_of_absent("", row).strip()] if row.status is None else [each.alone() for each in causes[node_id]]
        for node_id, row in rows.items()
    }


def problem_lines(rows: Rows) -> list[str]:
    """What is wrong with the cluster: a line for each cause, which names the nodes that it concerns."""
    absent = [_of_absent(f"{node_id} ({row.address})", row) for node_id, row in rows.items() if row.status is None]
    nodes: dict[_Cause, list[str]] = {}
    for node_id, causes in _causes(rows).items():
        for cause in causes:
            nodes.setdefault(cause, []).append(node_id)
    return absent + [cause.of(concerned) for cause, concerned in nodes.items()]


def shown_problems(lines: Iterable[str]) -> list[str]:
    """The lines to print before a table; one that says `none` if nothing is wrong."""
    first, *others = [escaped(line) for line in lines] or ["none"]
    return [f"problems: {first}", *(f"{INDENT}{line}" for line in others)]


def problems_of_log(row: LogRow) -> list[str]:
    """Why a standalone log accepts no records."""
    return [] if row.reason is None else [f"accepts no records: {row.reason}"]


def _of_absent(who: str, row: NodeRow) -> str:
    return f"{who} gives no status: {row.failure}" if row.absent is None else row.absent.said_of(who)


def _causes(rows: Rows) -> dict[str, list[_Cause]]:
    absent = {node_id for node_id, row in rows.items() if row.status is None}
    return {node_id: list(dict.fromkeys(_of_node(row, absent, rows))) for node_id, row in rows.items()}


def _of_node(row: NodeRow, absent: Collection[str], nodes: Collection[str]) -> Iterator[_Cause]:
    status = row.status
    if status is None:
        return
    reasons = [_without(reason, absent) for reason in status.get("reasons", ())]
    for reason in reasons:
        yield _Cause(" is not ready: ", " are not ready: ", reason)
    if not row.is_ready and not reasons:
        yield _Cause(" is not ready", " are not ready", "")
    for alarm in status.get("alarms", ()):
        if not any(alarm in reason for reason in reasons):
            yield _Cause(": ", ": ", alarm)
    for peer, why in status.get("link_failures", {}).items():
        if peer in nodes and peer not in absent and not any(f"{peer}: {why}" in reason for reason in reasons):
            yield _Cause(" does not reach ", " do not reach ", f"{peer}: {why}")


def _without(reason: str, absent: Collection[str]) -> str:
    """A reason without its parts about nodes that do not answer: `no leader is heard; n2: ...; n3: ...`."""
    return "; ".join(part for part in reason.split("; ") if part.partition(": ")[0] not in absent)
