"""Machines that tests run nodes with."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from quire.log import pack, unpack
from quire.sm import Context, Refused

GATE_S = 30.0
SLOW_S = 0.2


class Long:
    """A machine whose state is long."""

    name = "long"
    version = 1

    def __init__(self, initial: Any) -> None:
        self._state = "x" * 2000

    def check(self, command: Any) -> None:
        """Everything is a command."""

    def apply(self, command: Any, context: Context) -> Any:
        """Change nothing."""
        return None

    def query(self, request: Any) -> Any:
        """The long state."""
        return self._state

    def snapshot(self) -> Iterator[bytes]:
        """The state as bytes."""
        return iter((self._state.encode(),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take it back."""
        self._state = b"".join(chunks).decode()


class Notes:
    """A machine whose code refuses and fails on demand, at each of its calls."""

    name = "notes"
    version = 1

    def __init__(self, initial: Any) -> None:
        self._notes: list[Any] = []

    def check(self, command: Any) -> None:
        """Refuse what begins with no, fail at what is "check fails"."""
        if command == "check fails":
            raise KeyError(command)
        if isinstance(command, str) and command.startswith("no"):
            raise Refused("NO", "it begins with no")

    def apply(self, command: Any, context: Context) -> Any:
        """Note it; refuse "twice" if it is noted, fail at "apply fails"."""
        if command == "apply fails":
            raise KeyError(command)
        if command == "twice" and command in self._notes:
            raise Refused("TWICE", "it is noted already")
        self._notes.append(command)
        return len(self._notes)

    def query(self, request: Any) -> Any:
        """All notes; ["at", position] is one; "fail" and "unsendable" are what they say."""
        match request:
            case None:
                return self._notes
            case ["at", int(position)] if position < len(self._notes):
                return self._notes[position]
            case ["echo", value]:
                return value
            case "fail":
                raise ZeroDivisionError
            case "unsendable":
                return {1, 2}
            case _:
                raise Refused("QUERY_UNKNOWN", "ask for at or echo")

    def snapshot(self) -> Iterator[bytes]:
        """The notes as bytes."""
        return iter((pack(self._notes),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take them back."""
        notes: Any = unpack(b"".join(chunks))
        self._notes = list(notes)


class Wide:
    """A machine whose results are as long as a command says."""

    name = "wide"
    version = 1

    def __init__(self, initial: Any) -> None:
        pass

    def check(self, command: Any) -> None:
        """Only lengths are commands."""
        if type(command) is not int:
            raise Refused("NO_LENGTH", "a command is a length")

    def apply(self, command: Any, context: Context) -> Any:
        """So many characters."""
        return "x" * int(command)

    def query(self, request: Any) -> Any:
        """There is no state."""
        return None

    def snapshot(self) -> Iterator[bytes]:
        """Nothing."""
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Nothing."""


class Moody:
    """A machine whose last command says how it answers: "well", "refuse", "fail", "unsendable", "long"."""

    name = "moody"
    version = 1

    def __init__(self, initial: Any) -> None:
        self._mood: Any = "well"

    def check(self, command: Any) -> None:
        """Fail at "check fails"; refuse what is no mood."""
        if command == "check fails":
            raise KeyError(command)
        if not isinstance(command, str):
            raise Refused("NO_MOOD", "a mood is text")

    def apply(self, command: Any, context: Context) -> Any:
        """Take it; fail at "apply fails"."""
        if command == "apply fails":
            raise KeyError(command)
        self._mood = command

    def query(self, request: Any) -> Any:
        """As it is in the mood for."""
        match self._mood:
            case "refuse":
                raise Refused("NOT_NOW", "it is in no mood")
            case "fail":
                raise ZeroDivisionError
            case "unsendable":
                return {1, 2}
            case "long":
                return "x" * 2000
            case _:
                return "well"

    def snapshot(self) -> Iterator[bytes]:
        """The mood."""
        return iter((pack(self._mood),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take it back."""
        self._mood = unpack(b"".join(chunks))


class Gate:
    """A machine whose command "wait" ends when the test opens the gate; that of all nodes in the process."""

    name = "gate"
    version = 1
    opened = threading.Event()

    def __init__(self, initial: Any) -> None:
        self._count = 0

    def check(self, command: Any) -> None:
        """Everything is a command."""

    def apply(self, command: Any, context: Context) -> Any:
        """Count it; wait if it says so."""
        if command == "wait":
            assert self.opened.wait(GATE_S), "nobody opened the gate"
        self._count += 1
        return self._count

    def query(self, request: Any) -> Any:
        """How many commands there were."""
        return self._count

    def snapshot(self) -> Iterator[bytes]:
        """The count as bytes."""
        return iter((pack(self._count),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take it back."""
        count: Any = unpack(b"".join(chunks))
        self._count = count


class Slow(Gate):
    """A machine that computes for 200 ms of processor time for each command."""

    name = "slow"

    def apply(self, command: Any, context: Context) -> Any:
        """Count it, after a while."""
        until = time.thread_time() + SLOW_S
        while time.thread_time() < until:
            pass
        return super().apply(command, context)


class Hasty(Slow):
    """The same, but it says that it is quick."""

    name = "hasty"
    quick = True


class Hoard:
    """A machine whose state is many containers, with references to visit: each adds a thousand, later replaces one."""

    MOST = 2500
    name = "hoard"
    version = 1
    quick = True

    def __init__(self, initial: Any) -> None:
        self._hoard: list[list[list[Any]]] = []

    def check(self, command: Any) -> None:
        """Everything is a command."""

    def apply(self, command: Any, context: Context) -> Any:
        """Add a thousand, or replace one; return how many thousands there are."""
        thousand = [[self._hoard] * 16 for _ in range(1000)]
        if len(self._hoard) < self.MOST:
            self._hoard.append(thousand)
        else:
            self._hoard[context.index % self.MOST] = thousand
        return len(self._hoard)

    def query(self, request: Any) -> Any:
        """How many thousands there are."""
        return len(self._hoard)

    def snapshot(self) -> Iterator[bytes]:
        """The number."""
        return iter((pack(len(self._hoard)),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """As many."""
        hoards: Any = unpack(b"".join(chunks))
        self._hoard += [[[self._hoard] * 16 for _ in range(1000)] for _ in range(hoards)]
