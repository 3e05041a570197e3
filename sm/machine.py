"""What a state machine is: the protocol, its context, and the refusal that is a reply.

A machine is deterministic: two that started from the same initial value and applied the same commands at
the same indices hold equal states and have given equal results. So it reads no clock (the context has the
leader's time), no random numbers, no environment, and lets nothing depend on set order, locale or hash seed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

from .errors import CheckFailed, reason_of


class Context(NamedTuple):
    """Where a command stands in the log: its index, its frame's epoch and timestamp (microseconds since 1970)."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    timestamp: int


class Contexts(Sequence[Context]):
    """The contexts of one frame's commands, each made only when it is asked for."""

    __slots__ = ("_count", "_epoch", "_first", "_timestamp")

    def __init__(self, index: int, count: int, epoch: int, timestamp: int) -> None:
        self._first = index
        self._count = count
        self._epoch = epoch
        self._timestamp = timestamp

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Context: ...
    @overload
    def __getitem__(self, place: slice) -> list[Context]: ...
    def __getitem__(self, place: int | slice) -> Context | list[Context]:
        if isinstance(place, slice):
            return [self._at(at) for at in range(self._count)[place]]
        return self._at(range(self._count)[place])

    def __iter__(self) -> Iterator[Context]:
        return map(self._at, range(self._count))

    def _at(self, place: int) -> Context:
        return Context(self._first + place, self._epoch, self._timestamp)


class Refused(Exception):
    """A command's refusal, with a stable code and a text for people.

    Raised by `check` it keeps the request out of the log. Raised by `apply`, before anything is changed, it is
    the command's reply: code and text go into the digest, so they hold nothing that could differ on a replica.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@runtime_checkable
class StateMachine(Protocol):
    """A deterministic machine. Everything is called from one thread.

    Two methods are optional, for speed; they must do what the plain ones do, command by command:
    `apply_batch(commands, contexts: Sequence[Context]) -> list[Any]` gives for each command its result, or the
    Refused in its place; `check_batch(commands) -> list[[place, code, text]]` gives the refused ones.
    """

    name: str
    version: int

    def __init__(self, initial: Any) -> None:
        """Start from the initial value that stands in genesis. Raises InitialInvalid."""
        ...

    def check(self, command: Any) -> None:
        """Raise Refused for a command that must not reach the log. Stateless: looks at the command alone."""
        ...

    def apply(self, command: Any, context: Context) -> Any:
        """Apply a checked command and return its result: a msgpack value that nobody changes afterwards.

        Raise Refused before anything is changed. Any other exception stops this replica's applier for good.
        """
        ...

    def query(self, request: Any) -> Any:
        """Answer from the state, without changing it; None asks for the whole state. Raises Refused."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """Yield the state, and the state alone, as bytes. Called between two applies; may run in a forked child."""
        ...

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by a snapshot's, however its bytes are cut. Raises SnapshotInvalid, changing nothing."""
        ...


def check_batch(machine: StateMachine, commands: Sequence[Any]) -> list[list[Any]]:
    """The refused ones as [[place, code, text], ...], places counted from 0; [] when all of them pass.

    Raises:
        CheckFailed: the machine's check raised something else than Refused.
    """
    faster = getattr(machine, "check_batch", None)
    if faster is not None:
        try:
            refused: list[list[Any]] = faster(commands)
        except Exception as error:
            raise CheckFailed(place=None, reason=reason_of(error)) from error
        return refused
    return check_one_by_one(machine, commands)


def check_one_by_one(machine: StateMachine, commands: Sequence[Any]) -> list[list[Any]]:
    """What `check_batch` gives, by the machine's plain `check`."""
    refused: list[list[Any]] = []
    for place, command in enumerate(commands):
        try:
            machine.check(command)
        except Refused as refusal:
            refused.append([place, refusal.code, refusal.text])
        except Exception as error:
            raise CheckFailed(place=place, reason=reason_of(error)) from error
    return refused
