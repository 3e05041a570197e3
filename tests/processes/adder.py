"""The state machine of the scenarios: a sum, whose commands may carry any number of padding bytes.

The arithmetic machine's commands are short; a log of megabytes made of them would keep two cores busy with arithmetic.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from quire.log import pack, unpack
from quire.sm import Context, Refused

BALLAST = bytes(range(256)) * (9 << 12)  # 9 MiB, where a chunk has 4.


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
        held: Any = unpack(b"".join(chunks))
        self._sum = int(held)


class LadenAdder(Adder):
    """The same sum, and a snapshot of three chunks: long enough that something can happen while one is fetched."""

    name = "laden-adder"

    def snapshot(self) -> Iterator[bytes]:
        yield BALLAST
        yield from super().snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        whole = b"".join(chunks)
        if not whole.startswith(BALLAST):
            raise ValueError("the snapshot does not begin with what each begins with")
        super().restore([whole.removeprefix(BALLAST)])
