"""The identity file: whose data_dir this is. A JSON line and its crc32c in hex, written once, by rename."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from crc32c import crc32c

from quire.log import Directory

from ..errors import ClusterError
from .whole_file import write_whole_file

IDENTITY_FILE = "identity"
IDENTITY_VERSION = 1
MAX_IDENTITY_BYTES = 1 << 20


class DataDirRefused(ClusterError):
    """This data_dir cannot be used by this node; `reason` names the next step."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"data_dir {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a data_dir belongs to. `machine` is (name, version); ids are 16 bytes."""

    cluster_id: bytes
    node_id: str
    disk_id: bytes
    machine: tuple[str, int]
    initial: Any
    mode: str = "cluster"

    def to_line(self) -> bytes:
        """The file's content."""
        fields = asdict(self) | {"cluster_id": self.cluster_id.hex(), "disk_id": self.disk_id.hex()}
        order = ("mode", "cluster_id", "node_id", "disk_id", "machine", "initial")
        line = json.dumps({"version": IDENTITY_VERSION} | {name: fields[name] for name in order}).encode()
        return line + b"\n" + f"{crc32c(line):08x}\n".encode()

    @classmethod
    def from_line(cls, raw: bytes) -> Self:
        """The identity that a file holds.

        Raises:
            ValueError: torn, rotten, or of another version; the text says which.
        """
        line, _, check = raw.partition(b"\n")
        if check.strip() != f"{crc32c(line):08x}".encode():
            raise ValueError("the identity file is corrupt: its crc32c differs")
        fields: Mapping[str, Any] = json.loads(line)
        if fields.get("version") != IDENTITY_VERSION:
            raise ValueError(
                f"the identity file has version {fields.get('version')!r}, this program {IDENTITY_VERSION}"
            )
        name, version = fields["machine"]
        return cls(
            bytes.fromhex(fields["cluster_id"]),
            fields["node_id"],
            bytes.fromhex(fields["disk_id"]),
            (name, version),
            fields["initial"],
            fields["mode"],
        )


def read_identity(directory: Directory) -> NodeIdentity | None:
    """The identity of a data_dir, None of one that is not formatted.

    Raises:
        DataDirRefused: there is one and it cannot be trusted.
    """
    try:
        storage = directory.open(IDENTITY_FILE)
    except FileNotFoundError:
        return None
    try:
        return NodeIdentity.from_line(storage.read_at(0, MAX_IDENTITY_BYTES))
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirRefused(directory.path, f"{error}; restore a backup, or start with an empty one") from error
    finally:
        storage.close()


def write_identity(directory: Directory, identity: NodeIdentity) -> None:
    """Write it; durable and whole on return, or not there at all."""
    write_whole_file(directory, IDENTITY_FILE, identity.to_line())
