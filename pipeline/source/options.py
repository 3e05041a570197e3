"""The options of the source, named as in Spark's Kafka connector where it has an equivalent.

Spark passes them as text, with names in any case. Unknown ones are refused: a misspelled limit must not read the whole
log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from quire.cluster.access.client_credentials import is_token

from ..errors import OptionRefused
from ..origin.access import Access
from .offsets import EARLIEST, LATEST, CursorPlace, Place, StartingPlace, parse_place, parse_starting_place

HIGHEST_INDEX = 2**63 - 1
"""Spark's longs are signed."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the end of Spark's timestamps."""
MAX_PARTITIONS = 1_000_000
MAX_FETCH_TIMEOUT_MS = 3_600_000

_HIGHEST = {"minPartitions": MAX_PARTITIONS, "fetchTimeoutMs": MAX_FETCH_TIMEOUT_MS}

STRATEGIES = ("error", "latest")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/|file:")
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)
_PORTS = 65_536
_OPTIONS_ARE_SHOWN = (
    "Spark shows options on its pages and in its logs: revoke a token that was given there, write another into a file "
    "on the driver and each executor, and give its path as tokenFile"
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how. The fields have the names of the options."""

    path: str | None = None
    """A data_dir, whether its node runs or not, or an archive."""
    archive: str | None = None
    """An archive to read together with the live log that `path` or `bootstrap` names, as one history."""
    bootstrap: tuple[str, ...] = ()
    """HOST:PORT of some nodes of the cluster; they name the others."""
    tokenFile: str | None = None  # noqa: N815
    """The path, on every host, of the file with the token to show; a token itself is no option."""
    ca: str | None = None
    """The path, on every host, of the certificate of the cluster's CA: connect with TLS, only to its nodes."""
    startingOffsets: StartingPlace = EARLIEST  # noqa: N815 - as users write it
    endingOffsets: Place = LATEST  # noqa: N815
    startingTimestamp: int | None = None  # noqa: N815
    """Milliseconds since the Unix epoch: start with the first record that is not older."""
    endingTimestamp: int | None = None  # noqa: N815
    """Milliseconds since the Unix epoch: end before the first record that is not older."""
    startingOffsetsByTimestampStrategy: str = "error"  # noqa: N815
    """If no record is as recent as startingTimestamp: fail (`error`), or start with the next record (`latest`)."""
    failOnDataLoss: bool = True  # noqa: N815
    """Whether to fail if records have expired before they were read, their segment's file is missing, or an archive
    records them as a gap; otherwise skip them."""
    minPartitions: int = 0  # noqa: N815
    """Split segments until there are at least this many partitions."""
    maxOffsetsPerTrigger: int | None = None  # noqa: N815
    """The maximum number of records in a batch of a stream."""
    maxBytesPerTrigger: int | None = None  # noqa: N815
    """The maximum bytes of the log in a batch of a stream, in whole frames; a batch has at least one frame."""
    includeHeaders: bool = False  # noqa: N815
    """Whether the rows have a column of headers."""
    sourceName: str | None = None  # noqa: N815
    """The stream's name in its query's progress, instead of that of the log."""
    fetchTimeoutMs: int = 60_000  # noqa: N815
    """How long to ask a cluster's nodes, one after another, before giving up."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """The options given to Spark.

        Raises:
            OptionRefused: one is unknown, malformed, missing, or contradicts another.
        """
        known = {field.name.lower(): field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in given.items():
            refuse_token(name)
            if name.lower() not in known:
                raise OptionRefused(name, f"is unknown; the options are {', '.join(known.values())}")
            values[known[name.lower()]] = _parsed(known[name.lower()], text)
        if streaming:
            values.setdefault("startingOffsets", LATEST)
        options = cls(**values)  # type: ignore[arg-type]
        options.check(values)
        return options

    @property
    def access(self) -> Access:
        """What to show to the nodes, and to demand of them."""
        return Access(self.tokenFile, self.ca)

    def check(self, given: Mapping[str, object]) -> None:
        """Raise OptionRefused if an option is missing or contradicts another."""
        if (self.path is None) == (not self.bootstrap):
            raise OptionRefused("path", "give either path, a node's data_dir, or bootstrap, some nodes' HOST:PORT")
        check_access(self.access, self.bootstrap)
        for offsets, timestamp in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
            if timestamp in given and isinstance(given.get(offsets), int | CursorPlace):
                raise OptionRefused(timestamp, f"cannot be combined with {offsets}")
        if isinstance(self.startingOffsets, CursorPlace) and not self.bootstrap:
            reason = f"the cursor {self.startingOffsets.name} is asked of a running cluster: give bootstrap, not path"
            raise OptionRefused("startingOffsets", reason)
        if self.endingOffsets == EARLIEST:
            raise OptionRefused("endingOffsets", "cannot be earliest")


def _parsed(name: str, text: str) -> object:
    match name:
        case "path" | "archive":
            return parse_path(text, name)
        case "bootstrap":
            return parse_servers(text)
        case "tokenFile" | "ca":
            return parse_file(name, text)
        case "startingOffsets":
            return parse_starting_place(name, text)
        case "endingOffsets":
            return parse_place(name, text)
        case "startingTimestamp" | "endingTimestamp":
            return parse_integer(name, text, 0, MAX_TIMESTAMP_MS)
        case "failOnDataLoss" | "includeHeaders":
            return parse_truth(name, text)
        case "startingOffsetsByTimestampStrategy":
            if text.lower() not in STRATEGIES:
                raise OptionRefused(name, f"must be one of {', '.join(STRATEGIES)}, not {text[:24]!r}")
            return text.lower()
        case "sourceName":
            return text
        case _:
            return parse_integer(name, text, 1, _HIGHEST.get(name, HIGHEST_INDEX))


def parse_path(text: str, name: str = "path") -> str:
    """A folder on a file system that every process of the job shares; not a URL, which would be a folder of that name.

    Raises:
        OptionRefused: it is empty, or a URL.
    """
    if not text:
        raise OptionRefused(name, "is empty")
    if not is_url(text):
        return text
    if path := path_of_file_url(text):
        raise OptionRefused(name, f"{text[:48]!r} is a URL; give the path without it: {path[:48]}")
    reason = (
        "is a URL; quire reads and writes folders of mounted file systems only: mount the store, or copy the folder"
    )
    raise OptionRefused(name, f"{text[:48]!r} {reason}")


def parse_file(name: str, text: str) -> str:
    """The absolute path of a file that each process of the job reads. Raises OptionRefused: it is empty, or no path."""
    if is_token(os.path.basename(text)):
        raise OptionRefused(name, f"is a token; {_OPTIONS_ARE_SHOWN}")
    return os.path.abspath(parse_path(text, name))


def refuse_token(name: str) -> None:
    """Raise OptionRefused if an option is a token itself."""
    if name.lower() == "token":
        raise OptionRefused(name, f"is not taken; {_OPTIONS_ARE_SHOWN}")


def check_access(access: Access, bootstrap: tuple[str, ...]) -> None:
    """Raise OptionRefused if files for connections are incomplete, or there are no nodes to connect to."""
    if access.token_file is not None and access.ca is None:
        raise OptionRefused("tokenFile", "needs ca, too: a token is sent only to nodes that prove the cluster's name")
    if access.ca is not None and not bootstrap:
        raise OptionRefused("ca", "goes with bootstrap")


def is_url(text: str) -> bool:
    """Whether a path begins with a scheme, as in s3://bucket/x or file:/x."""
    return _URL.match(text) is not None


def path_of_file_url(text: str) -> str | None:
    """The path in a URL like file:///x or file:/x; None if it is another URL, or names a host."""
    path = text.removeprefix("file:")
    if path.startswith("///"):
        path = path.removeprefix("//")
    return path if path != text and re.match("/(?!/)", path) else None


def parse_servers(text: str) -> tuple[str, ...]:
    """The servers in a list of HOST:PORT, each once. Raises OptionRefused."""
    servers = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for server in servers:
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match[2]) < _PORTS:
            raise OptionRefused("bootstrap", f"must be HOST:PORT,HOST:PORT,..., not {server[:48]!r}")
    if not servers:
        raise OptionRefused("bootstrap", "names no node")
    return servers


def parse_integer(name: str, text: str, lowest: int, highest: int) -> int:
    """An integer within [lowest, highest]. Raises OptionRefused."""
    if not re.fullmatch(r"[0-9]{1,20}", text) or not lowest <= int(text) <= highest:
        raise OptionRefused(name, f"must be an integer from {lowest} to {highest}, not {text[:24]!r}")
    return int(text)


def parse_truth(name: str, text: str) -> bool:
    """True or false, in any case. Raises OptionRefused."""
    if text.lower() not in ("true", "false"):
        raise OptionRefused(name, f"must be true or false, not {text[:24]!r}")
    return text.lower() == "true"
