"""The identity file: which node the data directory belongs to. One JSON line and its crc32c in hex.

It is written when the directory is formatted, and anew by `quire recover`. Version 1 has no `history`: its history is
the cluster's first one.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Self

from crc32c import crc32c

from quire.log import Directory
from quire.replication.core.fitness import REPLACE_DISK

from ..errors import ClusterError

IDENTITY_FILE = "identity"
IDENTITY_VERSION = 2
IDENTITY_VERSIONS = (1, IDENTITY_VERSION)
MAX_IDENTITY_BYTES = 1 << 20


class DataDirRefused(ClusterError):
    """This node cannot use this data directory; `reason` names the next step."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"data_dir {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The owner of a data directory. `machine` is (name, version); all ids have 16 bytes.

    `history` names the history of the cluster's log: `cluster_id` until a forced recovery begins another one.
    """

    cluster_id: bytes
    node_id: str
    disk_id: bytes
    machine: tuple[str, int]
    initial: object
    mode: str = "cluster"
    history: bytes = b""
    """Empty in the constructor: `cluster_id`."""

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", self.cluster_id)

    def to_line(self) -> bytes:
        """The file's content."""
        ids = {name: getattr(self, name).hex() for name in ("cluster_id", "disk_id", "history")}
        fields = asdict(self) | ids
        order = ("mode", "cluster_id", "history", "node_id", "disk_id", "machine", "initial")
        line = json.dumps({"version": IDENTITY_VERSION} | {name: fields[name] for name in order}).encode()
        return line + b"\n" + f"{crc32c(line):08x}\n".encode()

    @classmethod
    def from_line(cls, raw: bytes) -> Self:
        """Decode the file's content.

        Raises:
            ValueError: it is damaged, or of another version; the text says which.
        """
        line, _, check = raw.partition(b"\n")
        if check.strip() != f"{crc32c(line):08x}".encode():
            raise ValueError("the identity file is corrupt: its crc32c differs")
        fields: Mapping[str, Any] = json.loads(line)
        if fields.get("version") not in IDENTITY_VERSIONS:
            raise ValueError(
                f"the identity file has version {fields.get('version')!r}, this program {IDENTITY_VERSIONS}"
            )
        name, version = fields["machine"]
        return cls(
            bytes.fromhex(fields["cluster_id"]),
            fields["node_id"],
            bytes.fromhex(fields["disk_id"]),
            (name, version),
            fields["initial"],
            fields["mode"],
            bytes.fromhex(fields.get("history", "")),
        )


def read_identity(directory: Directory) -> NodeIdentity | None:
    """The identity of a data directory; None if it is not formatted.

    Raises:
        DataDirRefused: the identity file is damaged or of another version.
    """
    try:
        storage = directory.open(IDENTITY_FILE)
    except FileNotFoundError:
        return None
    with closing(storage):
        raw = storage.read_at(0, MAX_IDENTITY_BYTES)
    try:
        return NodeIdentity.from_line(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirRefused(directory.path, f"{error}; {REPLACE_DISK}") from error


def write_identity(directory: Directory, identity: NodeIdentity) -> None:
    """Write the identity file; see `write_whole_file`."""
    write_whole_file(directory, IDENTITY_FILE, identity.to_line())


def write_whole_file(directory: Directory, name: str, data: bytes) -> None:
    """Write a file under a temporary name, sync and rename it: durable on return, and after a crash whole or absent."""
    temporary = name + ".tmp"
    if temporary in directory.list():
        directory.remove(temporary)
    with closing(directory.create(temporary)) as storage:
        storage.write_at(0, data)
        storage.sync()
    directory.rename(temporary, name)
    directory.sync()
