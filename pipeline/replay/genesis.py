"""A log's genesis record: the cluster's machine, its initial value, and the limits that all nodes share."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from quire.log import HEADER_BYTES, Kind, LogError, ReadOnlyDirectory, Value, decode_system, walk_frames
from quire.log.packing import Skimmer
from quire.sm import SESSION_LIMITS, Sessions, StateMachine, limit_state
from quire.sm.machines.registry import recorded_machine

from ..archive.snapshots import GENESIS_FILE, MAX_GENESIS_BYTES, snapshot_root
from ..errors import GenesisMissing, MachineDiffers, NoLog
from ..origin.origin import Origin, Stretch


class Genesis(NamedTuple):
    """The fields of a genesis record that a replay needs."""

    machine: tuple[str, int]
    initial: object
    limits: dict[str, int]
    cluster_id: str | None
    """In hex; every snapshot of the cluster has it, those of before a recovery, too."""

    def new_machine(self, spec: str | None) -> StateMachine:
        """A new machine: the one that `spec` names, or, if None, the built-in one with the recorded name.

        It has the cluster's limit on its state.

        Raises:
            MachineUnknown: there is no such machine, or the recorded one is not built in and `spec` is None.
            MachineDiffers: it is another machine than the recorded one, or another version.
        """
        kind = recorded_machine(self.machine[0], spec)
        if (kind.name, kind.version) != self.machine:
            raise MachineDiffers((kind.name, kind.version), self.machine)
        machine = kind(self.initial)
        limit_state(machine, self.limits)
        return machine

    def new_sessions(self) -> Sessions:
        """An empty session table with the cluster's limits."""
        return Sessions(**{name: self.limits[name] for name in SESSION_LIMITS if name in self.limits})


def _fields_in(path: str) -> dict[str, Value]:
    """The record in the genesis file. Raises NoLog: it is damaged."""
    try:
        with closing(ReadOnlyDirectory(snapshot_root(path)).open(GENESIS_FILE)) as file:
            [frame] = walk_frames(file.read_at(0, MAX_GENESIS_BYTES))
        return decode_system(frame.payload)
    except (OSError, LogError, ValueError) as error:
        raise NoLog(path, f"its file {GENESIS_FILE} is damaged: {error}") from error


def genesis_of(path: str, origin: Origin) -> Genesis:
    """The genesis of a log, from the file that outlives the first segment or from the log's first frame.

    Raises:
        GenesisMissing: there is neither.
        NoLog: the file, or what it says, is damaged.
    """
    file = os.path.join(snapshot_root(path), GENESIS_FILE)
    lowest = origin.bounds().lowest_index
    if os.path.isfile(file):
        fields = _fields_in(path)
    elif lowest == 0:
        rows = next(iter(origin.rows(Stretch(0, 1, 0), Skimmer())), None)
        if rows is None:
            raise GenesisMissing(path, lowest)
        header, offset = rows.frames[0]
        body = offset + HEADER_BYTES
        payload = bytes(rows.raw[body : body + header.length])
        fields = decode_system(payload) if header.kind == Kind.SYSTEM else {}
    else:
        fields = {}
    match fields:
        case {"type": "genesis", "machine": [str(name), int(version)], "initial": initial, "limits": {**limits}}:
            numbers = {str(limit): number for limit, number in limits.items() if isinstance(number, int)}
            if any(not 0 <= number < 1 << 63 for number in numbers.values()):
                raise NoLog(path, "its genesis has a limit that is impossible")
            cluster_id = fields.get("cluster_id")
            known = cluster_id.hex() if isinstance(cluster_id, bytes) else None
            return Genesis((name, version), initial, numbers, known)
        case _:
            raise GenesisMissing(path, lowest)
