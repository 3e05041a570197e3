"""The sink's durable state: small JSON documents in a folder of the checkpoint.

    identity                   the cluster that gets the commands, the name of the session, the query's id
    holder                     the session id of the last driver that sent commands
    plan-BATCH-SESSION         a batch: its first sequence, and the spools with its commands
    refused-BATCH              which of its commands the machine refused, as far as known
    done-BATCH                 the batch is executed: the session's next sequence, and how many commands were refused
    spool-...                  commands, written by a task; see `spool`

A document is written under another name, synced and renamed, so it is complete or absent. If a batch has two plans, the
one with the higher session id counts: its driver opened the session later, saw no plan, and fenced the other driver,
which therefore had sent nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import orjson
from crc32c import crc32c

from quire.log import Directory

from ..errors import OptionRefused
from .errors import ForeignCluster, SpoolDamaged
from .spool import Spool, digest_of

VERSION = 2
_WITHOUT_DIGESTS = 1
"""The version before digests. Its files are read, and become this version with the next batch."""
FIRST_REFUSALS = 10
"""How many of a batch's refusals are kept with their texts; the others are only counted."""
SPOOL = "spool-"
_IDENTITY, _HOLDER, _PLAN, _REFUSED, _DONE, _HALF = "identity", "holder", "plan-", "refused-", "done-", ".half"
_CRC_DIGITS = 8
_NO_QUERY = "an unknown query (a stream's is known by option checkpointLocation)"
_NEW_SPOOL = "they have not written the same batches: a new checkpoint needs a new session and a new spoolLocation"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch sends: the commands of the spools, in order, with sequences from `first_sequence` on."""

    batch: int
    session: int
    first_sequence: int
    spools: tuple[Spool, ...]
    bad_rows: int = 0
    """How many rows are left out, since they are not commands."""
    first_bad: tuple[tuple[int, int, str, str], ...] = ()
    """(partition, row, code, text) of some."""
    bad_files: tuple[tuple[str, int, int, int], ...] = ()
    """The fields of the `BadFile` of each partition with such rows, if they are kept as a table."""

    @property
    def commands(self) -> int:
        return sum(spool.commands for spool in self.spools)

    @property
    def digest(self) -> str | None:
        """Of its commands; None: an older program made the plan."""
        return digest_of(self.spools)

    @property
    def next_sequence(self) -> int:
        """The sequence after its last command."""
        return self.first_sequence + self.commands


@dataclass(frozen=True, slots=True)
class Refusals:
    """The refusals among a batch's commands below the sequence `through`; `first`: (sequence, code, text) of some."""

    through: int
    count: int = 0
    unanswered: int = 0
    first: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A batch that is completely executed."""

    batch: int
    next_sequence: int
    commands: int
    refused: int
    unanswered: int
    first_refused: tuple[tuple[int, str, str], ...] = ()
    digest: str | None = None
    """Of its commands; None: an older program planned it."""
    bad_rows: int = 0
    first_bad: tuple[tuple[int, int, str, str], ...] = ()


class SinkState:
    """The state in one folder. If several processes use it at once, the holder of the session prevails."""

    def __init__(self, directory: Directory, option: str = "spoolLocation") -> None:
        """`option`: the one that names the folder, for messages."""
        self.directory = directory
        self._option = option

    def names(self) -> list[str]:
        """The files that exist now, sorted."""
        return sorted(self.directory.list())

    def identify(self, cluster_id: str, session: str, query: str | None) -> None:
        """Claim an unused folder for this cluster, session and query, or check that it is theirs.

        Raises:
            ForeignCluster, OptionRefused: it belongs to another.
            SpoolDamaged: its identity is damaged, or of another version.
        """
        known = self._read(_IDENTITY)
        if known is None:
            document = {"version": VERSION, "cluster_id": cluster_id, "session": session, "query": query}
            self._write(_IDENTITY, document)
            return
        if known.get("version") not in (_WITHOUT_DIGESTS, VERSION):
            raise SpoolDamaged(
                f"{self.directory.path}/{_IDENTITY}", f"has version {known.get('version')}, not {VERSION}"
            )
        if known["cluster_id"] != cluster_id:
            raise ForeignCluster(cluster_id, known["cluster_id"])
        if known["session"] != session:
            option = "session" if self._option == "spoolLocation" else self._option
            raise OptionRefused(option, f"the spool's is {known['session']}, not {session}; {_NEW_SPOOL}")
        if known.get("query", query) != query:
            found, given = known["query"] or _NO_QUERY, query or _NO_QUERY
            raise OptionRefused(self._option, f"the spool is of query {found}, not of {given}; {_NEW_SPOOL}")
        if known["version"] != VERSION:  # An older program cannot read the files that follow, and shall say so.
            self._write(_IDENTITY, {**known, "version": VERSION})

    def holder(self) -> int | None:
        """The session id of the last send; None if nothing was sent."""
        known = self._read(_HOLDER)
        return None if known is None else int(known["session"])

    def hold(self, session: int) -> None:
        """Record the session id of the sends that follow."""
        self._write(_HOLDER, {"session": session})

    def done(self) -> Done | None:
        """The last executed batch."""
        found = [name for name in self.names() if name.startswith(_DONE) and not name.endswith(_HALF)]
        known = self._read(found[-1]) if found else None
        if known is None:
            return None
        known["first_refused"] = tuple(map(tuple, known["first_refused"]))
        known["first_bad"] = tuple(map(tuple, known.get("first_bad", ())))
        return Done(**known)

    def finish(self, done: Done) -> None:
        """Record that a batch is executed."""
        self._write(f"{_DONE}{done.batch:020d}", asdict(done))

    def plan(self) -> Plan | None:
        """The plan of the batch after the last executed one, if there is a plan."""
        done, found = (
            self.done(),
            [name for name in self.names() if name.startswith(_PLAN) and not name.endswith(_HALF)],
        )
        known = self._read(found[-1]) if found else None
        if known is None or (done is not None and known["batch"] <= done.batch):
            return None
        known["spools"] = tuple(Spool(*each) for each in known["spools"])
        for name in ("first_bad", "bad_files"):
            known[name] = tuple(map(tuple, known.get(name, ())))
        return Plan(**known)

    def write_plan(self, plan: Plan) -> None:
        """Make a plan durable. From now on every driver sends exactly what it says."""
        self._write(
            f"{_PLAN}{plan.batch:020d}-{plan.session:020d}",
            {**asdict(plan), "spools": [list(each) for each in plan.spools]},
        )

    def refusals(self, plan: Plan) -> Refusals:
        """The known refusals of a batch."""
        known = self._read(f"{_REFUSED}{plan.batch:020d}")
        if known is None:
            return Refusals(plan.first_sequence)
        known["first"] = tuple(map(tuple, known["first"]))
        return Refusals(**known)

    def note(self, plan: Plan, refusals: Refusals) -> None:
        """Make refusals durable."""
        self._write(f"{_REFUSED}{plan.batch:020d}", asdict(refusals))

    def clean(self, listed: Iterable[str], plan: Plan) -> None:
        """Remove the files that existed before a plan's batch, and its spools. The batch must be done, and the caller
        must hold the session.

        The plan itself stays until the session is opened for the next batch: a late driver that opened it earlier must
        find the plan.
        """
        kept = {f"{_PLAN}{plan.batch:020d}-{plan.session:020d}", f"{_DONE}{plan.batch:020d}", _IDENTITY, _HOLDER}
        self.discard({*listed, *(spool.name for spool in plan.spools)} - kept)

    def discard(self, names: Iterable[str]) -> None:
        """Remove files, if they still exist."""
        for name in sorted(names):
            with suppress(FileNotFoundError):
                self.directory.remove(name)

    def abandon(self, spools: Iterable[Spool]) -> None:
        """Remove the spools that no plan names: their batch will not be sent from them."""
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
            raise SpoolDamaged(f"{self.directory.path}/{name}", "its crc32c does not match")
        document: dict[str, Any] = orjson.loads(body)
        return document

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        body = orjson.dumps(document) + b"\n"
        half = f"{name}-{uuid4().hex}{_HALF}"
        with closing(self.directory.create(half)) as storage:
            storage.write_at(0, body + _crc_of(body))
            storage.sync()
        self.directory.rename(half, name)
        self.directory.sync()


def _crc_of(body: bytes) -> bytes:
    return f"{crc32c(body):0{_CRC_DIGITS}x}".encode()
