"""State machines: the protocol, a command's context, refusals, and the check of a request's commands.

A machine is deterministic: two machines that start from the same initial value and apply the same commands at the
same indices have equal states and give equal results. So a machine reads no clock (the context has the leader's
time), no random numbers and no environment, and nothing depends on the order of a set, the locale or the hash seed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, overload, runtime_checkable

from quire import QuireError

from .errors import CheckFailed, reason_of

STATE_BYTES = 512 << 20
"""The limit on a machine's state, unless the cluster is formed with another. The process needs more memory."""
SCARCE = 0.9
"""The share of the limit above which a state is nearly full."""


RefusalRow: TypeAlias = list[Any]
"""[position, code, text] of a refused record; the position is counted from 0, in its request or its frame."""


class Context(NamedTuple):
    """Where a command is in the log: its index, and its frame's epoch and timestamp (microseconds since 1970)."""

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    epoch: int
    timestamp: int


class Contexts(Sequence[Context]):
    """The contexts of a frame's commands, each created on access."""

    __slots__ = ("_count", "_epoch", "_first", "_timestamp")

    def __init__(self, index: int, count: int, epoch: int, timestamp: int) -> None:
        self._first = index
        self._count = count
        self._epoch = epoch
        self._timestamp = timestamp

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> Context: ...
    @overload
    def __getitem__(self, position: slice) -> list[Context]: ...
    def __getitem__(self, position: int | slice) -> Context | list[Context]:
        if isinstance(position, slice):
            return [self._at(at) for at in range(self._count)[position]]
        return self._at(range(self._count)[position])

    def __iter__(self) -> Iterator[Context]:
        return map(self._at, range(self._count))

    def _at(self, position: int) -> Context:
        return Context(self._first + position, self._epoch, self._timestamp)


class Refused(QuireError):
    """A refused command, with a stable code and a text for people.

    Raised by `check`, it keeps the request out of the log. Raised by `apply`, before any change, it is the command's
    reply: code and text go into the digest, so they must be equal on all replicas.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@runtime_checkable
class StateMachine(Protocol):
    """A deterministic machine. Methods that read or change its state are called from one thread, one call at a time.

    The machine has that thread to itself, so that a slow `apply` or `query` delays its callers and not the node. A
    class whose commands and queries all take well below a millisecond can set `quick = True`: it then runs on the
    node's event loop, which saves some 100 us per frame. `check` is called on another instance, on the event loop.

    Two methods are optional, for speed. They must do what `apply` and `check` do, command by command:
    `apply_batch(commands, contexts: Sequence[Context]) -> list[Any]` returns the result or the Refused of each
    command; `check_batch(commands) -> list[[position, code, text]]` returns the refused ones.

    A third is optional, for a machine that can bound its state: `limit_state(limit_bytes: int) -> None` is called on a
    new machine, before its first command and before `restore`, if the cluster's genesis has the limit `state_bytes`.
    From then on, `apply` refuses commands that would make the state larger than the limit. The counted size must depend
    on the state alone, so that a restored replica refuses the same commands; commands that do not make it larger must
    pass. A class that gains or loses the method needs a new version. Its attribute or property `state_size: int` is the
    counted size; the node's metrics and alarms read it at any time, even while another thread is inside `apply`.
    """

    name: str
    version: int

    def __init__(self, initial: Any) -> None:
        """Start from the initial value in the genesis record. Raises InitialInvalid."""
        ...

    def check(self, command: Any) -> None:
        """Raise Refused for a command that must not reach the log. Depends on the command alone, not on the state."""
        ...

    def apply(self, command: Any, context: Context) -> Any:
        """Apply a checked command and return its result: a msgpack value that is never modified afterwards.

        Raise Refused only before any change. Any other exception stops this replica's applier permanently.
        """
        ...

    def query(self, request: Any) -> Any:
        """Answer from the state without changing it; the request None means the whole state. Raises Refused."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """Yield the state, and nothing else, as bytes. Called between two applies; may run in a forked child."""
        ...

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state with a snapshot's; chunks have any size. Raises SnapshotInvalid, changing nothing."""
        ...


def limit_state(machine: StateMachine, limits: Mapping[str, int]) -> None:
    """Set a new machine's limit on its state, if the genesis has one and the machine supports it."""
    state_bytes = limits.get("state_bytes", 0)
    if state_bytes and (limited := getattr(machine, "limit_state", None)) is not None:
        limited(state_bytes)


class StateRoom(NamedTuple):
    """The counted size of a state and its limit, in bytes; each is 0 if there is none."""

    size: int
    limit: int

    @property
    def is_scarce(self) -> bool:
        """Whether it is nearly full, which raises an alarm."""
        return self.limit > 0 and self.size > SCARCE * self.limit


def state_room(machine: StateMachine, limits: Mapping[str, int]) -> StateRoom:
    """How full the machine's state is, if the machine counts it."""
    if not hasattr(machine, "limit_state"):
        return StateRoom(0, 0)
    return StateRoom(int(getattr(machine, "state_size", 0)), limits.get("state_bytes", 0))


def is_quick(machine: StateMachine) -> bool:
    """Whether the machine's class declares that its commands and queries take well below a millisecond."""
    return bool(getattr(machine, "quick", False))


def check_batch(machine: StateMachine, commands: Sequence[object]) -> list[RefusalRow]:
    """The refused commands as [[position, code, text], ...], positions counted from 0; [] if all pass.

    Raises:
        CheckFailed: the machine's check raised something other than Refused.
    """
    faster = getattr(machine, "check_batch", None)
    if faster is not None:
        try:
            refused: list[RefusalRow] = faster(commands)
        except Exception as error:
            raise CheckFailed(position=None, reason=reason_of(error)) from error
        return refused
    return check_one_by_one(machine, commands)


def check_one_by_one(machine: StateMachine, commands: Sequence[object]) -> list[RefusalRow]:
    """`check_batch` by the machine's `check` alone."""
    refused: list[RefusalRow] = []
    for position, command in enumerate(commands):
        try:
            machine.check(command)
        except Refused as refusal:
            refused.append([position, refusal.code, refusal.text])
        except Exception as error:
            raise CheckFailed(position=position, reason=reason_of(error)) from error
    return refused
