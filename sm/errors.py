"""The errors of this package. `Refused` is in machine.py: it is a reply, not an error."""

import sys
from collections.abc import Iterator
from os.path import dirname
from reprlib import Repr
from types import CodeType, TracebackType

from quire import QuireError

REASON_LENGTH = 200
"""Characters of an exception's message, or of a command, in an error of this package."""
_short = Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3

FIX_MACHINE = (
    "if other nodes got past this index, give this node their code and restart it; if none did, correct the class and "
    "restart every node with it (docs/machines.md says why that is safe)"
)
GIVE_CODE = "give this node the code that wrote it, or a class that reads it, too, and restart it (docs/machines.md)"
RESTART = (
    "restart this node; if it stops there again, or if all nodes stopped there, fix the machine (docs/machines.md)"
)
REPORT = "run `quire log verify` on the stopped node's log; if that finds nothing, this is a bug in quire: report it"


class MachineError(QuireError):
    """The root of this package's errors."""


class MachineUnknown(MachineError):
    """The named machine is neither built in nor loadable."""

    def __init__(self, *, spec: str, reason: str) -> None:
        super().__init__(f"machine {spec!r:.200}: {reason}")
        self.spec = spec
        self.reason = reason


class InitialInvalid(MachineError):
    """The machine cannot start from this initial value.

    A machine raises `InitialInvalid(machine=self.name, initial=initial, reason="it is not a whole number")`.
    """

    def __init__(self, *, machine: str, initial: object, reason: str) -> None:
        super().__init__(f"machine {machine!r} cannot start from {initial!r}: {reason}")
        self.machine = machine
        self.initial = initial
        self.reason = reason


class SnapshotInvalid(MachineError):
    """The bytes given to `restore` are not a snapshot of this machine; its state is unchanged.

    A machine raises `SnapshotInvalid(machine=self.name, reason="it ends too early")`.
    """

    def __init__(self, *, machine: str, reason: str) -> None:
        super().__init__(f"not a snapshot of machine {machine!r}: {reason}")
        self.machine = machine
        self.reason = reason


class SnapshotDamaged(MachineError):
    """A snapshot's bytes are not those that were written: it is quarantined, and an older one is used."""

    def __init__(self, *, snapshot: str, reason: str) -> None:
        super().__init__(f"snapshot {snapshot} is damaged: {reason}")
        self.snapshot = snapshot
        self.reason = reason


class RestoreFailed(MachineError):
    """A machine's `restore` raised, and the snapshot is whole: this class does not read what another one wrote."""

    def __init__(self, *, snapshot: str, reason: str) -> None:
        super().__init__(f"the machine's restore of snapshot {snapshot} raised {reason}")
        self.snapshot = snapshot
        self.reason = reason


class SnapshotForeign(MachineError):
    """A whole snapshot of another cluster, machine or machine version; it is left unchanged."""

    def __init__(self, *, snapshot: str, what: str, found: str, expected: str) -> None:
        super().__init__(f"snapshot {snapshot} is of {what} {found}, not {expected}")
        self.snapshot = snapshot
        self.what = what
        self.found = found
        self.expected = expected


class SnapshotTooEarly(MachineError):
    """A snapshot may hold only records that are committed and durable here: the caller broke that invariant."""

    def __init__(self, *, index: int, limit: int) -> None:
        super().__init__(
            f"a snapshot at {index} would hold records that are not committed and durable; the limit is {limit}"
        )
        self.index = index
        self.limit = limit


class CheckFailed(MachineError):
    """A machine's `check` raised an exception other than Refused: the machine's fault, not the caller's."""

    def __init__(self, *, position: int | None, reason: str) -> None:
        where = "" if position is None else f" on command {position}"
        super().__init__(f"the machine's check failed{where}: {reason}")
        self.position = position
        self.reason = reason


class CommandFailed(MachineError):
    """Raised by an `apply_batch` to name the command of the batch that failed. `__cause__` is the exception."""

    def __init__(self, *, position: int, reason: str) -> None:
        super().__init__(f"command {position} of the batch: {reason}")
        self.position = position
        self.reason = reason


class ApplyFailed(MachineError):
    """Applying stopped at this index until the process restarts: the machine or the frame is at fault.

    Usually it then stops on all replicas; after a MemoryError of the machine it may be this process alone. `do` says
    what an operator should do. The message is the only sentence for this failure: it is used unchanged in readiness,
    status, the journal and answers to callers.
    """

    def __init__(self, *, index: int, text: str, do: str, what: str = "applying stopped at") -> None:
        super().__init__(f"{what} index {index}: {text}; {do}")
        self.what = what
        self.index = index
        self.text = text
        self.do = do


class StateUnproven(ApplyFailed):
    """The machine does not read the snapshot at `index`, and applies the log from an older one: by other code, perhaps.

    So nothing is answered until the digest at `index` is the snapshot's, and, there or later, that of a majority of the
    voters. `text` is about the snapshot. The message is used as that of `ApplyFailed`.
    """

    def __init__(self, *, index: int, text: str, do: str, digest: bytes, from_index: int) -> None:
        instead = f"the log is applied from index {from_index} instead"
        until = "nothing is answered before the digest is that of this snapshot, and of a majority of the voters"
        super().__init__(index=index, text=f"{text}; {instead}, and {until}", do=do, what="the state is unproven since")
        self.digest = digest
        self.from_index = from_index


class FrameOutOfOrder(MachineError):
    """The frame given to the applier is not the next one: the caller broke that invariant."""

    def __init__(self, *, index: int, applied_index: int) -> None:
        super().__init__(f"got the frame at {index}, but applied_index is {applied_index}")
        self.index = index
        self.applied_index = applied_index


def reason_of(error: BaseException) -> str:
    """The error's type and message, on one line of bounded length."""
    try:
        message = in_one_line(str(error))
    except Exception as fault:  # noqa: BLE001  # It is a machine's exception: its own text must not hide it.
        message = f"(its message cannot be read: {type(fault).__name__})"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def short_command(command: object) -> str:
    """A command on one line of bounded length."""
    return in_one_line(_short.repr(command))


def in_one_line(text: str) -> str:
    """The beginning of the text, on one line of bounded length."""
    line = " ".join(text[: 2 * REASON_LENGTH].split())
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 3] + "..."


def raised_at(error: BaseException, machine: type[object]) -> str:
    """FILE:LINE of the innermost call in the folder of the machine's class; else of the innermost call of all."""
    calls = list(_calls(error.__traceback__))
    if not calls:
        return "an unknown line"
    folder = dirname(getattr(sys.modules.get(machine.__module__), "__file__", None) or "")
    own = [(file, line) for file, line in calls if folder and file.startswith(f"{folder}/")]
    file, line = (own or calls)[-1]
    return f"{file}:{line}"


def defined_at(machine: type[object], method: str) -> str:
    """FILE:LINE of a method of a machine's class."""
    code = getattr(getattr(machine, method, None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else f"{machine.__qualname__}"


def _calls(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
