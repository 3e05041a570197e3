"""A row for each node: its status and, if requested, its state; or why it gave none.

All nodes are asked at the same time, each once. So a row is as old as the slowest answer at most, and a node that
answers nothing delays the others by no more than its deadline.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, cast

from quire.log import Value

from ...client import Status
from ...client.documents import BoundsDocument
from ...errors import ClusterError
from .asking import AnotherNode, NoAnswer, NodeCaller, NotQuire, OtherCall


class State(TypedDict):
    """What a node answers about its state."""

    state: Value
    applied_index: int
    digest: str


HEALTH_ANSWERS = frozenset({200, 503})
STATE_PATH = "/state?consistency=local"


class NodeRow(NamedTuple):
    """A node's status and, if requested, its local state; or why it did not answer."""

    address: str
    status: Status | None
    answer: Value = None
    failure: str = ""
    absent: NoAnswer | None = None
    """Why there is no status."""

    @property
    def is_ready(self) -> bool:
        """Whether the node answers and should get traffic."""
        return self.status is not None and self.status.get("ready", not self.status.get("reasons"))

    @property
    def is_well(self) -> bool:
        """Whether the node is ready and hears no node of another history: both take writes, whoever is ready."""
        return self.is_ready and self.status is not None and not self.status.get("other_histories")

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {"address": self.address, "status": self.status, "answer": self.answer, "failure": self.failure}


Rows = dict[str, NodeRow]


class LogRow(NamedTuple):
    """A standalone log: its records [lowest_index, highest_index), and why it accepts no more, if it does not."""

    address: str
    lowest_index: int
    highest_index: int
    reason: str | None

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {**self._asdict(), "accepting": self.reason is None}


class TwoClusters(ClusterError):
    """The servers that were named are not of one cluster; the text says which is of which."""


@dataclass(slots=True)
class Survey:
    """What the nodes answered: a row for each member; or the standalone logs that were named; or nothing."""

    rows: Rows = field(default_factory=dict)
    logs: list[LogRow] = field(default_factory=list)
    strays: list[NoAnswer] = field(default_factory=list)
    """Servers that were named, are no member's address, and gave no status."""

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self.rows or self.logs)


async def ask_nodes(caller: NodeCaller, addresses: Mapping[str, str], timeout_s: float, *, states: bool) -> Rows:
    """A row for each node, by id, with its state if requested."""
    rows = await asyncio.gather(*(ask(caller, address, timeout_s, states=states) for address in addresses.values()))
    return dict(zip(addresses, rows, strict=True))


async def ask(caller: NodeCaller, address: str, timeout_s: float, *, states: bool) -> NodeRow:
    """The row of the node at an address. Raises OtherCall if a standalone log is there."""
    status, state = await asyncio.gather(
        _status(caller, address, timeout_s),
        caller.get(address, STATE_PATH, timeout_s) if states else _nothing(),
        return_exceptions=True,
    )
    try:
        if isinstance(status, BaseException):
            raise status
        if state is None:
            return NodeRow(address, status)
        if isinstance(state, NoAnswer):
            return NodeRow(address, status, failure=str(state))
        if isinstance(state, BaseException):
            raise state
        # Another status, so that its durable_index covers what the state has applied.
        status = await _status(caller, address, timeout_s)
    except NoAnswer as error:
        return NodeRow(address, None, failure=str(error), absent=error)
    # The status may be newer than the state; these two must match the state.
    of_state = cast("State", state)
    status["applied_index"], status["digest"] = of_state["applied_index"], of_state["digest"]
    return NodeRow(address, status, of_state["state"])


async def _nothing() -> None:
    return None


async def _status(caller: NodeCaller, address: str, timeout_s: float) -> Status:
    status = await caller.get(address, "/status", timeout_s)
    if "node_id" not in status:
        what = " is not a quire node (its answer is not a status)"
        raise NotQuire(address, what, "correct the address")
    return cast("Status", status)


async def ask_log(caller: NodeCaller, address: str, timeout_s: float) -> LogRow:
    """The row of a standalone log. Raises NoAnswer, and OtherCall if it is none."""
    bounds = cast("BoundsDocument", await caller.get(address, "/index_bounds", timeout_s))
    health = await caller.get(address, "/healthz", timeout_s, HEALTH_ANSWERS)
    reason = None if health.get("healthy") else str(health.get("reason") or "it does not say why")
    return LogRow(address, bounds["lowest_index"], bounds["highest_index"], reason)


async def survey(
    caller: NodeCaller,
    servers: Sequence[str],
    timeout_s: float,
    *,
    states: bool,
    known: Mapping[str, str] | None = None,
) -> Survey:
    """The members of the cluster of these servers, each asked once; `known` are those of an earlier survey.

    Raises:
        TwoClusters: the servers are of different clusters.
    """
    asked = _Asked(caller, timeout_s, states)
    asked.begin([*servers, *(known or {}).values()])
    while asked.pending:
        await asked.wait()
    named = {server: asked.rows[server] for server in dict.fromkeys(servers) if server in asked.rows}
    _refuse_two_clusters(named, asked.logs)
    strays = [row.absent for row in named.values() if row.absent is not None]
    answered = [row.status for row in asked.rows.values() if row.status is not None]
    if not answered and asked.logs:
        return Survey(logs=[asked.logs[server] for server in servers if server in asked.logs], strays=strays)
    best = _best(answered)
    listed = {} if best is None else {member["node_id"]: member["address"] for member in best.get("members", ())}
    members = listed or dict(known or {})
    rows = {node_id: _row_of(node_id, address, best, asked.rows, named) for node_id, address in members.items()}
    for row in named.values():  # Nodes that wait for their cluster to form, or to join one.
        if row.status is not None:
            rows.setdefault(row.status["node_id"], row)
    known_as = {row.address for row in rows.values()}
    return Survey(rows, strays=[row.absent for server, row in named.items() if row.absent and server not in known_as])


class _Asked:
    """The addresses that were asked so far. Who answers may name further members, which are then asked as well."""

    def __init__(self, caller: NodeCaller, timeout_s: float, states: bool) -> None:
        self._caller, self._timeout_s, self._states = caller, timeout_s, states
        self._begun: set[str] = set()
        self.pending: set[asyncio.Task[NodeRow | LogRow]] = set()
        self.rows: dict[str, NodeRow] = {}
        self.logs: dict[str, LogRow] = {}

    def begin(self, addresses: Sequence[str]) -> None:
        """Ask at those addresses that were not asked yet."""
        new = [address for address in dict.fromkeys(addresses) if address not in self._begun]
        self._begun.update(new)
        self.pending |= {asyncio.create_task(self._ask(address)) for address in new}

    async def _ask(self, address: str) -> NodeRow | LogRow:
        try:
            return await ask(self._caller, address, self._timeout_s, states=self._states)
        except OtherCall:
            pass
        try:
            return await ask_log(self._caller, address, self._timeout_s)
        except NoAnswer as error:
            return NodeRow(address, None, failure=str(error), absent=error)
        except OtherCall as error:
            absent = NotQuire(address, " is not a node of quire, nor a standalone log")
            return NodeRow(address, None, failure=str(error), absent=absent)

    async def wait(self) -> None:
        """Wait for some answers."""
        done, self.pending = await asyncio.wait(self.pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            row = task.result()
            if isinstance(row, LogRow):
                self.logs[row.address] = row
                continue
            self.rows[row.address] = row
            members = [] if row.status is None else row.status.get("members", ())
            self.begin([member["address"] for member in members])


def _best(statuses: Collection[Status]) -> Status | None:
    """That of the node that knows the members best: the one that leads, or else has the most recent records."""

    def rank(status: Status) -> tuple[bool, bool, int, int]:
        is_formed = bool(status.get("members"))
        return is_formed, status.get("serving", False), status.get("epoch", 0), status.get("commit_index", 0)

    return max(statuses, key=rank, default=None)


def _row_of(
    node_id: str, address: str, best: Status | None, rows: Mapping[str, NodeRow], named: Mapping[str, NodeRow]
) -> NodeRow:
    """The row of a member, asked at its own address, or at one that was named: from here, that may be its only one."""
    row = rows[address]
    if row.status is not None:
        if row.status["node_id"] == node_id and _cluster(row.status) in (None, _cluster(best)):
            return row
        there = f"{row.status['node_id']} of cluster {_cluster(row.status)}"
        another = AnotherNode(address, f" is not at its address: {there} answers", "correct the address")
        row = NodeRow(address, None, failure=str(another), absent=another)
    for other in named.values():
        if other.status is not None and other.status["node_id"] == node_id:
            return other._replace(address=address)
    return row


def _cluster(status: Status | None) -> str | None:
    """The cluster's id; None while it is not formed."""
    return None if status is None else status.get("cluster_id")


def _refuse_two_clusters(named: Mapping[str, NodeRow], logs: Mapping[str, LogRow]) -> None:
    """Raise TwoClusters if the servers that answered are not of one cluster. One that is not formed has no id yet."""
    owners = {
        server: f"of cluster {_cluster(row.status)}"
        for server, row in named.items()
        if row.status is not None and _cluster(row.status) is not None
    } | dict.fromkeys(logs, "a standalone log")
    (first, its), *others = [*owners.items()] or [("", "")]
    for server, whose in others:
        if whose != its:
            raise TwoClusters(f"{first} is {its} and {server} is {whose}: name the servers of one")
