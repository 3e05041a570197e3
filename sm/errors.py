"""The errors of this package. `Refused` is in machine.py: it is a reply, not an error."""

from typing import Any


class MachineError(Exception):
    """The root of this package's errors."""


class MachineUnknown(MachineError):
    """The named machine is neither built in nor loadable."""

    def __init__(self, *, spec: str, reason: str) -> None:
        super().__init__(f"machine {spec!r}: {reason}")
        self.spec = spec
        self.reason = reason


class InitialInvalid(MachineError):
    """The machine cannot start from this initial value."""

    def __init__(self, *, machine: str, initial: Any, reason: str) -> None:
        super().__init__(f"machine {machine!r} cannot start from {initial!r}: {reason}")
        self.machine = machine
        self.initial = initial
        self.reason = reason


class SnapshotInvalid(MachineError):
    """The bytes given to `restore` are not a snapshot of this machine; its state is unchanged."""

    def __init__(self, *, machine: str, reason: str) -> None:
        super().__init__(f"not a snapshot of machine {machine!r}: {reason}")
        self.machine = machine
        self.reason = reason


class SnapshotDamaged(MachineError):
    """A snapshot's bytes are not what was written: it is quarantined, and an older one is used."""

    def __init__(self, *, snapshot: str, reason: str) -> None:
        super().__init__(f"snapshot {snapshot} is damaged: {reason}")
        self.snapshot = snapshot
        self.reason = reason


class SnapshotForeign(MachineError):
    """A whole snapshot of another cluster, machine or machine version; it is left as it is."""

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
    """A machine's `check` raised something other than Refused: the machine's fault, not the caller's."""

    def __init__(self, *, place: int | None, reason: str) -> None:
        where = "" if place is None else f" on command {place}"
        super().__init__(f"the machine's check failed{where}: {reason}")
        self.place = place
        self.reason = reason


class PlaceFailed(MachineError):
    """Raised by an `apply_batch` to say at which place of the batch an exception occurred (its `__cause__`)."""

    def __init__(self, *, place: int, reason: str) -> None:
        super().__init__(f"command {place} of the batch: {reason}")
        self.place = place
        self.reason = reason


class ApplyFailed(MachineError):
    """Applying stopped at this index for as long as the process lives: the machine or the frame is at fault.

    Usually it stops on all replicas then. If the machine raised MemoryError, it may be this process alone.
    """

    def __init__(self, *, index: int, text: str) -> None:
        super().__init__(f"applying stopped at index {index}: {text}")
        self.index = index
        self.text = text


class FrameOutOfPlace(MachineError):
    """The frame given to the applier is not the next one: the caller broke that invariant."""

    def __init__(self, *, index: int, applied_index: int) -> None:
        super().__init__(f"got the frame at {index}, but applied_index is {applied_index}")
        self.index = index
        self.applied_index = applied_index


def reason_of(error: BaseException) -> str:
    """The error's type and message, in one line."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
