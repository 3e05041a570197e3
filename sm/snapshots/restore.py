"""The newest snapshot that is whole, as an applier that goes on behind it."""

from collections.abc import Callable

from ..applier import Applier
from ..errors import SnapshotDamaged
from ..machine import StateMachine
from ..sessions.table import Sessions
from .content import restore_content
from .store import SnapshotStore, snapshot_name


def restore_newest(
    store: SnapshotStore, new_machine: Callable[[], StateMachine], new_sessions: Callable[[], Sessions]
) -> Applier:
    """An applier behind the newest whole snapshot, or one that begins at 0. Blocks.

    A damaged snapshot is set aside, and the one before is taken, with more of the log to apply behind it.

    Raises:
        SnapshotInvalid: the machine refuses a state that is as it was written: it is not the machine that wrote it.
        OSError: the device failed.
    """
    for manifest in reversed(store.manifests):
        # New ones for each: a machine that met a damaged chunk may stand half-way.
        machine, sessions = new_machine(), new_sessions()
        try:
            restore_content(store.pieces(manifest), machine, sessions, snapshot_name(manifest.index))
        except SnapshotDamaged as damage:
            store.set_aside(manifest.index, damage)
        else:
            return Applier(machine, ground=manifest.ground, sessions=sessions)
    return Applier(new_machine(), sessions=new_sessions())
