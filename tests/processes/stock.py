"""The machine of the README: things in stock, some of which may be taken."""

from collections.abc import Iterable, Iterator
from typing import Any

from quire.log import pack, unpack
from quire.sm import Context, Refused


class Stock:
    """How many of each thing there are."""

    name, version, default_initial = "stock", 1, None

    def __init__(self, initial: object) -> None:
        self.things: dict[str, int] = {}

    def check(self, command: object) -> None:
        match command:
            case ["put" | "take", str(), int(count)] if count > 0:
                return
            case _:
                raise Refused("UNKNOWN", 'send ["put" or "take", thing, count]')

    def apply(self, command: Any, context: Context) -> int:
        verb, thing, count = command
        left: int = self.things.get(thing, 0) + (count if verb == "put" else -count)
        if left < 0:
            raise Refused("TOO_FEW", f"there are only {self.things.get(thing, 0)}")
        self.things[thing] = left
        return left

    def query(self, request: Any) -> object:
        return self.things if request is None else self.things.get(request, 0)

    def snapshot(self) -> Iterator[bytes]:
        yield pack(self.things)

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.things = unpack(b"".join(chunks))  # type: ignore[assignment]
