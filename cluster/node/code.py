"""Changed code: a node replays its log with the code that it has now, so other code may change acknowledged results.

Two conditions raise an alarm. First, this node runs code that was not accepted: its file (`data_dir/code.py`) holds the
code of its first start, or what an operator accepted since. Second, members run different code, according to their
hellos. An operator who knows that the results are the same accepts all of it with `quire admin accept-code`; a new
version of the machine starts over. Neither alarm stops a node from serving: a rolling upgrade must not cause an outage.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from quire.log import NoRoom, ResourcesExhausted

from ..data_dir.code import CodeRecord, short
from ..errors import DiskFullError, ResourcesExhaustedError

if TYPE_CHECKING:
    from ..data_dir.data_dir import DataDir

WHY = (
    "a log that is applied again with other code may give other results than were acknowledged; a changed comment is "
    "enough for this alarm"
)
ADVICE = (
    "bring the old code back or give the machine a new version; if all results stay the same, run "
    "`quire admin accept-code`"
)


class MachineCode:
    """The code of this node's machine, and what was accepted."""

    def __init__(self, data_dir: "DataDir", machine: tuple[str, int], running: bytes) -> None:
        """`running` is its fingerprint, empty if it is unknown. `start` follows."""
        self._data_dir = data_dir
        self._machine = machine
        self.running = running
        self._record: CodeRecord | None = None
        self._writing = asyncio.Lock()

    async def start(self) -> None:
        """Record a start with this code."""
        self._record = await asyncio.to_thread(self._data_dir.note_code, self._machine, self.running)

    @property
    def accepted(self) -> tuple[bytes, ...]:
        """The fingerprint accepted for this version of the machine; empty while none of its code is known."""
        record = self._record
        return record.accepted if record is not None and record.machine == self._machine else ()

    def alarms(self, others: Mapping[str, bytes]) -> list[str]:
        """The alarms, given the code of each member, this node's included."""
        return [alarm for alarm in (self._changed(), self._differing(others)) if alarm]

    def _changed(self) -> str:
        record, accepted = self._record, self.accepted
        if record is None or not accepted or not self.running or self.running in accepted:
            return ""
        between = [code for code in record.run if code not in (*accepted, self.running)]
        since = f", and {_named(between)} in between" if between else ""
        ran = f"this node ran code {_named(accepted)} of machine {self._title}, and runs {short(self.running)} now"
        return f"{ran}{since}: {WHY}; {ADVICE}"

    def _differing(self, others: Mapping[str, bytes]) -> str:
        by_code: dict[bytes, list[str]] = {}
        for node_id, code in sorted(others.items()):
            if code:
                by_code.setdefault(code, []).append(node_id)
        if len(by_code) < 2 or by_code.keys() <= set(self.accepted):
            return ""
        runs = "; ".join(f"{', '.join(nodes)}: {short(code)}" for code, nodes in by_code.items())
        differ = f"members run different code of machine {self._title} ({runs})"
        return f"{differ}: {WHY}; give all of them the same, or {ADVICE}"

    async def accept(self, others: Mapping[str, bytes]) -> None:
        """Accept the code of this node and of the members, and nothing else, durably.

        Raises:
            DiskFullError, ResourcesExhaustedError: it could not be written; nothing was changed.
        """
        codes = {code for code in (self.running, *others.values()) if code}
        async with self._writing:
            if codes:
                run = (self.running,) if self.running else ()
                record = CodeRecord(self._machine, tuple(sorted(codes)), run)
                try:
                    await asyncio.to_thread(self._data_dir.write_code, record)
                except ResourcesExhausted:
                    raise ResourcesExhaustedError from None
                except NoRoom:
                    raise DiskFullError from None
                self._record = record

    async def close(self) -> None:
        """Wait for a write in progress."""
        async with self._writing:
            pass

    @property
    def _title(self) -> str:
        name, version = self._machine
        return f"{name} version {version}"


def _named(codes: Iterable[bytes]) -> str:
    return " or ".join(map(short, codes))
