"""The machine protocol: what it asks of a class, and the types of the calls that take one."""

from collections.abc import Iterable, Iterator
from typing import Any, assert_type

from quire.sm import (
    ArithmeticMachine,
    Context,
    KvMachine,
    LogMachine,
    Refused,
    StateMachine,
    check_batch,
    default_initial,
    load_machine,
)
from quire.sm.testing import check_machine


class Counter:
    """The smallest machine: it counts its commands. It inherits nothing."""

    name = "counter"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        self.count = 0

    def check(self, command: Any) -> None:
        """Refuse everything but the string "up"."""
        if command != "up":
            raise Refused("UNKNOWN", "the only command is up")

    def apply(self, command: Any, context: Context) -> int:
        """The count; its type may be narrower than the protocol's."""
        assert_type(context.index, int)
        assert_type(context.epoch, int)
        assert_type(context.timestamp, int)
        self.count += 1
        return self.count

    def query(self, request: Any) -> int:
        """The count."""
        return self.count

    def snapshot(self) -> Iterator[bytes]:
        """The count as text."""
        yield str(self.count).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Read the count."""
        self.count = int(b"".join(chunks))


def machines(spec: str) -> None:
    """Own machines and the built-in ones have the protocol; a name gives a class of it."""
    own: StateMachine = Counter()
    made: list[type[StateMachine]] = [Counter, LogMachine]
    built_in: list[StateMachine] = [ArithmeticMachine(42), KvMachine(None), LogMachine()]
    assert_type(made[0](None), StateMachine)
    assert_type(load_machine(spec), type[StateMachine])
    assert_type(default_initial(load_machine(spec)), Any)
    assert_type([check_batch(machine, ["up"]) for machine in (own, *built_in)], list[list[list[Any]]])
    check_machine(spec, ["up", "up"], refused=["down"], queries=[None])
    refusal = Refused("UNKNOWN", "the only command is up")
    assert_type(refusal.code, str)
    assert_type(refusal.text, str)
