"""The document of `GET /status`, and why a node is not ready: functions of a node's parts.

They read the parts and change nothing.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from quire import __version__
from quire.log import Bounds, wall_clock
from quire.replication import Members, Replica
from quire.replication.address import may_serve
from quire.replication.core.fitness import FitnessStatus
from quire.replication.lag import MICROSECONDS
from quire.sm import StateRoom

from ...config.access import INSECURE
from ...data_dir.genesis import ignored_settings
from ..components import Components, NodeView
from ..digests import Difference, Digests
from ..tables.cursor_lag import cursor_rows
from ..writing import Waiter
from .awaiting import forming_sentence, no_leader_sentence
from .fitness import Sentence, fitness_document, sentences, unready_reasons

DOUBT_ADVICE = "restart it, so that it applies the log again; if it still differs, move its data_dir away and rejoin it"
CLOCK_ALARM_US = 10_000_000
"""A voter whose clock differs from the majority's by more than this raises an alarm. NTP keeps clocks far closer."""


def node_status(node: NodeView) -> dict[str, Any]:
    """The document of `GET /status`; see `docs/architecture.md` for its fields."""
    clock, reasons = wall_clock(), not_ready_reasons(node)
    document: dict[str, Any] = {
        "node_id": node.config.node,
        **_leadership(node),
        "clock": clock,
        "version": __version__,
        "started_at": node.started_at,
        "drained": node.leadership.drained,
        "ready": not reasons,
        "reasons": reasons,
        "machine": {"name": node.machine_name},
        "certificate": _certificate(node),
    }
    if (components := node.formed) is None:
        failures = dict(node.forming.failures) if node.forming else {}
        return document | {"link_failures": failures, "alarms": standing_alarms(node)}
    replica, log, genesis = components.replica, components.log, components.genesis
    applying, room = components.applying, components.state_room
    status = replica.core.status()
    document |= {
        "cluster_id": genesis.cluster_id.hex(),
        "history": components.history,
        "limits": dict(genesis.limits),
        "disk_id": status.me.disk_id.hex(),
        "machine": {
            "name": genesis.machine[0],
            "version": genesis.machine[1],
            "initial": genesis.initial,
            "code": components.code.running.hex() or None,
            "accepted_code": [code.hex() for code in components.code.accepted],
            "state_bytes": room.size,
            "state_limit_bytes": room.limit,
        },
        "lowest_index": log.bounds.lowest_index,
        "highest_index": log.bounds.highest_index,
        "durable_index": log.durable_index,
        "commit_index": replica.core.commit_index,
        "applied_index": applying.applied_index,
        "digest": applying.digest.hex(),
        "features": sorted(applying.features),
        "log_bytes": log.size,
        **components.compaction.document(),
        "cursors": _cursors(components, clock),
        "lag": replica.lags.own(clock)._asdict(),
        "apply_lag": replica.lags.own_apply(applying.applied_index, clock)._asdict(),
        "members": _rows(status.members),
        "links": sorted(status.links),
        "link_failures": dict(replica.network.reports.failures),
        "other_histories": {node: other.history.hex() for node, other in replica.network.reports.histories.items()},
        "refused_messages": {**status.refused, "nomination": node.leadership.refused_nominations},
        **node.leadership.document(),
        "commands": node.write_counts.times.document(),
        "fitness": fitness_document(status.fitness, node.config.data_dir),
        "alarms": alarms(components, node.digests, _of_node(node, status.fitness, room)),
    }
    if status.leader is not None:
        document["nodes"] = _nodes(replica, node.digests, clock)
        document["clock_offsets_us"] = dict(status.leader.clock_offsets_us)
    elif (stream := replica.network.reports.stream) is not None:
        document["stream"] = {"from_index": stream.from_index, "received_bytes": stream.received_bytes}
    return document


def _of_node(node: NodeView, fitness: FitnessStatus, room: StateRoom) -> list[str]:
    """The alarms about its configuration, its fitness, its state and its commands."""
    data_dir = node.config.data_dir
    slow = node.write_counts.times.alarms(data_dir)
    return [*standing_alarms(node), *sentences(fitness, data_dir), *room_alarms(room), *slow]


def _cursors(components: Components, clock: int) -> dict[str, object]:
    """How many cursors there are, what they may hold, and those furthest behind, as of the last look at them."""
    lags, cursors = components.cursor_lags, components.cursors
    return {
        "count": len(lags),
        "hold_bytes": cursors.hold_bytes,
        "cursors_hold_bytes": cursors.hold_limit,
        "behind": cursor_rows(lags.behind(clock)),
    }


def _leadership(node: NodeView) -> dict[str, object]:
    leadership = node.leadership
    return {
        "role": leadership.role.role,
        "epoch": leadership.role.epoch,
        "leader": leadership.leader_id,
        "serving": leadership.is_leader,
    }


def halted(node: NodeView) -> Sentence:
    """Why this node has halted."""
    name = "files_missing" if node.health.stranded else "halted"
    return Sentence(name, f"the node has halted: {node.health.failure}")


def not_ready_reasons(node: NodeView) -> list[Sentence]:
    """Why this node should get no traffic; empty if it should."""
    if node.health.failure is not None:
        return [halted(node)]
    if node.formed is None:
        awaited = node.forming.awaited() if node.forming else ""
        return [Sentence("not_formed", forming_sentence(node.config, awaited))]
    reasons = unready_reasons(node)
    if (doubt := _doubt(node, node.formed)) is not None:
        reasons.append(Sentence("state_differs", doubt))
    if node.leadership.leader_id is None:
        replica = node.formed.replica
        why = no_leader_sentence(replica.core.status(), replica.network.reports.failures)
        reasons.append(Sentence("no_leader", why))
    elif node.leadership.leader_id == node.config.node and not node.leadership.is_leader:
        reasons.append(Sentence("epoch_not_started", "this leader's first record is not committed yet"))
    elif node.leadership.leader_id != node.config.node and not node.formed.replica.core.status().is_matched:
        install = node.formed.compaction.installing.failure
        unfit = "; also: ".join(sentences(node.formed.replica.core.status().fitness, node.config.data_dir))
        why = "; also: ".join(filter(None, (install, unfit)))
        closed = f"the stream from {node.leadership.leader_id} is not open yet"
        reasons.append(Sentence("no_stream", f"{closed}: {why}" if why else closed))
    elif not node.formed.replica.core.status().backlog.is_known:
        why = f"what {node.leadership.leader_id} has committed is not known, or not received yet"
        reasons.append(Sentence("commit_unknown", why))
    return reasons


def visible_bounds(node: NodeView) -> Bounds:
    """[lowest_index, highest_index) of the records that may be read on this node."""
    return Bounds(0, 0) if node.formed is None else node.formed.reading.bounds


def _doubt(node: NodeView, components: Components) -> str | None:
    """Why this node's state, and not another's, is in doubt; None if it is not."""
    digests = node.digests
    if not digests.differing:
        return None
    voters = {voter.node_id for voter in components.replica.core.status().members.voters()}
    if not digests.is_doubted(node.config.node, node.leadership.leader_id, voters):
        return None
    others = ", ".join(sorted(digests.differing))
    return f"its state differs from that of {others}: {DOUBT_ADVICE}"


def alarms(components: Components, digests: Digests, fitness: list[str]) -> list[str]:
    """The alarms for an operator: its unfitness (`fitness_alarms`), duplicates of it, a lost or overdue snapshot, and
    cursors that hold no more, hold too much, or whose records expired.

    Also peers of other histories, nodes whose digest differs from this node's, implausible messages from peers (rules
    18 and 19), and, on a leader, clocks that are wrong.
    """
    replica, reports = components.replica, components.replica.network.reports
    status = replica.core.status()
    differing = [difference.alarm(node_id) for node_id, difference in digests.differing.items()]
    own = [alarm for alarm in (*fitness, components.compaction.snapshotting.alarm) if alarm]
    own += [*components.compaction.retention.alarms(), *components.cursor_lags.alarms(), *components.cursors.alarms()]
    clocks = clock_alarms({} if status.leader is None else status.leader.clock_offsets_us)
    own += [other.alarm(node_id) for node_id, other in reports.histories.items()]
    return sorted([*reports.alarms.values(), *status.alarms.values(), *differing, *clocks, *own])


def standing_alarms(node: NodeView) -> list[str]:
    """The alarms that last until the configuration is fixed, or code is changed or accepted; they are also logged."""
    config, components = node.config, node.formed
    address = node.addresses.of(config.node) or config.members[config.node]
    move = shlex.join(["quire", "members", "move", f"{config.node}={config.listen}"])
    misplaced = (
        f"this node listens on {config.listen}, but others dial it at {address}, its address in members; correct "
        f"--listen, or run `{move}`, unless something forwards one to the other"
    )
    of_disk = [] if node.resources is None else node.resources.data_dir.alarms
    known = [*trust_alarms(node), *of_disk, *([] if may_serve(config.listen, address) else [misplaced])]
    if components is None:
        return known
    ignored = ignored_settings(components.genesis, config)
    if (differing := node.addresses.differences()) is not None:
        known.append(differing)
    voters = {voter.node_id for voter in components.replica.core.status().members.voters()}
    parting = node.digests.parting(config.node, voters)
    return [*known, *ignored, *components.code.alarms(components.codes(), voters, parting)]


def trust_alarms(node: NodeView) -> list[str]:
    """The alarms about programs that could pose as a peer or as a client, and about what expires."""
    exposed = None if node.resources is None else node.resources.secret_file.alarm
    found = [text for text in (INSECURE if node.config.insecure else None, exposed) if text is not None]
    return [*found, *node.credentials.alarms()]


def clock_alarms(offsets_us: Mapping[str, int]) -> list[str]:
    """An alarm for each node whose clock is far from the time that a majority's clocks have reached."""
    return [
        f"the clock of {node} is {abs(offset) / MICROSECONDS:.0f} s {'ahead of' if offset > 0 else 'behind'} the "
        f"majority's; set it right (NTP)"
        for node, offset in offsets_us.items()
        if abs(offset) > CLOCK_ALARM_US
    ]


def room_alarms(room: StateRoom) -> list[str]:
    """An alarm for a state that is nearly full."""
    if not room.is_scarce:
        return []
    counts = f"the machine's state has {room.size} of at most {room.limit} bytes"
    return [f"{counts}; once it is full, commands that make it larger are refused: delete what is not needed"]


def _rows(members: Members) -> list[dict[str, str]]:
    return [
        {"node_id": member.node_id, "disk_id": member.disk_id.hex(), "address": member.address, "role": member.role}
        for member in members.members
    ]


def _certificate(node: NodeView) -> dict[str, Any] | None:
    tls = node.credentials.tls
    if tls is None:
        return None
    return {
        "cluster": tls.cluster,
        "expires_at": tls.expires_at,
        "ca_expires_at": tls.ca_expires_at,
        "ca_sha256": sorted(digest.hex() for digest in tls.ca_digests),
    }


def _nodes(replica: Replica[Waiter], digests: Digests, clock: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    leader = replica.core.status().leader
    held = {} if leader is None else {stream.node_id: stream.held_for for stream in leader.streams}
    for node_id, position in sorted(replica.lags.positions.items()):
        rows[node_id] = {
            "durable_index": position.durable_index,
            "applied_index": position.applied_index,
            "digest": position.digest.hex(),
            "differs": _difference(digests.differing.get(node_id)),
            "heard_at": position.heard_at,
            "lag": replica.lags.of(position, clock)._asdict(),
            "apply_lag": replica.lags.apply_of(position, clock)._asdict(),
            "held_for": held.get(node_id) or None,
        }
    return rows


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    index, digest, own_digest = difference
    return {"index": index, "digest": digest.hex(), "leader_digest": own_digest.hex()}
