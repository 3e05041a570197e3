"""Changed code: a node replays its log with the code that it has now, so other code may change acknowledged results.

Two conditions raise an alarm. First, this node runs code that was not accepted: its file (`data_dir/code.py`) holds the
code of its first start, or what an operator accepted since. Second, members run different code, according to their
hellos. An operator who knows that the results are the same accepts all of it with `quire admin accept-code`; a new
version of the machine starts over.

A node whose code is not that of a majority of the voters is unfit to lead, and refuses commands while it leads
(`replication/core/fitness/codes.py`): what is answered is what a majority computes at that time. Other code may still
compute it otherwise later, when a node replays its log: so the alarms stay until the code is accepted.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from quire.log import NoRoom, ResourcesExhausted
from quire.sm.machines.fingerprint import short

from ..data_dir.code import CodeRecord
from ..errors import DiskFullError, ResourcesExhaustedError
from .digests import Parting

if TYPE_CHECKING:
    from ..data_dir.data_dir import DataDir

WHY = (
    "a log that is applied again with other code may give other results than were acknowledged; a changed comment is "
    "enough for this alarm"
)
NO_NEW_COMMAND = "no new command before all nodes have the code"
ACCEPT = "once all results are the same, run `quire admin accept-code`"


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

    def alarms(self, others: Mapping[str, bytes], voters: Collection[str], parting: Parting | None) -> list[str]:
        """The alarms, given the code of each member, this node's included, and where a state is known to part."""
        return [alarm for alarm in (self._changed(parting), self._differing(others, voters, parting)) if alarm]

    def _changed(self, parting: Parting | None) -> str:
        """It lasts when the accepted code comes back: what other code answered meanwhile is computed again."""
        record, accepted = self._record, self.accepted
        if record is None or not accepted or not self.running:
            return ""
        between = [code for code in record.run if code not in (*accepted, self.running)]
        if self.running in accepted and not between:
            return ""
        since = f", and {_named(between)} in between" if between else ""
        ran = f"this node ran code {_named(accepted)} of machine {self._title}, and runs {short(self.running)} now"
        return f"{ran}{since}: {WHY}; {_steps(parting)}"

    def _differing(self, others: Mapping[str, bytes], voters: Collection[str], parting: Parting | None) -> str:
        by_code: dict[bytes, list[str]] = {}
        for node_id, code in sorted(others.items()):
            if code:
                by_code.setdefault(code, []).append(node_id)
        if len(by_code) < 2 or by_code.keys() <= set(self.accepted):
            return ""
        runs = "; ".join(f"{', '.join(nodes)}: {short(code)}" for code, nodes in by_code.items())
        differ = f"members run different code of machine {self._title} ({runs})"
        return f"{differ}: {WHY}; {self._standing(by_code, voters)}; {_steps(parting)}"

    def _standing(self, by_code: Mapping[bytes, Collection[str]], voters: Collection[str]) -> str:
        """Which nodes may lead, as far as this node knows: each judges by what was accepted there."""
        accepted = {node_id for code in self.accepted for node_id in by_code.get(code, ())}
        groups = [accepted, *(set(nodes) for code, nodes in by_code.items() if code not in self.accepted)]
        for group in groups:
            if 2 * len(group & set(voters)) > len(voters):
                others = ", ".join(sorted(set(voters) & set().union(*groups) - group))
                if not others:
                    return "all voters with known code may lead"
                minority = f"{others}: not a majority's code, so unfit to lead, and refuses commands while leading"
                return f"{minority}, unless it was accepted there"
        return "no code has a majority of the voters, so any of them may lead, and what it answers may not last"

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


def _steps(parting: Parting | None) -> str:
    """An order of steps that loses nothing (`deploy/runbook.md`, Change the code of a machine)."""
    restart = "one node at a time, each ready before the next"
    if parting is None:
        return f"(1) {NO_NEW_COMMAND}; (2) give all nodes the same code, {restart}; (3) {ACCEPT}"
    node_id, index = parting.node_id, parting.index
    above = f"above index {parting.after} and " if parting.after else ""
    where = (
        f"a majority has digest {parting.digest.hex()} at index {index}, and {node_id} parts from it {above}by {index}"
    )
    answered = f"see whose epoch has the commands from {parting.after} on (`quire read`; `leaders` in /status)"
    theirs = f"if a majority's node answered them, give {node_id} its code"
    its = f"if {node_id} did, keep its data_dir, the only copy, and follow deploy/runbook.md"
    return f"{where}: (1) {NO_NEW_COMMAND}; (2) {answered}; (3) {theirs}; {its}; (4) {ACCEPT}"


def _named(codes: Iterable[bytes]) -> str:
    return " or ".join(map(short, codes))
