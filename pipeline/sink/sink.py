"""`df.write.format("quire")` and `df.writeStream.format("quire")`: what Spark calls.

Tasks check and spool; the driver commits. Spark tells neither of them what the other does: a task does not know its
batch, the writer that commits is another object in another process than the one that wrote, and only the tasks'
messages come over. A task that is lost tells nobody, so that its spool stays until a later commit finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire.cluster.client import Client
from quire.log import FileDirectory

from ..origin.cluster import ClusterLog
from .commands import CommandChecker, check_columns, machine_of
from .commit import FIRST_ROWS, Part, Target, commit
from .errors import WriteRefused
from .options import SinkOptions
from .spool import SpoolWriter
from .state import SPOOL, SinkState

if TYPE_CHECKING:
    import pyarrow as pa

_journal = logging.getLogger(__name__)


class PartMessage(WriterCommitMessage):
    """A task's word to the driver."""

    def __init__(self, part: Part) -> None:
        self.part = part


class _Spooling:
    """What both writers do in a task."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise WriteRefused
        check_columns(schema)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Spool a partition; its message."""
        return PartMessage(_spooled(self._options, self._schema, iterator))


class LogWriter(_Spooling, DataSourceArrowWriter):
    """A batch write: each is a batch of its own, numbered by option batchId or behind the last one."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Send what the tasks spooled. Raises as `sending.commit`."""
        _commit(self._options, _parts(messages), self._options.batchId, query=None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was spooled in vain; not what a commit that failed may have sent in part."""
        _abandon(self._options, _parts(messages))


class LogStreamWriter(_Spooling, DataSourceStreamArrowWriter):
    """The batches of a stream, numbered by Spark."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Send what the tasks spooled, unless the batch is written. Raises as `sending.commit`."""
        _commit(self._options, _parts(messages), batchId, query=self._options.query_id())

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was spooled in vain; not what a commit that failed may have sent in part."""
        _abandon(self._options, _parts(messages))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, PartMessage)]


def _spooled(options: SinkOptions, schema: StructType, batches: Iterator[pa.RecordBatch]) -> Part:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    checking: CommandChecker | None = None
    largest, largest_row = 0, 0
    directory = FileDirectory(options.folder)
    with closing(SpoolWriter(directory, f"{SPOOL}{uuid4().hex}", partition)) as writer:
        for batch in batches:
            if checking is None and batch.num_rows:
                machine = machine_of(options.bootstrap, options.sendTimeoutMs / 1000, options.machine)
                checking = CommandChecker(machine, check_columns(schema), partition, FIRST_ROWS)
            for row, packed in checking.commands(batch) if checking is not None else ():
                writer.add(packed)
                if len(packed) > largest:
                    largest, largest_row = len(packed), row
        spool = writer.finished()
    if checking is None:
        return Part(partition, spool)
    return Part(partition, spool, largest, largest_row, checking.refused, tuple(checking.first_refused))


def _commit(options: SinkOptions, parts: Sequence[Part], batch: int | None, *, query: str | None) -> None:
    timeout_s = options.sendTimeoutMs / 1000
    with closing(ClusterLog(options.bootstrap, timeout_s)) as cluster:
        target = Target(cluster.cluster_id(), options.session_name(), query)
        servers = cluster.servers
    connect = partial(Client, servers, session=target.session, timeout_s=timeout_s, halt_on_failure=True)
    folder = SinkState(FileDirectory(options.folder))
    done = asyncio.run(commit(folder, target, connect, parts, batch, fails=options.failOnRefused))
    _journal.info("batch %d: %d commands, %d refused", done.batch, done.commands, done.refused)


def _abandon(options: SinkOptions, parts: Sequence[Part]) -> None:
    folder = SinkState(FileDirectory(options.folder))
    folder.abandon(part.spool for part in parts if part.spool is not None)
