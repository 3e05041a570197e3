"""The genesis record: what all nodes of a cluster share. It is the log's first frame, and is also kept in its own file.

The file is needed because the log's first segment may expire.
"""

import json
import os
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from quire.log import (
    FEATURES,
    HEADER_BYTES,
    Directory,
    FrameInvalid,
    Kind,
    LogError,
    UnknownVersion,
    decode_system,
    encode_frame,
    encode_system,
    walk_frames,
    wall_clock,
)
from quire.replication import NEW_NODE_ID, NODE_ID_FORM, Members
from quire.replication.core.fitness import REPLACE_DISK
from quire.sm import (
    MAX_SESSIONS,
    SESSION_BYTES,
    SESSION_LIMITS,
    SESSION_TTL_S,
    SESSION_WINDOW,
    SESSIONS_BYTES,
    Sessions,
    StateMachine,
    limit_state,
)

from ..config.serve import ServeConfig
from ..config.settings import flag_of
from ..errors import ClusterError
from .identity import DataDirRefused, write_whole_file

GENESIS_FILE = "genesis"
MAX_GENESIS_BYTES = 1 << 20
CLUSTER_ID_BYTES = 16
ARRAY_HEADS_BYTES = 8  # The msgpack heads of a write's records, and of the runs they may be coalesced with.

MAX_LIMIT = 2**63 - 1
FRAME_LIMITS = range(64 << 10, (256 << 20) + 1)

FIXED_LIMITS = ("max_frame_bytes", "session_ttl_s", "state_bytes")
"""The settings that are fixed when a cluster is formed. A node with a smaller `max_frame_bytes` is refused."""


class GenesisRefused(ClusterError):
    """The cluster's genesis and this node's configuration differ, or it would name a member as none may be called."""


class GenesisInvalid(ClusterError):
    """A genesis frame lacks something that this program needs; the text says what."""


class Genesis(NamedTuple):
    """A decoded genesis record."""

    cluster_id: bytes
    members: Members
    machine: tuple[str, int]
    initial: object
    limits: Mapping[str, int]

    @property
    def payload_bytes(self) -> int:
        """The maximum size of the packed records of one write, in bytes."""
        return self.limits["max_frame_bytes"] - HEADER_BYTES - ARRAY_HEADS_BYTES

    def new_machine(self, machine_type: type[StateMachine]) -> StateMachine:
        """A machine in the cluster's initial state, with the limit on its size."""
        machine = machine_type(self.initial)
        limit_state(machine, self.limits)
        return machine

    def new_sessions(self) -> Sessions:
        """An empty session table with the cluster's limits. Limits that an old genesis lacks have their defaults."""
        return Sessions(**{name: self.limits[name] for name in SESSION_LIMITS if name in self.limits})


def make_genesis(
    members: Members,
    machine: tuple[str, int],
    initial: object,
    config: ServeConfig,
    features: Collection[str] = FEATURES,
) -> bytes:
    """A genesis frame with a new cluster_id, for index 0 and epoch 0. `features` are those that all members offer.

    Raises:
        GenesisRefused: a member has an id that no new one may have.
    """
    for member in members.members:
        if not NEW_NODE_ID.fullmatch(member.node_id):
            named = f"initial_members ({flag_of('initial_members')}) names {member.node_id!r}"
            raise GenesisRefused(f"{named}, which is not an id for a new node; use {NODE_ID_FORM}")
    value: dict[str, object] = {
        "type": "genesis",
        "cluster_id": os.urandom(CLUSTER_ID_BYTES),
        **members.to_record(),
        "machine": list(machine),
        "initial": initial,
        "limits": {
            "max_frame_bytes": config.max_frame_bytes,
            "session_window": SESSION_WINDOW,
            "max_sessions": MAX_SESSIONS,
            "session_bytes": SESSION_BYTES,
            "sessions_bytes": SESSIONS_BYTES,
            "session_ttl_s": config.session_ttl_s,
            "state_bytes": config.state_bytes,
        },
        "features": sorted(features),
    }
    return encode_frame(
        index=0, epoch=0, timestamp=wall_clock(), count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=encode_system(value)
    )


def read_genesis(raw: bytes) -> Genesis:
    """Decode the genesis record of a frame.

    Raises:
        GenesisInvalid: it is not one, lacks a field, or has a field of the wrong type or out of range.
    """
    try:
        if len(raw) > MAX_GENESIS_BYTES:
            raise ValueError(f"it has {len(raw):,} bytes")
        [frame] = walk_frames(raw)
        value: dict[str, Any] = decode_system(frame.payload)
        cluster_id, (name, version), limits = value["cluster_id"], value["machine"], value["limits"]
        if type(cluster_id) is not bytes or len(cluster_id) != CLUSTER_ID_BYTES or not any(cluster_id):
            raise ValueError(f"{cluster_id!r:.80} is not a cluster's id")
        if type(name) is not str or type(version) is not int:
            raise ValueError(f"{value['machine']!r:.80} is not a machine's name and version")
        if any(type(feature) is not str for feature in value.get("features", [])):
            raise ValueError(f"{value['features']!r:.80} are not features")
        _check_limits(limits)
        json.dumps(value["initial"])  # The identity file holds it so.
        return Genesis(cluster_id, Members.from_record(value), (name, version), value["initial"], limits)
    except (LogError, KeyError, TypeError, ValueError) as error:
        raise GenesisInvalid(f"not a genesis record: {type(error).__name__}: {error}") from error


def _check_limits(limits: Mapping[str, object]) -> None:
    """Raises KeyError, TypeError, ValueError. An older genesis may lack any limit but that of a frame."""
    if type(limits) is not dict:
        raise TypeError(f"{limits!r:.80} are not limits")
    for name, limit in limits.items():
        if type(limit) is not int or not 0 <= limit <= MAX_LIMIT:
            raise ValueError(f"the limit {name} is {limit!r:.80}")
    if limits["max_frame_bytes"] not in FRAME_LIMITS:
        raise ValueError(f"frames of at most {limits['max_frame_bytes']} bytes")


def check_genesis(genesis: Genesis, machine: tuple[str, int], config: ServeConfig) -> None:
    """Check that this node's configuration matches the cluster's.

    Raises:
        GenesisRefused: a different machine or initial value, or a `max_frame_bytes` that is too small.
    """
    if genesis.machine != machine:
        ours, theirs = (" version ".join(map(str, pair)) for pair in (machine, genesis.machine))
        raise GenesisRefused(f"the cluster runs machine {theirs}, this node {ours}; start it with the cluster's")
    if config.initial is not None and config.initial != genesis.initial:
        raise GenesisRefused(
            f"the cluster started from {genesis.initial!r}, this node is configured with {config.initial!r}; "
            "leave out --initial"
        )
    limit = genesis.limits["max_frame_bytes"]
    if config.max_frame_bytes < limit:
        raise GenesisRefused(
            f"the cluster's frames have up to {limit} bytes, this node's max_frame_bytes is {config.max_frame_bytes}; "
            "raise it"
        )


def ignored_settings(genesis: Genesis, config: ServeConfig) -> list[str]:
    """A sentence for each limit in this node's configuration that differs from the formed cluster's."""
    limits = {"session_ttl_s": SESSION_TTL_S, "state_bytes": 0, **genesis.limits}  # Of a genesis that names neither.
    return [
        f"{name} {getattr(config, name)} of this node's configuration has no effect: the cluster was formed with "
        f"{limits[name]}; leave {flag_of(name)} out, or give that value"
        for name in FIXED_LIMITS
        if name in config.model_fields_set and getattr(config, name) != limits[name]
    ]


def write_genesis_file(directory: Directory, frame: bytes) -> None:
    """Write the genesis file; see `write_whole_file`."""
    write_whole_file(directory, GENESIS_FILE, frame)


def read_genesis_file(directory: Directory) -> bytes | None:
    """The genesis frame; None if there is no file.

    Raises:
        DataDirRefused: the file does not hold the log's first frame.
    """
    if GENESIS_FILE not in directory.list():
        return None
    with closing(directory.open(GENESIS_FILE)) as storage:
        raw = storage.read_at(0, MAX_GENESIS_BYTES)
    try:
        frames = list(walk_frames(raw))
    except (FrameInvalid, UnknownVersion) as error:
        raise DataDirRefused(directory.path, f"its genesis file is corrupt ({error}); {REPLACE_DISK}") from error
    if len(frames) != 1 or frames[0].header.index != 0:
        reason = f"its genesis file does not hold the log's first frame; {REPLACE_DISK}"
        raise DataDirRefused(directory.path, reason)
    return raw
