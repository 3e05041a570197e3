"""The options of the sink. Spark gives them as text, names in any case; unknown ones are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from ..errors import OptionRefused
from ..source.options import MAX_FETCH_TIMEOUT_MS, parse_integer, parse_path, parse_servers, parse_truth

HIGHEST_BATCH = 2**63 - 1
"""Spark's longs are signed."""
SESSION_CHARACTERS = 200
"""As nodes limit a session's name."""
FOLDER = "quire"
"""The sink's folder in a checkpoint."""

_SPARKS_OWN = frozenset(("queryname",))


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go, and how; the fields carry the options' own names."""

    bootstrap: tuple[str, ...] = ()
    """HOST:PORT of some nodes of a cluster; the others are learnt from them."""
    checkpointLocation: str | None = None  # noqa: N815 - as users write it
    """The query's checkpoint: the spool lies in its folder `quire`. With `spoolLocation` it may lie anywhere."""
    spoolLocation: str | None = None  # noqa: N815
    """A folder that driver and executors see, where the spool lies instead."""
    session: str | None = None
    """The name of the session; of a stream by default `spark/` and the query's id."""
    batchId: int | None = None  # noqa: N815
    """Of a batch write: a number that only grows. What was written under it or a higher one is not written again."""
    machine: str | None = None
    """`package.module:Class` of a machine that is not built in."""
    failOnRefused: bool = True  # noqa: N815
    """Whether commands that the machine refuses as it applies them fail the write."""
    sendTimeoutMs: int = 60_000  # noqa: N815
    """How long a command may wait for its answer, and no node answer anything, before the write fails."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """The options that Spark was given.

        Raises:
            OptionRefused: unknown, malformed, or missing.
        """
        known = {field.name.lower(): field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in given.items():
            if name.lower() in known:
                values[known[name.lower()]] = _parsed(known[name.lower()], text)
            elif name.lower() not in _SPARKS_OWN:
                raise OptionRefused(name, f"is not known; of a write there are {', '.join(known.values())}")
        options = cls(**values)  # type: ignore[arg-type]
        if options.checkpointLocation is not None and options.spoolLocation is None:
            _folder("checkpointLocation", options.checkpointLocation)
        if not options.bootstrap:
            raise OptionRefused("bootstrap", "name some nodes, HOST:PORT,HOST:PORT,...")
        if options.checkpointLocation is None and options.spoolLocation is None:
            raise OptionRefused(
                "checkpointLocation", "give it, or spoolLocation: a folder that driver and executors see"
            )
        if streaming and options.batchId is not None:
            raise OptionRefused("batchId", "is Spark's own in a stream")
        if not streaming and options.session is None:
            raise OptionRefused("session", "name the session under which a batch is written")
        return options

    @property
    def folder(self) -> str:
        """Where the spool lies."""
        return self.spoolLocation or os.path.join(str(self.checkpointLocation), FOLDER)

    def session_name(self) -> str:
        """The session's: as given, or that of the query whose checkpoint it is.

        Raises:
            OptionRefused: there is no telling.
        """
        if self.session is not None:
            return self.session
        query = self.query_id()
        if query is None:
            raise OptionRefused("session", "name it: the checkpoint does not tell the query's id")
        return f"spark/{query}"

    def query_id(self) -> str | None:
        """Of the query whose checkpoint it is; None where that does not tell."""
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
        case "checkpointLocation":
            return text if "://" in text else _folder(name, text)
        case "spoolLocation":
            return _folder(name, text)
        case "batchId":
            return parse_integer(name, text, 0, HIGHEST_BATCH)
        case "failOnRefused":
            return parse_truth(name, text)
        case "sendTimeoutMs":
            return parse_integer(name, text, 1, MAX_FETCH_TIMEOUT_MS)
        case "session":
            if not 0 < len(text) <= SESSION_CHARACTERS:
                raise OptionRefused(name, f"has 1 to {SESSION_CHARACTERS} characters, not {len(text)}")
            return text
        case _:
            return text


def _folder(name: str, text: str) -> str:
    path = parse_path(text, name)
    if "://" in path:
        raise OptionRefused(name, f"must be a folder of a file system that is mounted everywhere, not {text[:48]!r}")
    return os.path.abspath(path)
