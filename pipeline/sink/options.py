"""The options of the sink. Spark passes them as text, with names in any case; unknown ones are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from ..errors import OptionRefused
from ..origin.access import Access
from ..source.options import (
    MAX_FETCH_TIMEOUT_MS,
    check_access,
    is_url,
    parse_file,
    parse_integer,
    parse_path,
    parse_servers,
    parse_truth,
    path_of_file_url,
    refuse_token,
)

HIGHEST_BATCH = 2**63 - 1
"""Spark's longs are signed."""
SESSION_CHARACTERS = 200
"""The nodes' limit on the name of a session."""
FOLDER = "quire"
"""The sink's folder in a checkpoint."""

FAIL, DROP, TABLE = BAD_ROWS = ("fail", "drop", "table")

_SPARKS_OWN = frozenset(("queryname",))


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go, and how. The fields have the names of the options."""

    bootstrap: tuple[str, ...] = ()
    """HOST:PORT of some nodes of the cluster; they name the others."""
    tokenFile: str | None = None  # noqa: N815
    """The path, on every host, of the file with the token to show; a token itself is no option."""
    ca: str | None = None
    """The path, on every host, of the certificate of the cluster's CA: connect with TLS, only to its nodes."""
    checkpointLocation: str | None = None  # noqa: N815 - as users write it
    """The query's checkpoint; the spool is its folder `quire`. With `spoolLocation` the checkpoint may be anywhere."""
    spoolLocation: str | None = None  # noqa: N815
    """The spool's folder instead, which driver and executors see."""
    session: str | None = None
    """The name of the session; a stream's default is `spark/` and the query's id."""
    batchId: int | None = None  # noqa: N815
    """For a batch write: a number that only grows. The last one with the same rows is not written again; the same with
    other rows, or a lower one, is refused."""
    machine: str | None = None
    """`package.module:Class` of the cluster's machine, if it is not built in."""
    badRows: str = "fail"  # noqa: N815
    """What happens to rows that are not commands: `fail` their batch, `drop` them, or keep them as a `table`."""
    badRowsLocation: str | None = None  # noqa: N815
    """The folder of that table, which driver and executors see."""
    failOnRefused: bool = True  # noqa: N815
    """Whether commands that the machine refuses at apply fail the write."""
    failOnChangedRows: bool = True  # noqa: N815
    """Whether the write fails if its batch was planned or written before with other rows; else these are dropped."""
    sendTimeoutMs: int = 60_000  # noqa: N815
    """How long to wait for the answer to a command, or for any node to answer, before the write fails."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """The options given to Spark.

        Raises:
            OptionRefused: unknown, malformed, or missing.
        """
        known = {field.name.lower(): field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in given.items():
            refuse_token(name)
            if name.lower() in known:
                values[known[name.lower()]] = _parsed(known[name.lower()], text)
            elif name.lower() not in _SPARKS_OWN:
                raise OptionRefused(name, f"is unknown; a write has {', '.join(known.values())}")
        options = cls(**values)  # type: ignore[arg-type]
        checkpoint = options.checkpointLocation
        if checkpoint is not None and options.spoolLocation is None and is_url(checkpoint):
            reason = "is a URL; give spoolLocation, too: a folder that driver and executors see"
            raise OptionRefused("checkpointLocation", f"{checkpoint[:48]!r} {reason}")
        if not options.bootstrap:
            raise OptionRefused("bootstrap", "name some nodes, HOST:PORT,HOST:PORT,...")
        check_access(options.access, options.bootstrap)
        if options.checkpointLocation is None and options.spoolLocation is None:
            raise OptionRefused(
                "checkpointLocation", "give it, or spoolLocation: a folder that driver and executors see"
            )
        if streaming and options.batchId is not None:
            raise OptionRefused("batchId", "is set by Spark in a stream")
        if not streaming and options.session is None:
            raise OptionRefused("session", "name the session under which a batch is written")
        if (options.badRows == TABLE) != (options.badRowsLocation is not None):
            raise OptionRefused("badRowsLocation", f"goes with badRows={TABLE}: a folder for the rows left out")
        return options

    @property
    def access(self) -> Access:
        """What to show to the nodes, and to demand of them."""
        return Access(self.tokenFile, self.ca)

    @property
    def folder(self) -> str:
        """The spool's folder."""
        return self.spoolLocation or os.path.join(str(self.checkpointLocation), FOLDER)

    def session_name(self) -> str:
        """The name of the session: as given, or made from the id of the query.

        Raises:
            OptionRefused: it is not given, and the query's id is unknown.
        """
        if self.session is not None:
            return self.session
        query = self.query_id()
        if query is None:
            raise OptionRefused("session", "name it: the checkpoint does not contain the query's id")
        return f"spark/{query}"

    def query_id(self) -> str | None:
        """The id of the query, from its checkpoint; None if it is not there."""
        if self.checkpointLocation is None:
            return None
        try:
            return str(json.loads((Path(self.checkpointLocation) / "metadata").read_bytes())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _parsed(name: str, text: str) -> object:
    match name:
        case "bootstrap":
            return parse_servers(text)
        case "badRows":
            if text.lower() not in BAD_ROWS:
                raise OptionRefused(name, f"must be one of {', '.join(BAD_ROWS)}, not {text[:24]!r}")
            return text.lower()
        case "checkpointLocation":
            return _checkpoint(text)
        case "spoolLocation" | "badRowsLocation":
            return os.path.abspath(parse_path(text, name))
        case "tokenFile" | "ca":
            return parse_file(name, text)
        case "batchId":
            return parse_integer(name, text, 0, HIGHEST_BATCH)
        case "failOnRefused" | "failOnChangedRows":
            return parse_truth(name, text)
        case "sendTimeoutMs":
            return parse_integer(name, text, 1, MAX_FETCH_TIMEOUT_MS)
        case "session":
            if not 0 < len(text) <= SESSION_CHARACTERS:
                raise OptionRefused(name, f"must have 1 to {SESSION_CHARACTERS} characters, not {len(text)}")
            return text
        case _:
            return text


def _checkpoint(text: str) -> str:
    """The query's checkpoint. Spark takes a URL there, too: its default file system may be another."""
    path = path_of_file_url(text) or text
    return path if is_url(path) else os.path.abspath(parse_path(path, "checkpointLocation"))
