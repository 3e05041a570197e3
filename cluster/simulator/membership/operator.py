"""An operator who wants other members, and asks the leader again and again until they are as wanted.

A wish ends once the leader says that nothing remains to be done, or refuses it for a reason that time does not end. A
later wish for a node replaces an earlier one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from quire.replication.core import Role, events
from quire.replication.core.membership.changing import (
    Add,
    AddressTaken,
    AlreadyMember,
    Changed,
    Demote,
    LastVoter,
    Move,
    NoMember,
    NotConnected,
    Outcome,
    OwnRow,
    Promote,
    Remove,
    Unchanged,
    Wanted,
)

from ..checks import Checks
from ..clock import MILLISECOND, Schedule
from ..node.node import Node

ASKS_AGAIN_US = (20 * MILLISECOND, 600 * MILLISECOND)
FOR_GOOD = (AddressTaken, AlreadyMember, LastVoter, NoMember)


@dataclass
class Wish:
    """What is wanted of these nodes, and the number of the last request for it."""

    nodes: tuple[str, ...]
    wanted: Wanted
    ask_id: int = 0

    @property
    def takes_votes(self) -> bool:
        """Whether there may be fewer voters after it."""
        return isinstance(self.wanted, Remove | Demote)


class Operator:
    """Carries out wishes, each of them until it ends."""

    def __init__(self, seed: int, schedule: Schedule, nodes: list[Node], checks: Checks) -> None:
        self.wishes: list[Wish] = []
        self.ended: Callable[[Wish], None] = lambda _: None
        """Gets each wish that was fulfilled."""
        self._random = Random(f"{seed}/operator")
        self._schedule = schedule
        self._nodes = nodes
        self._checks = checks
        self._asks = count(1)
        for node in nodes:
            node.changed = self._changed

    def use(self, checks: Checks) -> None:
        """From now on another history is checked."""
        self._checks = checks

    @property
    def is_idle(self) -> bool:
        """Whether nothing is wanted."""
        return not self.wishes

    def want(self, nodes: tuple[str, ...], wanted: Wanted) -> None:
        """Begin to ask for it."""
        self.wishes = [
            wish for wish in self.wishes if not set(wish.nodes) & set(nodes) or not _replaces(wanted, wish.wanted)
        ]
        wish = Wish(nodes, wanted)
        self.wishes.append(wish)
        self._ask(wish)

    def promote(self, name: str) -> None:
        """Begin to ask that a node be a voter."""
        self.want((name,), Promote(name, f"{name}:1"))

    def add(self, nodes: tuple[str, ...], role: Role) -> None:
        """Begin to ask for rows for these nodes."""
        self.want(nodes, Add(tuple((node, f"{node}:1") for node in nodes), role))

    @property
    def leader(self) -> Node | None:
        """A node that believes it leads."""
        return next((node for node in self._nodes if node.leads and node.checks is self._checks), None)

    def _ask(self, wish: Wish) -> None:
        wish.ask_id = next(self._asks)
        if (leader := self.leader) is not None:
            leader.run(leader.life, leader.step, events.ChangeRequested(wish.ask_id, wish.wanted))
        self._schedule.later(self._random.randint(*ASKS_AGAIN_US), self._ask_again, wish, wish.ask_id)

    def _ask_again(self, wish: Wish, ask_id: int) -> None:
        if wish in self.wishes and wish.ask_id == ask_id:
            self._ask(wish)

    def _changed(self, ask_id: int, outcome: Outcome) -> None:
        if isinstance(outcome, Changed):
            self._checks.counts.changes += 1
        wish = next((wish for wish in self.wishes if wish.ask_id == ask_id), None)
        if wish is None:
            return
        if isinstance(outcome, OwnRow) and (leader := self.leader) is not None:
            leader.run(leader.life, leader.step, events.TransferRequested(None))
        elif isinstance(outcome, FOR_GOOD) or (isinstance(outcome, NotConnected) and self._have_no_rows(wish)):
            self.wishes.remove(wish)
        elif isinstance(outcome, Unchanged):
            self.wishes.remove(wish)
            self.ended(wish)

    def _have_no_rows(self, wish: Wish) -> bool:
        """Whether somebody must add these nodes first."""
        members = self.leader.running.core.members if self.leader is not None else None
        return members is not None and not any(members.of_node(name) for name in wish.nodes)


def _replaces(new: Wanted, old: Wanted) -> bool:
    """Whether a later wish for the same node ends an earlier one.

    Another address is wanted beside another role. A lost disk must be replaced first: until the feature is in the log,
    nothing else can be done with its row.
    """
    if isinstance(new, Move) or isinstance(old, Move | Promote):
        return type(new) is type(old)
    return True


def wanted_of(kind: str, name: str, address: str) -> Wanted:
    """What a wish of this kind wants for one node."""
    match kind:
        case "remove":
            return Remove(name)
        case "demote":
            return Demote(name)
        case "move":
            return Move(name, address)
        case _:
            raise ValueError(kind)
