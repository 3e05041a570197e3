"""Write the golden snapshot: `python -m tests.golden.make_snapshot` from the repository's top, quire importable.

A change that makes other bytes is a change of the format: it needs a new version, not new golden files.
"""

from collections.abc import Iterator
from pathlib import Path

from quire.log import MemoryDirectory, Run
from quire.sm import Applier, ArithmeticMachine, Owner, Sessions, write_snapshot
from quire.sm.snapshots.manifest import MANIFEST_NAME
from quire.sm.snapshots.store import chunk_name
from tests.sm.frames import Frames

FOLDER = Path(__file__).parent / "snapshot"
OWNER = Owner(bytes(range(16)), ("arithmetic", 1))
CHUNK_BYTES = 256
MEMBERS = [["n1", bytes([1] * 16), "127.0.0.1:7001", "voter"]]


def golden_applier() -> Applier:
    """A machine, and sessions of every kind: named, fenced, with a shared sheet, a packed tail, a tail of its own."""
    frames = Frames(epoch=0)
    applier = Applier(ArithmeticMachine(), sessions=Sessions(session_window=100, max_sessions=10))
    applier.apply(frames.system({"type": "genesis", "members": MEMBERS}))
    frames.epoch = 2
    applier.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))
    for name in ("billing", None, "billing", "audit"):
        applier.apply(frames.system({"type": "open_session", "name": name}))
    whole = [["add", place] for place in range(16)]
    applier.apply(frames.runs([Run(3, 1, 16), Run(4, 1, 16)], [*whole, *whole]))
    for start in range(0, 65, 5):
        applier.apply(frames.records([["sub", start + place] for place in range(5)], session=5, sequence=1 + start))
    applier.apply(frames.records([["mul", "1e6144"], ["mul", "1e6144"], ["div", "8"]], session=3, sequence=17))
    applier.apply(frames.records([["add", "1" * 34]] * 2))
    return applier


def golden_files() -> dict[str, bytes]:
    """The snapshot's files by name."""
    return dict(_files())


def _files() -> Iterator[tuple[str, bytes]]:
    folder, applier = MemoryDirectory(), golden_applier()
    manifest = write_snapshot(folder, OWNER, applier.boundary, applier.content(), chunk_bytes=CHUNK_BYTES)
    for name in (MANIFEST_NAME, *(chunk_name(number) for number in range(len(manifest.chunks)))):
        file = folder.open(name)
        yield name, file.read_at(0, file.size)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in golden_files().items():
        (FOLDER / name).write_bytes(data)
