"""`quire` with a PySyncObj that breaks every promise which no rule may depend on: run as a program in place of `quire`.

Each tick looks into the directory that the first argument names. While `leads` is there, PySyncObj says that it leads
and hears a majority, whatever the others say of theirs; `forget`, taken away by the tick that finds it, makes it fail,
for which it is made anew and knows nothing.
"""

import sys
from pathlib import Path

from quire.cluster.control import syncobj
from tests.tuned import main


def install(folder: Path) -> None:
    """Make every tick and every look at PySyncObj's state ask the directory first."""
    tick, status = syncobj.Raft.tick, syncobj.Raft.status

    def forgetful(raft: syncobj.Raft) -> None:
        if (folder / "forget").exists():
            (folder / "forget").unlink()
            raise RuntimeError("made to forget by a test")
        tick(raft)

    def overbearing(raft: syncobj.Raft) -> syncobj.RaftStatus:
        found = status(raft)
        return found._replace(leads=True, has_quorum=True) if (folder / "leads").exists() else found

    syncobj.Raft.tick = forgetful  # type: ignore[assignment, method-assign]
    syncobj.Raft.status = overbearing  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
