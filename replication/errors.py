"""The root of this package's errors. Each is defined beside what raises it.

A peer's fault: `BadMessage`, `PeerRefused`, `SnapshotRefused`. This disk's: `PromiseLost`, `WitnessForeign`. This
program's own: `InvariantBroken`, which is never caught.
"""

from quire import QuireError


class ReplicationError(QuireError):
    """The base of every error that `quire.replication` defines."""
