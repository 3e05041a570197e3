"""Clients: sessions with retries, writes without a session, and linearizable reads; each answer is checked.

A client that gets no answer retries at another node if the write belongs to a session. Otherwise the outcome is
unknown, and the client does not send that command again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from quire.log import Kind, encode_blob, encode_records, encode_system
from quire.replication import Reason, Write
from quire.sm import SESSION_CODES

from ..errors import ClusterError
from ..node.writing import WriteReply
from .checks import Checks, Violation
from .clock import MILLISECOND, Schedule
from .node.node import Node
from .node.reads import Reader

MAX_UNDER_WAY = 3
GONE = frozenset({"SESSION_FENCED", "SESSION_EXPIRED"})


class NotLinearizable(Exception):
    """An operation took effect before one that had ended when it began."""


class Order:
    """Checks linearizability of a history whose order is known.

    Every acknowledged write has its index, and every read the node's applied_index. So the order is given and need not
    be searched for: operations take effect in the log's order, which must agree with real time. An operation that began
    after another had ended must not take effect before it.

    Whether each answer follows from the order is checked by `machine.Model`.
    """

    def __init__(self, ended: int = 0) -> None:
        self._ended = ended
        """The highest index of all ended operations: a write at `index` takes effect in [index, index + 1)."""

    def began(self) -> int:
        """The index that an operation which begins now must not precede; keep it until the operation ends."""
        return self._ended

    def wrote(self, began: int, index: int) -> None:
        """Note the end of a write that took effect at record `index`.

        Raises:
            NotLinearizable: an operation with a higher index had ended before it began.
        """
        if index < began:
            raise NotLinearizable(f"a write took effect at {index}; when it began, {began} had been seen")
        self._ended = max(self._ended, index + 1)

    def read(self, began: int, applied_index: int) -> None:
        """Note the end of a read that saw exactly the records below `applied_index`.

        Raises:
            NotLinearizable: it missed a write that had ended before it began.
        """
        if applied_index < began:
            raise NotLinearizable(f"a read saw what is below {applied_index}; when it began, {began} had been seen")
        self._ended = max(self._ended, applied_index)


@dataclass
class Habits:
    """How the clients of a history behave: times in microseconds, chances in [0, 1]."""

    clients: int = 3
    think_us: int = 60 * MILLISECOND
    read_chance: float = 0.25
    sessionless_chance: float = 0.2
    blob_chance: float = 0.1
    expecting_chance: float = 0.1
    lost_chance: float = 0.01
    restart_chance: float = 0.01
    wander_chance: float = 0.0
    patience_us: int = 600 * MILLISECOND
    patience_after_us: int = 600 * MILLISECOND
    """The patience after the last fault, when the cluster must converge."""
    named: bool = True
    consumers: int = 2
    commit_us: int = 1_500 * MILLISECOND
    """The time between two records of a consumer."""


@dataclass(eq=False)
class Operation:
    """A read or a write. `commands` belong to a write; `sequence` is that of the first."""

    kind: str
    began: int
    commands: list[object] = field(default_factory=list[object])
    session: int = 0
    sequence: int = 0
    expected_index: int | None = None
    attempt: int = 0
    ended: bool = False


@dataclass(eq=False)
class Attempt:
    """One request for an operation: the `Waiter` of its write."""

    client: "Client"
    operation: Operation
    number: int
    applied: bool = True

    def answer(self, reply: WriteReply) -> None:
        self.client.receives(self, lambda: self.client.answered(self.operation, reply))

    def fail(self, error: ClusterError) -> None:
        self.client.receives(self, lambda: self.client.failed(self))

    def rejected(self, reason: Reason) -> None:
        if not self.operation.session and self.operation.kind == "write":
            # Nothing of it was written, and it is not retried.
            self.client.checks.model.never.update(self.operation.commands)
        self.client.receives(self, lambda: self.client.failed(self))


class Client:
    """One client, which talks to one node at a time."""

    def __init__(
        self, name: str, schedule: Schedule, nodes: list[Node], checks: Checks, order: Order, habits: Habits, seed: str
    ) -> None:
        self.name = name
        self.checks = checks
        self.random = Random(f"{seed}/{name}")
        self.schedule = schedule
        self.nodes = nodes
        self.order = order
        self.habits = habits
        self.think_us = habits.think_us
        self.node = self.random.choice(nodes)
        self.session = 0
        self.sequence = 0
        self.under_way: list[Operation] = []
        self.stopped = False
        self._resending = False
        self._numbers = iter(range(int(name) + 1, 1 << 40, 16))

    @property
    def is_idle(self) -> bool:
        """Whether every operation has ended."""
        return not self.under_way

    def begin(self) -> None:
        """Begin operations, now and again, until it is stopped."""
        if not self.stopped:
            self._want()
            self.schedule.later(int(self.random.expovariate(1.0) * self.think_us), self.begin)

    # Operations

    def _want(self) -> None:
        random, habits = self.random, self.habits
        if random.random() < habits.restart_chance:
            self._restart()
        if random.random() < habits.wander_chance:
            self._choose_node()
        if len(self.under_way) >= MAX_UNDER_WAY:
            return
        if random.random() < habits.read_chance:
            self._begin(Operation("read", self.order.began()))
        elif random.random() < habits.sessionless_chance:
            self._begin(self._write_without_session())
        elif not self.session:
            if not any(operation.kind == "open" for operation in self.under_way):
                self._begin(Operation("open", self.order.began(), [("open", self._name())], session=-1))
        else:
            commands: list[object] = [next(self._numbers) for _ in range(random.choice((1, 1, 1, 2, 3)))]
            self._begin(Operation("write", self.order.began(), commands, self.session, self.sequence + 1))
            self.sequence += len(commands)

    def _write_without_session(self) -> Operation:
        random, habits = self.random, self.habits
        number = next(self._numbers)
        operation = Operation("write", self.order.began(), [number])
        if random.random() < habits.blob_chance:
            operation.commands = [b"blob %d" % number + bytes(random.randint(0, 200))]
        if random.random() < habits.expecting_chance:
            operation.expected_index = (self.checks.ends[-1] if self.checks.ends else 0) + random.choice((0, 0, 0, 1))
        return operation

    def want_last(self) -> None:
        """Begin one last write and one last read, after the faults."""
        self._begin(Operation("write", self.order.began(), [next(self._numbers)]))
        self._begin(Operation("read", self.order.began()))

    def _name(self) -> str | None:
        return f"client-{self.name}" if self.habits.named else None

    def _restart(self) -> None:
        """Forget everything. Operations under way may still take effect; a named session is opened again."""
        self.under_way.clear()
        self.session = 0

    def _begin(self, operation: Operation) -> None:
        self.checks.counts.operations += 1
        self.under_way.append(operation)
        self._send(operation)

    # Requests

    def _delay(self) -> int:
        return self.random.randint(100, 2_000)

    def _send(self, operation: Operation) -> None:
        operation.attempt += 1
        attempt = Attempt(self, operation, operation.attempt)
        patience_us = self.habits.patience_after_us if self.stopped else self.habits.patience_us
        self.schedule.later(patience_us, self._times_out, attempt)
        if self.random.random() >= self.habits.lost_chance:
            self.schedule.later(1_000, self._arrive, self.node, attempt)

    def _arrive(self, node: Node, attempt: Attempt) -> None:
        if node.runs and (not node.is_restored or node.checks is self.checks):
            node.run(node.life, self._ask, node, attempt)
        else:
            self.schedule.later(self._delay(), self._fails, attempt)

    def _ask(self, node: Node, attempt: Attempt) -> None:
        operation = attempt.operation
        if operation.kind == "read":

            def answer(state: object, applied_index: int) -> None:
                self.receives(attempt, lambda: self.read(operation, state, applied_index))

            node.running.reads.begin(Reader(answer, lambda: self.receives(attempt, lambda: self.failed(attempt))))
            return
        node.running.writes.propose(self._write_of(operation, attempt))

    def _write_of(self, operation: Operation, attempt: Attempt) -> Write[Attempt]:
        commands = operation.commands
        if operation.kind == "open":
            payload = encode_system({"type": "open_session", "name": self._name()})
            return Write(payload, 1, Kind.SYSTEM, owner=attempt)
        if isinstance(commands[0], bytes):
            return Write(encode_blob(commands[0]), 1, Kind.BLOB, operation.expected_index, owner=attempt)
        return Write(
            encode_records(commands),
            len(commands),
            expected_index=operation.expected_index,
            session=operation.session,
            sequence=operation.sequence,
            owner=attempt,
        )

    def receives(self, attempt: Attempt, what: Callable[[], None]) -> None:
        """Handle an answer after a delay, unless it is lost."""
        if self.random.random() >= self.habits.lost_chance:
            self.schedule.later(self._delay(), self._received, attempt, what)

    def _received(self, attempt: Attempt, what: Callable[[], None]) -> None:
        operation = attempt.operation
        if not operation.ended and operation in self.under_way:
            what()

    def _times_out(self, attempt: Attempt) -> None:
        if attempt.number == attempt.operation.attempt:
            self._fails(attempt)

    def _fails(self, attempt: Attempt) -> None:
        self._received(attempt, lambda: self.failed(attempt))

    # Answers

    def failed(self, attempt: Attempt) -> None:
        """Handle a failure or an unknown outcome: retry what may be retried, at another node and in order."""
        operation = attempt.operation
        if attempt.number != operation.attempt:
            return
        if operation.kind == "write" and not operation.session:
            self._end(operation)
        if not self._resending:
            self._resending = True
            self.schedule.later(self.random.randint(5, 80) * MILLISECOND, self._send_again)

    def _send_again(self) -> None:
        self._resending = False
        self._choose_node()
        for operation in list(self.under_way):
            if operation.kind == "write" and not operation.session:
                continue
            self._send(operation)

    def _choose_node(self) -> None:
        """Choose a node, mostly one that believes it leads."""
        leaders = [node for node in self.nodes if node.leads]
        self.node = self.random.choice(leaders if leaders and self.random.random() < 0.7 else self.nodes)

    def _end(self, operation: Operation) -> None:
        operation.ended = True
        if operation in self.under_way:
            self.under_way.remove(operation)

    def read(self, operation: Operation, state: object, applied_index: int) -> None:
        """Check a read's answer: the state at its applied index, and linearizable."""
        if state != self.checks.model.states.get(applied_index):
            known = self.checks.model.states.get(applied_index)
            raise Violation("a read returns the state that the log gives", applied_index, state, known)
        try:
            self.order.read(operation.began, applied_index)
        except NotLinearizable as error:
            raise Violation("linearizable", error) from error
        self._end(operation)

    def answered(self, operation: Operation, reply: WriteReply) -> None:
        """Check a write's answer: it is in the log, and the results are what the log gives."""
        model = self.checks.model
        refused = {position: code for position, code, _ in reply.refused}
        self._check_committed(reply)
        if "SEQUENCE_GAP" in refused.values():
            self.schedule.later(0, self._fails, Attempt(self, operation, operation.attempt))
            return
        if operation.expected_index not in (None, reply.index):
            raise Violation("a write has the index that was expected", operation, reply)
        for position, command in enumerate(operation.commands):
            logged, recorded = model.at[reply.index + position]
            if logged != command or recorded != (reply.results[position], refused.get(position)):
                raise Violation("a write gets the results that the log gives", command, reply, logged, recorded)
            index = reply.index if operation.kind == "open" and not refused else model.executed_at.get(command)
            if index is None:
                if refused.get(position) not in GONE and operation.kind != "open":
                    raise Violation("an acknowledged command was executed", command, reply)
            else:
                self._wrote(operation, index)
        again = [
            command
            for position, command in enumerate(operation.commands)
            if refused.get(position) not in SESSION_CODES and model.executed_at.get(command) != reply.index + position
        ]
        if reply.repeated != (operation.kind != "open" and bool(again)):
            raise Violation("an answer says whether its session repeated a reply", operation, reply, again)
        if GONE & set(refused.values()):
            self.session = 0  # Evicted, or fenced by a late request of its own: open again.
        if operation.kind == "open" and not refused:
            self._opened(reply.results[0])
        self._end(operation)
        self.acknowledged(operation)

    def _check_committed(self, reply: WriteReply) -> None:
        if not self.checks.ends or reply.index + reply.count > self.checks.ends[-1]:
            raise Violation("what is acknowledged is committed", reply, self.checks.ends[-1:])

    def _opened(self, result: object) -> None:
        match result:
            case {"session": int(session), "sequence": int(sequence)}:
                self.session, self.sequence = session, sequence
            case _:
                raise Violation("an opened session has a number and a sequence", result)

    def acknowledged(self, operation: Operation) -> None:
        """Note a write with a correct answer. A prober measures here."""

    def _wrote(self, operation: Operation, index: int) -> None:
        try:
            self.order.wrote(operation.began, index)
        except NotLinearizable as error:
            raise Violation("linearizable", error) from error
