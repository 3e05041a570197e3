"""What the sink knows of itself, in files of the checkpoint: small JSON documents, each durable and whole or not there.

    identity                   which cluster the commands go to, under which session's name, from which query
    holder                     the session id under which a driver has sent last
    plan-BATCH-SESSION         a batch: its first sequence, and the spools with its commands
    refused-BATCH              what of it the machine refused, as far as is known
    done-BATCH                 it is executed: where the sequence stands then, and how many were refused
    spool-...                  commands, by a task; see `spool`

A document is written beside its place, synced and renamed: there is no half of one. Of two plans of a batch that of the
higher session id counts: who wrote it had opened the session later, found none, and has fenced the other, which so was
sent nothing of.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import orjson
from crc32c import crc32c

from quire.log import Directory

from ..errors import OptionRefused
from .errors import ForeignCluster, SpoolDamaged
from .spool import Spool

VERSION = 1
FIRST_REFUSALS = 10
"""So many of a batch's refusals are kept with their texts; the others are counted."""
SPOOL = "spool-"
_IDENTITY, _HOLDER, _PLAN, _REFUSED, _DONE, _HALF = "identity", "holder", "plan-", "refused-", "done-", ".half"
_CRC_DIGITS = 8
_NO_QUERY = "one that is not told (of a stream by option checkpointLocation)"
_ANEW = "what the one has written the other has not: a new checkpoint needs a new session and a new spoolLocation"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch sends: the commands of the spools, in their order, numbered from `first_sequence` on."""

    batch: int
    session: int
    first_sequence: int
    spools: tuple[Spool, ...]

    @property
    def commands(self) -> int:
        return sum(spool.commands for spool in self.spools)

    @property
    def next_sequence(self) -> int:
        """The one behind its last."""
        return self.first_sequence + self.commands


@dataclass(frozen=True, slots=True)
class Refusals:
    """What was refused of a batch's commands below the sequence `through`; `first`: [sequence, code, text] of some."""

    through: int
    count: int = 0
    unanswered: int = 0
    first: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A batch that is executed, all of it."""

    batch: int
    next_sequence: int
    commands: int
    refused: int
    unanswered: int
    first_refused: tuple[tuple[int, str, str], ...] = ()


class SinkState:
    """One folder. Of several processes that use it at a time, the holder of the session goes on."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        """All that is there now."""
        return sorted(self.directory.list())

    def identify(self, cluster_id: str, session: str, query: str | None) -> None:
        """Give the folder to this cluster, session and query, or check that it is theirs.

        Raises:
            ForeignCluster, OptionRefused: it is another's.
        """
        known = self._read(_IDENTITY)
        if known is None:
            document = {"version": VERSION, "cluster_id": cluster_id, "session": session, "query": query}
            self._write(_IDENTITY, document)
            return
        if known.get("version") != VERSION:
            raise SpoolDamaged(
                f"{self.directory.path}/{_IDENTITY}", f"is of version {known.get('version')}, not {VERSION}"
            )
        if known["cluster_id"] != cluster_id:
            raise ForeignCluster(cluster_id, known["cluster_id"])
        if known["session"] != session:
            raise OptionRefused("session", f"the spool's is {known['session']}, not {session}; {_ANEW}")
        if known.get("query", query) != query:
            found, told = known["query"] or _NO_QUERY, query or _NO_QUERY
            raise OptionRefused("spoolLocation", f"the spool is of query {found}, not of {told}; {_ANEW}")

    def holder(self) -> int | None:
        """Under which session id was sent last."""
        known = self._read(_HOLDER)
        return None if known is None else int(known["session"])

    def hold(self, session: int) -> None:
        """Note that from now on it is this one."""
        self._write(_HOLDER, {"session": session})

    def done(self) -> Done | None:
        """The last batch that is executed."""
        found = [name for name in self.names() if name.startswith(_DONE) and not name.endswith(_HALF)]
        known = self._read(found[-1]) if found else None
        if known is None:
            return None
        known["first_refused"] = tuple(map(tuple, known["first_refused"]))
        return Done(**known)

    def finish(self, done: Done) -> None:
        """Note that a batch is executed."""
        self._write(f"{_DONE}{done.batch:020d}", asdict(done))

    def plan(self) -> Plan | None:
        """The plan of the batch behind the last one that is done, if there is one."""
        done, found = (
            self.done(),
            [name for name in self.names() if name.startswith(_PLAN) and not name.endswith(_HALF)],
        )
        known = self._read(found[-1]) if found else None
        if known is None or (done is not None and known["batch"] <= done.batch):
            return None
        known["spools"] = tuple(Spool(*each) for each in known["spools"])
        return Plan(**known)

    def write_plan(self, plan: Plan) -> None:
        """Make a plan durable: what it says is what is sent, whoever sends it."""
        self._write(
            f"{_PLAN}{plan.batch:020d}-{plan.session:020d}",
            {**asdict(plan), "spools": [list(each) for each in plan.spools]},
        )

    def refusals(self, plan: Plan) -> Refusals:
        """What is known of a batch's refusals."""
        known = self._read(f"{_REFUSED}{plan.batch:020d}")
        if known is None:
            return Refusals(plan.first_sequence)
        known["first"] = tuple(map(tuple, known["first"]))
        return Refusals(**known)

    def note(self, plan: Plan, refusals: Refusals) -> None:
        """Keep them."""
        self._write(f"{_REFUSED}{plan.batch:020d}", asdict(refusals))

    def clean(self, listed: Iterable[str], plan: Plan) -> None:
        """Remove what was there before the batch of a plan, and its spools. It must be done, by who holds the session.

        The plan itself stays until the session was opened again, for the next batch: whoever opened it before and comes
        late must find it.
        """
        kept = {f"{_PLAN}{plan.batch:020d}-{plan.session:020d}", f"{_DONE}{plan.batch:020d}", _IDENTITY, _HOLDER}
        self.discard({*listed, *(spool.name for spool in plan.spools)} - kept)

    def discard(self, names: Iterable[str]) -> None:
        """Remove files, if they are there still."""
        for name in sorted(names):
            with suppress(FileNotFoundError):
                self.directory.remove(name)

    def abandon(self, spools: Iterable[Spool]) -> None:
        """Remove what tasks wrote in vain: all that no plan names."""
        plan = self.plan()
        named = {spool.name for spool in plan.spools} if plan is not None else set[str]()
        self.discard({spool.name for spool in spools} - named)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            storage = self.directory.open(name)
        except FileNotFoundError:
            return None
        with closing(storage):
            raw = storage.read_at(0, storage.size)
        body, stated = raw[:-_CRC_DIGITS], raw[-_CRC_DIGITS:]
        if stated != _crc_of(body):
            raise SpoolDamaged(f"{self.directory.path}/{name}", "its crc is not what it states")
        document: dict[str, Any] = orjson.loads(body)
        return document

    def _write(self, name: str, document: dict[str, Any]) -> None:
        body = orjson.dumps(document) + b"\n"
        half = f"{name}-{uuid4().hex}{_HALF}"
        with closing(self.directory.create(half)) as storage:
            storage.write_at(0, body + _crc_of(body))
            storage.sync()
        self.directory.rename(half, name)
        self.directory.sync()


def _crc_of(body: bytes) -> bytes:
    return f"{crc32c(body):0{_CRC_DIGITS}x}".encode()
