"""One life of a node, from a start to a crash: what the parts of its process get from the machine around them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from quire.sm import Sessions

from ..checks import Checks
from ..clock import Schedule
from ..form import Form
from ..machine import Tally
from ..network import End
from ..observed import ObservedNode


class Host(End, ObservedNode, Protocol):
    """The machine on which a process runs: an end of the network, and what the checks look at."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a node. `number` counts the lives, so that a call meant for an earlier one is dropped."""

    node: Host
    number: int
    form: Form
    checks: Checks
    schedule: Schedule
    random: Random
    snapshot_random: Random

    def later(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        """Call after a delay, unless this life has ended."""
        self.schedule.later(delay, self.node.run, self.number, call, *arguments)

    def new_machine(self) -> Tally:
        """An empty state machine, broken or of other code if the node's is."""
        machine, condition = Tally(), self.node.condition
        machine.is_broken, machine.is_other = condition.machine_is_broken, condition.runs_other_code
        return machine

    def new_sessions(self) -> Sessions:
        """An empty table of sessions."""
        return Sessions(max_sessions=self.form.max_sessions)
