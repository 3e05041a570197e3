"""The configuration of `quire serve`: one frozen model."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, FilePath, model_validator
from pydantic_settings import NoDecode

from quire.log import LARGEST_STORE_BYTES
from quire.replication import NODE_ID, NODE_ID_FORM
from quire.replication.address import host_and_port
from quire.sm import SESSION_TTL_S, STATE_BYTES

from ..access.credentials import CredentialFiles
from .access import TlsCa, TlsCert, TlsKey, Tokens, check_reach, credential_files
from .origins import Allow
from .settings import Address, LogFormat, Settings, load_settings

MIB = 1 << 20
FRAME_OVERHEAD_BYTES = 1024  # An upper bound for the frame header and the msgpack around a request's records.

WILDCARDS = frozenset({"0.0.0.0", "::"})  # What a node listens on; nobody can dial it.
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def _checked_node_id(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise ValueError(f"{node_id!r} is not a node id; use {NODE_ID_FORM}")
    return node_id


def _parse_addresses(value: object) -> object:
    """A map of node id to address from `n1=HOST:PORT,n2=...` or from a list of such strings (a repeated flag)."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return value
    addresses: dict[str, str] = {}
    for part in (part.strip() for text in value for part in str(text).split(",")):
        node_id, equals, address = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not ID=HOST:PORT; write it as in n1=127.0.0.1:7001,n2=127.0.0.1:7002")
        if node_id in addresses:
            raise ValueError(f"{node_id!r} is named twice; give each node one address")
        addresses[node_id] = address
    return addresses


def _parse_names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _parse_duration(value: object) -> object:
    """Seconds of a time such as 10m."""
    if not isinstance(value, str):
        return value
    if (found := _DURATION.fullmatch(value)) is None:
        raise ValueError(f"{value!r} is not a time; write it as in 10m, 90s or 2h")
    return int(found[1]) * _SECONDS[found[2]]


def _parse_initial(value: object) -> object:
    """Turn a string that spells an int into the int, so that a flag and a TOML integer mean the same value."""
    if isinstance(value, bool | float):
        raise ValueError(f"{value!r} is neither an int nor a string; write a decimal number as a string")
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value


NodeId = Annotated[str, AfterValidator(_checked_node_id)]
Addresses = Annotated[dict[NodeId, Address], BeforeValidator(_parse_addresses), NoDecode]
NodeIds = Annotated[tuple[NodeId, ...], BeforeValidator(_parse_names), NoDecode]
JoinAddresses = Annotated[tuple[Address, ...], BeforeValidator(_parse_names), NoDecode]
Duration = Annotated[int | None, BeforeValidator(_parse_duration)]
"""Seconds."""
Initial = Annotated[int | str | None, BeforeValidator(_parse_initial)]


class ServeConfig(Settings):
    """The configuration of one node: its settings, and constants that tests change."""

    max_request_bytes: ClassVar = MIB
    """Bytes of a batch in one request. A request is one frame, so this also bounds how long it blocks others."""
    max_commands: ClassVar = 10_000
    """Commands in one request. They are decoded and checked together, so this bounds how long that blocks others."""
    request_timeout_ms: ClassVar = 10_000
    """How long a request waits for its commit or for a leader. After that, the outcome of a write is unknown."""
    stream_window_bytes: ClassVar = 8 * MIB
    """Bytes in flight to a follower: the leader's memory for it."""
    answer_bytes: ClassVar = 8 * MIB
    """Bytes of results in one answer to commands. The rest is left out, and the answer says so."""
    state_limit_bytes: ClassVar = 8 * MIB
    """Bytes of an answer to GET /state or POST /query."""
    snapshot_log_bytes: ClassVar = 256 * MIB
    """Bytes of frames since the last snapshot after which another is taken, for logs of few, large records."""
    follower_bytes: ClassVar = 1024 * MIB
    """Bytes of log that a leader keeps for a node that lacks them, beyond its own limits."""
    check_invariants: ClassVar = False
    """Check the protocol's invariants after each step, as the simulator does; a node that breaks one halts."""

    node: NodeId = Field(
        description="This node's id, one of the members: 1 to 24 characters of a-z, 0-9 and -, not - first."
    )
    listen: Address = Field(
        description="HOST:PORT to listen on, for both clients and peers. 0.0.0.0 is every IPv4 address, [::] every "
        "address. An alarm is raised if members gives this node another port or another IP address."
    )
    members: Addresses = Field(
        default_factory=lambda data: {data["node"]: data["listen"]} if {"node", "listen"} <= data.keys() else {},
        description="The nodes that form a new cluster, and the addresses by which they reach each other: "
        "n1=HOST:PORT,n2=HOST:PORT,... Once it is formed, its log holds the members, and these addresses only help "
        "to find them. Default: this node alone, at listen.",
    )
    join: JoinAddresses = Field(
        default=(),
        description="HOST:PORT of members of the cluster that this node belongs to, or is to join; one that answers is "
        "enough. A node with join never forms a cluster: with an empty data_dir it waits until `quire members add` "
        "has named it.",
    )
    initial_members: NodeIds = Field(
        default_factory=lambda data: () if data.get("join") else tuple(data.get("members", ())),
        description="Ids of the members that form a new cluster, as in n1,n2,n3; the others join it as observers. "
        "Ignored once the cluster is formed. Default: all members.",
    )
    data_dir: Path = Field(description="Directory of the node's log and other files; created if it does not exist.")
    machine: str = Field(
        default="arithmetic",
        min_length=1,
        description="The state machine: arithmetic, kv, log, or your own as package.module:Class (the current "
        "directory is searched last). Fixed when the cluster is formed.",
    )
    initial: Initial = Field(
        default=None,
        description="The machine's initial value. Fixed when the cluster is formed. "
        "Default: the machine's own (arithmetic: 42).",
    )
    link: Addresses = Field(
        default_factory=dict,
        description="Address at which this node reaches a peer, instead of the one in members, for example that of a "
        "proxy: n2=HOST:PORT. May be repeated.",
    )
    allow: Allow = Field(default_factory=tuple)
    tls_cert: TlsCert = None
    tls_key: TlsKey = None
    tls_ca: TlsCa = None
    tokens: Tokens = None
    peer_secret_file: FilePath | None = Field(
        default=None,
        description="File with the secret by which peers authenticate each other, the same on all nodes; `quire secret "
        "new FILE` makes one. If it has several lines, the node uses the first and accepts all of them "
        "(deploy/runbook.md, on rotation). Certificates prove more, and are enough; without either, the node accepts "
        "peers from this machine only.",
    )
    insecure: bool = Field(
        default=False,
        description="Listen beyond this machine without certificates or without tokens: anyone who reaches the port "
        "can read, write and administer. Peers must still prove a peer secret or a certificate. An alarm is raised.",
    )
    election_timeout_ms: int = Field(
        default=1000,
        ge=100,
        le=600_000,
        description="A node that has not heard from the leader for this long may campaign; a leader that has not heard "
        "from a majority for this long steps down. Must be longer than the pauses of a busy host. The heartbeat "
        "interval is a tenth of it, at most 100 ms.",
    )
    segment_bytes: int = Field(
        default=64 * MIB,
        ge=64 * 1024,
        lt=4096 * MIB,
        description="Size at which a segment of the log is sealed. Expiry removes whole segments.",
    )
    max_frame_bytes: int = Field(
        default=8 * MIB,
        ge=64 * 1024,
        le=256 * MIB,
        description="Largest frame, and so the largest blob. "
        f"At least {max_request_bytes + FRAME_OVERHEAD_BYTES:,}, to hold a request. "
        "Fixed when the cluster is formed, because no node may have a smaller limit.",
    )
    session_ttl_s: int = Field(
        default=SESSION_TTL_S,
        ge=0,
        le=10 * 365 * 86_400,
        description="A session expires, named or not, when it has been unused for this long: a client that retries "
        "after a longer absence may execute a command twice. 0: never. Fixed when the cluster is formed.",
    )
    state_bytes: int = Field(
        default=STATE_BYTES,
        ge=0,
        lt=1 << 63,
        description="Largest size of the state, as the machine counts it. A command that would exceed it is refused. "
        "The process needs more memory than that. Only the kv machine, and your own if it has limit_state, apply the "
        "limit. 0: no limit. Fixed when the cluster is formed.",
    )
    snapshot_records: int = Field(
        default=500_000,
        ge=0,
        lt=1 << 63,
        description="Take a snapshot at the first frame boundary past each multiple of this many records, which is "
        "the same boundary on every node. A restart replays about this many records at most. A snapshot is also "
        f"taken after {snapshot_log_bytes // MIB} MiB of frames. 0: only then.",
    )
    retention_bytes: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="Remove this node's oldest segments while its log is larger than this and nothing needs them. "
        "Nodes may have different limits. 0: no limit.",
    )
    retention_ms: int = Field(
        default=0,
        ge=0,
        lt=1 << 53,
        description="Remove a segment of this node's log when its last record is older than this and nothing needs it. "
        "0: no limit.",
    )
    cursors_hold_bytes: int = Field(
        default=10 * 1024 * MIB,
        ge=0,
        lt=1 << 63,
        description="How much of the log the cursors of all consumers may keep from expiring, as the sum of their "
        "hold_bytes. The leader refuses what would raise the sum above this; give all nodes the same. Each node needs "
        "room for it beyond retention_bytes. 0: no cursor gets any.",
    )
    auto_replace_after: Duration = Field(
        default=None,
        description="As 10m, 90s or 2h: how long a voter's lost disk keeps its vote once its node is back with an "
        "empty one. Then the leader replaces it: one disk at a time, of each node at most one a day, and only while "
        "all other voters are heard. Without it, `quire members promote` does so.",
    )
    slow_command_ms: int = Field(
        default=250,
        ge=0,
        le=600_000,
        description="Commands that take longer are slow: the journal says which, and `quire status` names the part of "
        "their way that takes as long again and again. 0: neither.",
    )
    slow_command_names: bool = Field(
        default=True,
        description="Name a slow command in the journal by its first element if that is text, up to 32 bytes of it.",
    )
    log_format: LogFormat = "console"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        known = ", ".join(self.members)
        for field, node_ids in (
            ("node", (self.node,)),
            ("initial_members", self.initial_members),
            ("link", tuple(self.link)),
        ):
            for node_id in node_ids:
                if node_id not in self.members:
                    raise ValueError(
                        f"{field} names {node_id!r}, which is not one of the members ({known}); add it there"
                    )
        if self.join and self.initial_members:
            raise ValueError("a node with join forms no cluster; leave out initial_members, or join")
        if len(set(self.initial_members)) != len(self.initial_members):
            raise ValueError("initial_members names a node twice; name each once")
        if len({host_and_port(address) for address in self.members.values()}) != len(self.members):
            raise ValueError("members gives two nodes the same address; give each its own")
        if self.node in self.link:
            raise ValueError(f"link names this node itself ({self.node}); name only other nodes")
        check_reach(self.listen, self.credential_files, self.node, insecure=self.insecure)
        own = self.members[self.node]
        if "members" not in self.model_fields_set and host_and_port(own)[0] in WILDCARDS:
            raise ValueError(
                f"others cannot dial {own}; give --members {self.node}=HOST:PORT, the address by which they reach this "
                "node"
            )
        if self.insecure and self.peer_secret_file is None and self.tls_cert is None:
            raise ValueError(
                "insecure needs a peer secret, since without one anyone who reaches the port can act as a member; run "
                "`quire secret new peer-secret`, copy that file to every node, and start each with --peer-secret-file"
            )
        if self.max_request_bytes + FRAME_OVERHEAD_BYTES > self.max_frame_bytes:
            raise ValueError(
                f"max_frame_bytes {self.max_frame_bytes} does not hold a request of {self.max_request_bytes} bytes; "
                "raise it"
            )
        if self.segment_bytes + self.max_frame_bytes > LARGEST_STORE_BYTES:
            raise ValueError(
                f"segment_bytes {self.segment_bytes} and a frame of max_frame_bytes {self.max_frame_bytes} are more "
                f"than the {LARGEST_STORE_BYTES} bytes of the largest segment; lower one of them"
            )
        return self

    @property
    def credential_files(self) -> CredentialFiles:
        """The files of its certificates and its tokens."""
        return credential_files(self.tls_cert, self.tls_key, self.tls_ca, self.tokens)

    @property
    def heartbeat_ms(self) -> int:
        """How often a leader sends heartbeats: at least ten fit into an election timeout."""
        return min(100, self.election_timeout_ms // 10)

    @property
    def retention_follower_bytes(self) -> int:
        """How many bytes of log a leader keeps for a node that lacks them; one that lacks more gets a snapshot."""
        return min(self.follower_bytes, self.retention_bytes or self.follower_bytes)


def load_config(flags: Mapping[str, object], config_file: Path | None = None) -> ServeConfig:
    """Read a node's configuration; raises as `load_settings`."""
    return load_settings(ServeConfig, flags, config_file)
