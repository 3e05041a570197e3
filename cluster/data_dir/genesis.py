"""The genesis record: what all nodes of a cluster must share, and whether this node does."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.log import HEADER_BYTES, Kind, decode_system, encode_frame, encode_system, walk_frames, wall_clock
from quire.replication import Members
from quire.sm import MAX_SESSIONS, SESSION_BYTES, SESSION_WINDOW, SESSIONS_BYTES, Sessions

from ..config.serve import ServeConfig
from ..errors import ClusterError

CLUSTER_ID_BYTES = 16
ARRAY_HEADS_BYTES = 8  # Of a write's records and of the runs that they may be coalesced with.


class GenesisRefused(ClusterError):
    """The cluster's genesis and this node's configuration do not fit; the text names both values."""


class Genesis(NamedTuple):
    """A genesis record, read."""

    cluster_id: bytes
    members: Members
    machine: tuple[str, int]
    initial: Any
    limits: Mapping[str, int]

    @property
    def payload_bytes(self) -> int:
        """So much one write may have for its records."""
        return self.limits["max_frame_bytes"] - HEADER_BYTES - ARRAY_HEADS_BYTES

    def new_sessions(self) -> Sessions:
        """An empty session table with the limits that all nodes share; of one that an old genesis lacks the default."""
        names = ("session_window", "max_sessions", "session_bytes", "sessions_bytes")
        return Sessions(**{name: self.limits[name] for name in names if name in self.limits})


def make_genesis(members: Members, machine: tuple[str, int], initial: Any, config: ServeConfig) -> bytes:
    """A genesis frame with a new cluster_id, as it will stand at index 0, epoch 0."""
    value = {
        "type": "genesis",
        "cluster_id": os.urandom(CLUSTER_ID_BYTES),
        "members": members.to_record(),
        "machine": list(machine),
        "initial": initial,
        "limits": {
            "max_frame_bytes": config.max_frame_bytes,
            "session_window": SESSION_WINDOW,
            "max_sessions": MAX_SESSIONS,
            "session_bytes": SESSION_BYTES,
            "sessions_bytes": SESSIONS_BYTES,
        },
    }
    return encode_frame(
        index=0, epoch=0, timestamp=wall_clock(), count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=encode_system(value)
    )


def read_genesis(raw: bytes) -> Genesis:
    """The genesis record in a frame that was verified before."""
    value = decode_system(next(walk_frames(raw)).payload)
    name, version = value["machine"]
    return Genesis(
        value["cluster_id"], Members.from_record(value["members"]), (name, version), value["initial"], value["limits"]
    )


def check_genesis(genesis: Genesis, machine: tuple[str, int], config: ServeConfig) -> None:
    """Refuse to run another machine, from another initial value, or with less room than the cluster agreed on.

    Raises:
        GenesisRefused: with both values.
    """
    if genesis.machine != machine:
        ours, theirs = (" version ".join(map(str, pair)) for pair in (machine, genesis.machine))
        raise GenesisRefused(f"the cluster runs machine {theirs}, this node {ours}; start it with the cluster's")
    if config.initial is not None and config.initial != genesis.initial:
        raise GenesisRefused(
            f"the cluster started from {genesis.initial!r}, this node is told {config.initial!r}; leave out --initial"
        )
    limit = genesis.limits["max_frame_bytes"]
    if config.max_frame_bytes < limit:
        raise GenesisRefused(
            f"the cluster's frames have up to {limit} bytes, this node's max_frame_bytes is {config.max_frame_bytes}; "
            "raise it"
        )
