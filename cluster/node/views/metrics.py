"""A node's metrics for Prometheus. Nearly all are read from the node at the scrape."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.replication import Durations
from quire.replication.core import NodeRole
from quire.replication.core.status import Queues
from quire.replication.lag import MICROSECONDS
from quire.sm import StateRoom

from ..components import NodeView
from ..tables.cursor_lag import CursorLags
from ..turn_times import TurnTimes
from .status import node_status

ROLES = tuple(NodeRole)
INDICES = ("lowest_index", "highest_index", "durable_index", "commit_index", "applied_index")


class Gauge(NamedTuple):
    """A value that is read at the scrape."""

    name: str
    text: str
    value: Callable[[], float]


class Metrics:
    """One node's metrics, in a registry of its own; `gauges` are those of the HTTP server."""

    def __init__(
        self, node: NodeView, gauges: Sequence[Gauge], turns: TurnTimes, dropped_lines: Callable[[], int]
    ) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_NodeCollector(node, gauges, self.answers, turns, dropped_lines))

    def exposition(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(
        self,
        node: NodeView,
        gauges: Sequence[Gauge],
        answers: Counter[tuple[str, str, int]],
        turns: TurnTimes,
        dropped_lines: Callable[[], int],
    ) -> None:
        self._node = node
        self._gauges = gauges
        self._answers = answers
        self._turns = turns
        self._dropped_lines = dropped_lines

    def collect(self) -> Iterator[Metric]:
        """Every metric, with its value now."""
        yield from self._counters()
        yield from self._write_path()
        text = "CPU time of the event loop's turns, minus 10 ms; a sample for each 10 ms of CPU time"
        yield _histogram("quire_loop_turn_seconds", text, self._turns.durations)
        longest = GaugeMetricFamily(
            "quire_loop_turn_longest_seconds", "The longest turn since the node became ready", labels=["what"]
        )
        longest.add_metric([self._turns.longest.what], self._turns.longest.held_s)
        yield longest
        text = "Turns of the event loop that waited for 150 ms or longer, by their duration"
        yield _histogram("quire_loop_blocked_seconds", text, self._turns.blocked)
        text = "Lines for stderr and stdout that were dropped: too many of a kind, or nothing read them"
        yield CounterMetricFamily("quire_journal_dropped", text, value=self._dropped_lines())
        for gauge in self._gauges:
            yield GaugeMetricFamily(gauge.name, gauge.text, value=gauge.value())
        status = node_status(self._node)
        role = GaugeMetricFamily("quire_role", "1 for the node's role, 0 for the others", labels=["role"])
        for name in dict.fromkeys([*ROLES, status["role"]]):
            role.add_metric([name], float(name == status["role"]))
        yield role
        yield GaugeMetricFamily("quire_epoch", "The node's epoch", value=status["epoch"])
        changes = self._node.leadership.changes
        text = "Changes of leader that this node has seen since its start"
        yield CounterMetricFamily("quire_leader_changes", text, value=changes)
        yield _refused_messages(status.get("refused_messages", {}))
        text = "1 if the control plane nominates this node"
        yield GaugeMetricFamily("quire_nominated", text, value=self._node.leadership.nominated)
        if "fitness" in status:
            text = "0 if the node is fit to lead, else the level of its unfitness (deploy/runbook.md)"
            yield GaugeMetricFamily("quire_fitness_level", text, value=status["fitness"]["level"])
        yield GaugeMetricFamily("quire_serving", "1 if the node leads and serves", value=status["serving"])
        yield GaugeMetricFamily("quire_ready", "1 if /readyz answers 200", value=status["ready"])
        for name in INDICES:
            if name in status:
                yield GaugeMetricFamily(f"quire_{name}", f"{name} of the node's log or machine", value=status[name])
        text = "When the node's certificate or one of its CAs expires, in seconds since 1970; 0 without TLS"
        certificate = status["certificate"] or {"expires_at": 0.0, "ca_expires_at": 0.0}
        expires_at = min(certificate["expires_at"], certificate["ca_expires_at"])
        yield GaugeMetricFamily("quire_certificate_expires_seconds", text, value=expires_at)
        room = StateRoom(0, 0) if self._node.formed is None else self._node.formed.state_room
        text = "Size of the machine's state as counted towards its limit, in bytes; 0 if it is not counted"
        yield GaugeMetricFamily("quire_state_bytes", text, value=room.size)
        yield GaugeMetricFamily("quire_state_limit_bytes", "Limit of the machine's state, 0 for none", value=room.limit)
        if self._node.formed is not None and "log_bytes" in status:
            yield GaugeMetricFamily("quire_log_bytes", "Size of the log's files", value=status["log_bytes"])
            yield from _compaction(status["snapshots"], status["expiry"])
            yield from _cursors(self._node.formed.cursor_lags, status["clock"])
        for unit, value in status.get("lag", {}).items():
            yield GaugeMetricFamily(f"quire_lag_{unit}", f"How many {unit} the node is behind its leader", value=value)
        for unit, value in status.get("apply_lag", {}).items():
            text = f"How many {unit} the node's machine is behind commit_index"
            yield GaugeMetricFamily(f"quire_apply_lag_{unit}", text, value=value)
        if "nodes" in status:
            yield from _lags_of_others(status["nodes"])
            text = "1 if another node's digest differs from this leader's at the same index"
            differs = GaugeMetricFamily("quire_node_digest_differs", text, labels=["node"])
            differing = self._node.digests.differing
            for node_id in sorted({*status["nodes"], *differing}):  # Also of a node that this leader has not heard.
                differs.add_metric([node_id], float(node_id in differing))
            yield differs
            text = "How far a voter's clock is ahead of the time that the clocks of a majority have reached"
            offsets = GaugeMetricFamily("quire_node_clock_offset_seconds", text, labels=["node"])
            for node_id, offset_us in status["clock_offsets_us"].items():
                offsets.add_metric([node_id], offset_us / MICROSECONDS)
            yield offsets

    def _counters(self) -> Iterator[Metric]:
        counts = self._node.write_counts
        for name, text, value in (
            ("requests", "Writes handed to this leader's writer", counts.requests),
            ("commands", "Commands and records in those writes", counts.commands),
            ("frames", "Frames of writes that this leader appended", counts.frames),
            ("payload_bytes", "Bytes of the writes in those frames", counts.payload_bytes),
        ):
            yield CounterMetricFamily(f"quire_write_{name}", text, value=value)
        answers = CounterMetricFamily("quire_http_answers", "Responses started", labels=["method", "path", "status"])
        for (method, path, code), count in self._answers.items():
            answers.add_metric([method, path, str(code)], count)
        yield answers

    def _write_path(self) -> Iterator[Metric]:
        """The durations of the write path's steps on this node, and its queues."""
        times = self._node.write_counts.times
        times.count()
        yield _histogram("quire_write_check_seconds", "The machine's check of a request's commands", times.check)
        text = "From a frame's first write handed to this leader's writer until it was appended"
        yield _histogram("quire_write_queue_seconds", text, times.queue)
        text = "From a frame being durable on this leader until it was committed"
        yield _histogram("quire_write_majority_seconds", text, times.majority)
        yield _histogram("quire_apply_seconds", "A frame in the machine", times.apply)
        yield _histogram("quire_write_frame_seconds", "From a frame's append until it was applied here", times.frame)
        if (components := self._node.formed) is None:
            return
        durations = components.replica.driver.flush_durations
        yield _histogram("quire_flush_seconds", "From the start of a flush until the node processed its end", durations)
        leader = components.replica.core.status().leader
        queues = Queues(0, 0, 0) if leader is None else leader.queues
        for name, text, value in (
            ("waiting_requests", "Writes waiting for this leader's writer", queues.waiting_requests),
            ("waiting_bytes", "Bytes of the writes waiting for this leader's writer", queues.waiting_bytes),
            (
                "uncommitted_bytes",
                "Bytes that this leader appended and that are not committed yet",
                queues.uncommitted_bytes,
            ),
        ):
            yield GaugeMetricFamily(f"quire_write_{name}", text, value=value)


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    return HistogramMetricFamily(name, text, buckets=list(durations.buckets()), sum_value=durations.sum_s)


def _refused_messages(counts: Mapping[str, int]) -> Metric:
    text = "Messages from peers that were rejected as implausible (docs/protocol.md, rules 18 and 19)"
    refused = CounterMetricFamily("quire_refused_messages", text, labels=["why"])
    for why, count in counts.items():
        refused.add_metric([why], count)
    return refused


def _compaction(snapshots: dict[str, Any], expiry: dict[str, Any]) -> Iterator[Metric]:
    """Snapshots and the log's expiry."""
    newest = snapshots["kept"][-1] if snapshots["kept"] else {"index": 0, "bytes": 0}
    for name, text, value in (
        ("snapshot_index", "The newest snapshot has every record below this index; 0 without one", newest["index"]),
        ("snapshot_bytes", "Size of the newest snapshot", newest["bytes"]),
        ("snapshot_pause_seconds", "How long the last snapshot delayed commits", snapshots["pause_ms"] / 1000),
        ("snapshot_failed", "1 if the last attempt to take a snapshot failed", bool(snapshots["failure"])),
        ("snapshot_overdue_seconds", "For how long a snapshot has been overdue", snapshots["overdue_seconds"]),
        (
            "snapshots_damaged",
            "Damaged snapshots that were quarantined since the node started",
            len(snapshots["damaged"]),
        ),
        ("expiry_floor_index", "Records at or above this index may not expire", expiry["floor"]),
    ):
        yield GaugeMetricFamily(f"quire_{name}", text, value=value)
    text = "Segments that expired since the node's start"
    yield CounterMetricFamily("quire_expired_segments", text, value=expiry["expired_segments"])


def _cursors(lags: CursorLags, clock: int) -> Iterator[Metric]:
    """The number of cursors, the lag of as many as may have a series, and how many others lag."""
    yield GaugeMetricFamily("quire_cursors", "Cursors in the log", value=len(lags))
    text = "Cursors that lag and have no series below, as there are too many"
    yield GaugeMetricFamily("quire_cursors_unlisted", text, value=lags.unlisted)
    shown = lags.shown(clock)
    for unit, text in (
        ("records", "How many indices the first record that a cursor's consumer has not read is below the end"),
        ("seconds", "How old that record is; 0 if the consumer has read all"),
    ):
        family = GaugeMetricFamily(f"quire_cursor_lag_{unit}", text, labels=["cursor"])
        for read, lag in shown:
            family.add_metric([read.name], lag.records if unit == "records" else lag.seconds)
        yield family


def _lags_of_others(nodes: dict[str, dict[str, dict[str, float]]]) -> Iterator[Metric]:
    """A leader's view of the lag of the other nodes and of their machines."""
    for lag, units, what in (
        ("lag", ("records", "bytes", "seconds"), "another node is behind this leader"),
        ("apply_lag", ("records", "seconds"), "another node's machine is behind its log"),
    ):
        for unit in units:
            family = GaugeMetricFamily(f"quire_node_{lag}_{unit}", f"How many {unit} {what}", labels=["node"])
            for node_id, row in nodes.items():
                family.add_metric([node_id], row[lag][unit])
            yield family
