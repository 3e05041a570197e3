"""The `log` machine: no state, no results. It is the only one that accepts blobs.

It accepts any record whose maps have only text keys. Logs of earlier versions hold other maps, so only `check` tests
this.
"""

from collections.abc import Iterable, Iterator, Sequence

from quire.log.json_text import has_text_keys

from ..errors import InitialInvalid, SnapshotInvalid
from ..machine import Context, RefusalRow, Refused, check_one_by_one


class LogMachine:
    """The machine of a cluster (or standalone log) that only stores records: every result is None."""

    name = "log"
    version = 1
    quick = True
    default_initial = None
    takes_blobs = True

    def __init__(self, initial: None = None) -> None:
        if initial is not None:
            raise InitialInvalid(machine=self.name, initial=initial, reason="it has no state, so no initial value")

    def check(self, command: object) -> None:
        """Refuse a value with a map that has a key that is not text."""
        if not has_text_keys(command):
            raise Refused("VALUE_INVALID", "the value has a map with a key that is not text; use text keys")

    def check_batch(self, commands: Sequence[object]) -> list[RefusalRow]:
        """The refused ones as [[position, code, text], ...]."""
        return [] if has_text_keys(commands) else check_one_by_one(self, commands)

    def apply(self, command: object, context: Context) -> None:
        """Do nothing; the result is None."""
        return

    def apply_batch(self, commands: Sequence[object], contexts: Sequence[Context]) -> list[object]:
        """None for each command."""
        return [None] * len(commands)

    def query(self, request: object) -> None:
        """None for the request None: there is no state."""
        if request is not None:
            raise Refused("QUERY_UNKNOWN", "the log machine has no state: only the request null is known")

    def snapshot(self) -> Iterator[bytes]:
        """An empty snapshot."""
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Accept an empty snapshot. Raises SnapshotInvalid."""
        if any(chunks):
            raise SnapshotInvalid(machine=self.name, reason="it has no state, so its snapshot is empty")
