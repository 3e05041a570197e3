"""The configuration of `quire serve`: one frozen model."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, FilePath, model_validator
from pydantic_settings import NoDecode

from quire.replication import NODE_ID

from .settings import Address, LogFormat, LogLevel, Settings, load_settings

MIB = 1 << 20
FRAME_OVERHEAD_BYTES = 1024  # Frame header and the msgpack around a request's records, generously.

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def _checked_node_id(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise ValueError(f"{node_id!r} is no node id; take 1 to 24 of a-z, 0-9 and -")
    return node_id


def _parse_addresses(value: Any) -> Any:
    """A map of node id to address from `n1=HOST:PORT,n2=...`, or from a list of such strings (a repeated flag)."""
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


def _parse_names(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _parse_initial(value: Any) -> Any:
    """A string that spells an int becomes that int, so that a flag and a TOML integer name the same initial value."""
    if isinstance(value, bool | float):
        raise ValueError(f"{value!r} is neither an int nor a string; write a decimal number as a string")
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value


NodeId = Annotated[str, AfterValidator(_checked_node_id)]
Addresses = Annotated[dict[NodeId, Address], BeforeValidator(_parse_addresses), NoDecode]
NodeIds = Annotated[tuple[NodeId, ...], BeforeValidator(_parse_names), NoDecode]
Initial = Annotated[int | str | None, BeforeValidator(_parse_initial)]


class ServeConfig(Settings):
    """What one node is started with."""

    node: NodeId = Field(description="This node's id, one of the members: 1 to 24 of a-z, 0-9 and -.")
    listen: Address = Field(description="HOST:PORT to listen on; clients and peers share this one port.")
    members: Addresses = Field(
        description="Every node of the cluster and where the others reach it: n1=HOST:PORT,n2=HOST:PORT,..."
    )
    initial_members: NodeIds = Field(
        default_factory=lambda data: tuple(data.get("members", ())),
        description="Ids of the members that form a new cluster, as n1,n2,n3; the others join it as observers. "
        "Only looked at until the cluster is formed. Default: all members.",
    )
    data_dir: Path = Field(description="Directory of the node's log and promises; made if it does not exist.")
    machine: str = Field(
        default="arithmetic",
        min_length=1,
        description="The state machine: arithmetic, kv, log, or your own as package.module:Class (the current "
        "directory is searched last). Stands in the log's "
        "genesis, so it cannot be changed later.",
    )
    initial: Initial = Field(
        default=None,
        description="The machine's initial value. Stands in genesis, too. Default: the machine's own (arithmetic: 42).",
    )
    link: Addresses = Field(
        default_factory=dict,
        description="This node reaches that peer there, for example through a proxy: n2=HOST:PORT. May be repeated.",
    )
    peer_secret_file: FilePath | None = Field(
        default=None,
        description="File with the secret that peers prove to one another they know. None: the network is trusted.",
    )
    heartbeat_ms: int = Field(
        default=100,
        ge=10,
        le=60_000,
        description="How often the leader shows that it lives. Short enough for several within an election timeout.",
    )
    election_timeout_ms: int = Field(
        default=1000,
        ge=50,
        le=600_000,
        description="Silence after which a leader counts as gone, and after which one that hears no majority stops "
        "leading. Long enough for a busy machine's pauses.",
    )
    segment_bytes: int = Field(
        default=64 * MIB,
        ge=64 * 1024,
        lt=4096 * MIB,
        description="Size at which a segment of the log is sealed. Expiry removes whole segments.",
    )
    max_request_bytes: int = Field(
        default=MIB,
        ge=1024,
        le=64 * MIB,
        description="Largest batch of commands or records in one request. One request is one frame, so this also "
        "bounds how long it holds up others.",
    )
    max_frame_bytes: int = Field(
        default=8 * MIB,
        ge=64 * 1024,
        le=256 * MIB,
        description="Largest frame, and so the largest blob. Stands in genesis: all nodes must be able to hold it.",
    )
    stream_window_bytes: int = Field(
        default=8 * MIB,
        ge=64 * 1024,
        le=1024 * MIB,
        description="Bytes shipped to a follower that it has not acknowledged yet; bounds the leader's memory for it.",
    )
    state_limit_bytes: int = Field(
        default=8 * MIB,
        ge=1024,
        le=256 * MIB,
        description="Largest state that GET /state gives; above it the answer is 413.",
    )
    request_timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="How long a request waits for its commit or for the leader; after that a write's outcome is "
        "reported as unknown.",
    )
    snapshot_records: int = Field(
        default=500_000,
        ge=0,
        lt=1 << 63,
        description="A snapshot is taken at the first frame boundary past each multiple of so many records, the "
        "same one on every node. A restart replays about so many at most. 0: not by records.",
    )
    snapshot_log_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        lt=1 << 63,
        description="A snapshot is taken after so many bytes of frames since the last one: large records fill the log "
        "before there are many. 0: not by bytes.",
    )
    snapshot_interval_ms: int = Field(
        default=0,
        ge=0,
        lt=1 << 53,
        description="A snapshot is taken at the first frame boundary after so long: where few records come, a bound on "
        "how old the newest one is. 0: not by time.",
    )
    retention_bytes: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="This node's log is held at about so many bytes: its oldest segments go as soon as nothing needs "
        "them. Each node may have its own. 0: no limit.",
    )
    retention_ms: int = Field(
        default=0,
        ge=0,
        lt=1 << 53,
        description="A segment of this node's log goes when its last record is older than this, and nothing needs it. "
        "0: no limit.",
    )
    retention_follower_bytes: int = Field(
        default=1024 * MIB,
        ge=0,
        lt=1 << 63,
        description="What a node lacks is kept for it by the leader, although its limits would let it go, up to so "
        "many bytes; a node that lacks more gets a snapshot.",
    )
    check_invariants: bool = Field(
        default=False,
        description="For tests: check the protocol's invariants after each step. A node that breaks one halts.",
    )
    log_level: LogLevel = "info"
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
        if len(set(self.initial_members)) != len(self.initial_members):
            raise ValueError("initial_members names a node twice; name each once")
        if len(set(self.members.values())) != len(self.members):
            raise ValueError("members gives two nodes the same address; give each its own")
        if self.node in self.link:
            raise ValueError(f"link names this node itself ({self.node}); name only other nodes")
        if self.election_timeout_ms < 3 * self.heartbeat_ms:
            raise ValueError(
                f"election_timeout_ms {self.election_timeout_ms} is below three heartbeats of {self.heartbeat_ms} ms; "
                "raise it, or lower heartbeat_ms"
            )
        if self.max_request_bytes + FRAME_OVERHEAD_BYTES > self.max_frame_bytes:
            raise ValueError(
                f"max_request_bytes {self.max_request_bytes} does not fit a frame of max_frame_bytes "
                f"{self.max_frame_bytes}; lower the one or raise the other"
            )
        return self

    def address_of(self, node_id: str) -> str | None:
        """Where this node reaches a member: its link if it has one, else its address; None for an unknown id."""
        return self.link.get(node_id) or self.members.get(node_id)


def load_config(flags: Mapping[str, Any], config_file: Path | None = None) -> ServeConfig:
    """The configuration of a node, as `load_settings` reads it."""
    return load_settings(ServeConfig, flags, config_file)
