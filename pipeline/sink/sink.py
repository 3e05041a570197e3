"""`df.write.format("quire")` and `df.writeStream.format("quire")`: what Spark calls.

Tasks check and spool; the driver commits. They share only the tasks' messages: a task does not know its batch, and the
writer that commits is another object, in another process, than the one that wrote. A lost task sends no message; its
spool stays until a later commit removes it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire.cluster.client import Client
from quire.log import FileDirectory

from ..origin.cluster import ClusterLog
from .bad_rows import BAD, BadRowsFolder, BadRowsWriter
from .commands import CommandChecker, check_columns, machine_of
from .commit import FIRST_ROWS, Target, TaskResult, abandon, commit
from .errors import RowRefused, WriteRefused
from .options import FAIL, SinkOptions
from .spool import SpoolWriter
from .state import SPOOL, SinkState

if TYPE_CHECKING:
    import pyarrow as pa

_journal = logging.getLogger(__name__)


class TaskMessage(WriterCommitMessage):
    """A task's message to the driver."""

    def __init__(self, result: TaskResult) -> None:
        self.result = result


class _Spooling:
    """What both writers do in a task. Raises WriteRefused for an overwrite, ColumnsRefused for the wrong columns."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise WriteRefused
        check_columns(schema)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check and spool a partition; return its message."""
        return TaskMessage(_spooled(self._options, self._schema, iterator))


class LogWriter(_Spooling, DataSourceArrowWriter):
    """A batch write: one batch, numbered by option batchId or one more than the last."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Send what the tasks spooled. Raises as `commit.commit`."""
        _commit(self._options, _results(messages), self._options.batchId, query=None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the tasks' spools, except those that a failed commit may have sent in result."""
        _abandon(self._options, _results(messages))


class LogStreamWriter(_Spooling, DataSourceStreamArrowWriter):
    """The batches of a stream, numbered by Spark."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Send what the tasks spooled, unless that is already written. Raises as `commit.commit`."""
        _commit(self._options, _results(messages), batchId, query=self._options.query_id())

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the tasks' spools, except those that a failed commit may have sent in result."""
        _abandon(self._options, _results(messages))


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, TaskMessage)]


def _spooled(options: SinkOptions, schema: StructType, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    checking: CommandChecker | None = None
    largest, largest_row = 0, 0
    directory = FileDirectory(options.folder)
    bad: BadRowsWriter | None = None
    if options.badRowsLocation is not None:
        bad = BadRowsWriter(FileDirectory(options.badRowsLocation), f"{BAD}{uuid4().hex}", partition)
    with closing(SpoolWriter(directory, f"{SPOOL}{uuid4().hex}", partition)) as writer:
        for batch in batches:
            if checking is None and batch.num_rows:
                timeout_s = options.sendTimeoutMs / 1000
                machine = machine_of(options.bootstrap, timeout_s, options.machine, options.access)
                keep = None if bad is None else bad.add
                checking = CommandChecker(machine, check_columns(schema), partition, FIRST_ROWS, keep)
            for row, packed in checking.commands(batch) if checking is not None else ():
                writer.add(packed)
                if len(packed) > largest:
                    largest, largest_row = len(packed), row
        spool = writer.finished()
    if checking is None:
        return TaskResult(partition, spool)
    bad_file = None if bad is None else bad.finished()
    first_refused = tuple(checking.first_refused)
    return TaskResult(partition, spool, largest, largest_row, checking.refused, first_refused, bad_file)


def _commit(options: SinkOptions, results: Sequence[TaskResult], batch: int | None, *, query: str | None) -> None:
    timeout_s = options.sendTimeoutMs / 1000
    with closing(ClusterLog(options.bootstrap, timeout_s, access=options.access)) as cluster:
        table, leaves_out = _bad_rows(options), options.badRows != FAIL
        target = Target(cluster.cluster_id(), options.session_name(), query, leaves_out, table)
        servers = cluster.servers
    connect = partial(
        Client,
        servers,
        session=target.session,
        timeout_s=timeout_s,
        halt_on_failure=True,
        token=None if options.tokenFile is None else Path(options.tokenFile),
        ca=options.ca,
        refused_grace_s=math.inf,  # Each batch has a client of its own, and waits for a cluster that restarts.
    )
    state = SinkState(FileDirectory(options.folder))
    fails, fails_on_change = options.failOnRefused, options.failOnChangedRows
    done = asyncio.run(commit(state, target, connect, results, batch, fails=fails, fails_on_change=fails_on_change))
    _journal.info("batch %d: %d commands, %d refused", done.batch, done.commands, done.refused)
    if done.bad_rows:
        named = "; ".join(str(RowRefused(*row)) for row in done.first_bad)
        _journal.warning("batch %d: %d rows are not commands, and are left out: %s", done.batch, done.bad_rows, named)


def _bad_rows(options: SinkOptions) -> BadRowsFolder | None:
    """The table of rows that are not commands, if there is one."""
    return None if options.badRowsLocation is None else BadRowsFolder(FileDirectory(options.badRowsLocation))


def _abandon(options: SinkOptions, results: Sequence[TaskResult]) -> None:
    abandon(SinkState(FileDirectory(options.folder)), _bad_rows(options), results)
