"""What can go wrong around a machine. `Refused` is not here: it is a reply, and stands in machine.py."""

from typing import Any


class MachineError(Exception):
    """The root of this package's errors."""


class MachineUnknown(MachineError):
    """The caller named a machine that is not built in and cannot be loaded."""

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
    """The bytes given to `restore` are no snapshot of this machine; its state is as it was."""

    def __init__(self, *, machine: str, reason: str) -> None:
        super().__init__(f"not a snapshot of machine {machine!r}: {reason}")
        self.machine = machine
        self.reason = reason


class SnapshotDamaged(MachineError):
    """A snapshot's bytes are not what was written: it is set aside, and an older one used."""

    def __init__(self, *, snapshot: str, reason: str) -> None:
        super().__init__(f"snapshot {snapshot} is damaged: {reason}")
        self.snapshot = snapshot
        self.reason = reason


class SnapshotForeign(MachineError):
    """A whole snapshot of another cluster, machine or machine's version; it is not touched."""

    def __init__(self, *, snapshot: str, what: str, found: str, expected: str) -> None:
        super().__init__(f"snapshot {snapshot} is of {what} {found}, not {expected}")
        self.snapshot = snapshot
        self.what = what
        self.found = found
        self.expected = expected


class SnapshotTooEarly(MachineError):
    """A snapshot may hold only what is committed, and durable here: a broken invariant of the caller."""

    def __init__(self, *, index: int, limit: int) -> None:
        super().__init__(f"a snapshot at {index} would hold what is not committed and durable: that ends at {limit}")
        self.index = index
        self.limit = limit


class CheckFailed(MachineError):
    """A machine's `check` raised something else than Refused: a fault of the machine, not of the caller."""

    def __init__(self, *, place: int | None, reason: str) -> None:
        where = "" if place is None else f" on command {place}"
        super().__init__(f"the machine's check failed{where}: {reason}")
        self.place = place
        self.reason = reason


class PlaceFailed(MachineError):
    """How an `apply_batch` tells at which place of the batch an exception rose; the cause is `__cause__`."""

    def __init__(self, *, place: int, reason: str) -> None:
        super().__init__(f"command {place} of the batch: {reason}")
        self.place = place
        self.reason = reason


class ApplyFailed(MachineError):
    """Applying stopped at this index for good: the machine (or the frame) is at fault, on every replica alike."""

    def __init__(self, *, index: int, text: str) -> None:
        super().__init__(f"applying stopped at index {index}: {text}")
        self.index = index
        self.text = text


class FrameOutOfPlace(MachineError):
    """A frame was handed to the applier that is not the next one: a broken invariant of the caller."""

    def __init__(self, *, index: int, applied_index: int) -> None:
        super().__init__(f"frame {index} given to an applier that has applied up to {applied_index}")
        self.index = index
        self.applied_index = applied_index


def reason_of(error: BaseException) -> str:
    """The error's type and message in one line."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
