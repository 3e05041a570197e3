"""The machine of the scenarios: a sum, whose commands may carry any number of bytes that change nothing.

The arithmetic machine's commands are short; a log of megabytes made of them would keep two cores busy with arithmetic.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from quire.log import pack, unpack
from quire.sm import Context, Refused


class Adder:
    """`["add", n]` or `["add", n, padding]` answers the new sum, as a string."""

    name, version, default_initial = "adder", 1, 0

    def __init__(self, initial: Any) -> None:
        self._sum = int(initial or 0)

    def check(self, command: Any) -> None:
        match command:
            case ["add", int()] | ["add", int(), str()]:
                return
            case _:
                raise Refused("UNKNOWN", 'send ["add", n], with or without padding')

    def apply(self, command: Any, context: Context) -> str:
        self._sum += command[1]
        return str(self._sum)

    def query(self, request: Any) -> str:
        return str(self._sum)

    def snapshot(self) -> Iterator[bytes]:
        yield pack(str(self._sum))

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._sum = int(unpack(b"".join(chunks)))
