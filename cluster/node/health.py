"""Whether a node continues: its alarms, why it has halted, and what happens then.

A halt is logged, calls whoever asked for it (`on_halt`), and ends the process, unless the log's files are missing. It
touches no other part.
"""

import asyncio
from collections.abc import Callable

import structlog

from quire.log import LogError
from quire.sm import MachineError

from ..errors import ClusterError

journal = structlog.get_logger(__name__)


class Health:
    """One node's health; implements `Health` of `quire.replication.ports`. Called on the event loop."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self.failure: str | None = None
        """Why the node has halted, if it has."""
        self.removal: str | None = None
        """That this node was removed from its cluster, if it was: then it has halted for good."""
        self.stranded = ""
        """Why it has halted but its process stays: its descriptors may be all that holds its files."""
        self.ended = asyncio.Event()
        """Set when the node has halted, unless it is stranded."""
        self.missing_files: Callable[[], str] = lambda: ""
        """Gives the reason if the log's files are missing; empty if they are in place."""
        self._on_halt: list[Callable[[str], None]] = []

    def on_halt(self, call: Callable[[str], None]) -> None:
        """Call this with the reason when the node halts, or now if it has; the last one that asked is called first."""
        self._on_halt.append(call)
        if self.failure is not None:
            call(self.failure)

    def alarmed(self, text: str) -> None:
        """Log an alarm for the operator; `/status` shows it, too (`status.alarms`)."""
        journal.error("alarm", text=text)

    def halted(self, reason: str) -> None:
        """Stop serving permanently. Set `ended` for the process that runs the node, unless its files are missing."""
        if self.failure is None:
            self.stranded = self.missing_files()
            self.failure = reason = self.stranded or reason
            journal.error("halted", reason=reason)
            for call in reversed(self._on_halt):
                call(reason)
            if not self.stranded:
                self.ended.set()

    def removed(self, index: int) -> None:
        """Stop serving for good: the record at `index` removed this node."""
        self.removal = f"{self._node_id} was removed from its cluster at index {index}"
        self.halted(self.removal)

    def failed(self, error: Exception) -> None:
        """Stop serving permanently: the node cannot continue, or this program has a bug, whose traceback is logged."""
        match error:
            case LogError() | OSError():
                self.halted(f"{type(error).__name__}: {error}")
            case ClusterError() | MachineError():
                self.halted(str(error))
            case _:
                if self.failure is None:
                    journal.error("a fault of this program", exc_info=error)
                self.halted(f"a fault of this program: {error!r}")
