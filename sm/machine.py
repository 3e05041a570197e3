"""State machines: the protocol, a command's context, refusals, and the check of a request's commands.

A machine is deterministic: two machines that start from the same initial value and apply the same commands at the
same indices have equal states and give equal results.
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
    """Where a command is in the log: the same on every node, and in every replay.

    Commands of one frame, such as a batch, share epoch and timestamp. Use the timestamp where a program would read the
    clock: it is the latest time that a majority of the voters' clocks had reached when the leader wrote the frame.
    """

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    """The command's index in the log; it rises from command to command, and other records lie between."""
    epoch: int
    """The epoch of the leader that wrote it (Raft's term); it never goes back."""
    timestamp: int
    """Microseconds since 1970, UTC. It never goes back, but may stay the same."""


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
    """A refused command or query, with a stable code and a text for people.

    Raised by `check`, it keeps the whole request out of the log. Raised by `apply`, before any change, it is the
    command's reply: code and text go into the digest, so they must be equal on all replicas, and a changed text needs
    a new version of the machine. The caller gets `CommandRefused` with both.

        >>> from quire import Refused
        >>> raise Refused("TOO_FEW", "there are only 2")
        Traceback (most recent call last):
            ...
        quire.sm.machine.Refused: TOO_FEW: there are only 2
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@runtime_checkable
class StateMachine(Protocol):
    """A deterministic machine: what your class must have. It need not inherit from this.

    Methods that read or change the state are called from one thread, one call at a time, so a machine needs no locks.
    It has that thread to itself: a slow `apply` or `query` delays its callers and not the node, unless the class says
    that it is `quick`. `check` is called on another instance, on the node's event loop.

    State, results, codes and texts of refusals must follow from the initial value and the commands alone: nothing may
    depend on a clock, a random number, a file, the network, the environment, the locale, `hash()`, `id()` or the order
    of a set. Maps keep their order; a sum of floats depends on the order of its terms, which is that of the log.
    """

    name: str
    """Says with `version` which machine a cluster was formed with. A node with another one refuses to start."""
    version: int
    """Change it whenever old commands would get other results, or a snapshot's bytes another meaning."""

    def __init__(self, initial: Any) -> None:
        """Start from the initial value that the cluster was formed with (`quire serve --initial`), or from None.

        Raises:
            InitialInvalid: it cannot start from this value; the node does not start.
        """
        ...

    def check(self, command: Any) -> None:
        """Raise Refused for a command that must not reach the log: unknown, malformed, too large.

        Called on the leader before a command is appended. `command` is any msgpack value that a client sent. The
        outcome depends on the command alone: this instance applies nothing, so its state is the initial one. Any other
        exception is reported to the caller as a fault of the machine (ServerFault), and nothing is appended.
        """
        ...

    def apply(self, command: Any, context: Context) -> Any:
        """Apply a checked command and return its result: a msgpack value that is never modified afterwards.

        Called on every node, once for each command, in the order of the log; again after a restart, for the commands
        since the last snapshot. So it has no effect but on the state: it sends no mail and writes no file. Return short
        results: each is sent, hashed, and kept for retries.

        Raise Refused only before any change. Any other exception, or a result that msgpack cannot hold, stops this
        node's machine at this index until the process ends.
        """
        ...

    def query(self, request: Any) -> Any:
        """Answer from the state without changing it: a msgpack value. The request None means the whole state.

        Called on the node that is asked, between two applies. It is not in the log, so it may return what a result must
        not: long values, or what differs between nodes. What it returns is packed at once.

        Raises:
            Refused: it does not answer this request. Any other exception is a ServerFault for the caller.
        """
        ...

    def snapshot(self) -> Iterator[bytes]:
        """Yield the state, and nothing else, as bytes in chunks of any size. Equal logs give equal bytes.

        Called between two applies, usually in a forked child of the node that writes the chunks to disk as they come,
        while the node itself goes on to apply. The child has the state as of the fork, and one thread: take no lock,
        log nothing, use no connection or thread of the process. Yield chunks of up to some MiB as you make them,
        instead of one copy of the whole state: a child that yields nothing for minutes is killed.
        """
        ...

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state with that of a snapshot, from the bytes that `snapshot` yielded.

        Called on a new machine at a node's start, or if a node is too far behind for the log. The bytes are verified
        and in order, but their chunks have any size: a value may be cut anywhere. They are read from disk as you
        iterate. Bytes of all earlier releases of this `version` must be understood.

        Raises:
            SnapshotInvalid: they are not a snapshot of this machine; its state is unchanged. After this or any other
                exception the node goes on without its machine, as after one of `apply`.
        """
        ...


class OptionalMembers(Protocol):
    """What a machine's class may have in addition. Each member is optional, and is found by its name."""

    quick: bool
    """True: each command and query takes well below a millisecond. The machine then runs on the node's event loop,
    which saves some 100 us per frame; whatever it does delays everything else that the node does.
    """
    default_initial: object
    """The initial value of a cluster that is formed without `--initial`; without this attribute, None."""
    takes_blobs: bool
    """True: a blob, appended as bytes above 1 MiB, reaches `apply` as its bytes, unchecked. A node accepts blobs only
    for the built-in machine `log`, so leave it out.
    """
    state_size: int
    """The size of the state as `limit_state` counts it, for metrics and alarms. It may be a property. It is read at any
    time, even while another thread is inside `apply`.
    """

    def check_batch(self, commands: Sequence[object]) -> list[RefusalRow]:
        """`check` for all commands of a request at once: [position, code, text] of each refused one, in order."""
        ...

    def apply_batch(self, commands: Sequence[object], contexts: Sequence[Context]) -> list[object]:
        """`apply` for several commands at once: the result, or the Refused, of each.

        It must do what `apply` does, command by command. How many commands a call has depends on the node and its
        load, so nothing may depend on it. A command that fails is named by raising
        `quire.sm.CommandFailed(position=..., reason=...)` from the exception.
        """
        ...

    def limit_state(self, limit_bytes: int) -> None:
        """Bound the state: from now on, `apply` refuses what would make it larger than the limit.

        Called on a new machine, before its first command and before `restore`, if the cluster was formed with a limit
        (`--state-bytes`). The size must be counted from the state alone, so that a restored replica refuses the same
        commands; commands that do not make it larger must pass. A class that gains or loses this method needs a new
        version. It must have `state_size`, too.
        """
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
