"""Rows to commands: decode a column's value as a node decodes a request, and check it with the cluster's machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import BinaryType, StringType, StructType

from quire.cluster.errors import LimitExceeded, Malformed
from quire.cluster.values import DEPTH_LIMIT, decode_json, decode_msgpack, has_more_containers
from quire.log import PayloadInvalid, pack
from quire.sm import StateMachine
from quire.sm.machine import check_batch
from quire.sm.machines.registry import BUILT_IN, recorded_machine

from ..errors import OptionRefused
from ..origin.access import PLAIN, Access
from ..origin.nodes import Answer, Nodes, TryNext, document_of
from .errors import ColumnsRefused, RowRefused
from .spool import COMMAND_CONTAINERS

if TYPE_CHECKING:
    import pyarrow as pa

INVALID = "NO_COMMAND"
"""The code of a row that cannot be decoded."""
CHECKED_ROWS = 1000
"""How many rows are held as Python objects and checked at a time."""

Decode = Callable[..., object]
"""Takes a value of the column's type."""
Keep = Callable[[RowRefused, object], None]
"""Takes a row that is not a command, and its value as it was given."""


def check_columns(schema: StructType) -> Decode:
    """The decoder for the rows' only column; it raises Malformed as a node does.

    Raises:
        ColumnsRefused: there are other columns, or the column has another type.
    """
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields) or "no column"
    if len(schema.fields) == 1:
        name, kind = schema.fields[0].name.lower(), schema.fields[0].dataType
        if name in ("value", "command") and isinstance(kind, BinaryType):
            return _of_msgpack
        if name == "command" and isinstance(kind, StringType):
            return _of_json
    raise ColumnsRefused(found)


def _of_msgpack(value: bytes) -> object:
    return decode_msgpack(value, DEPTH_LIMIT)


def _of_json(text: str) -> object:
    return decode_json(text.encode(), DEPTH_LIMIT)


def machine_of(servers: tuple[str, ...], timeout_s: float, spec: str | None, access: Access = PLAIN) -> StateMachine:
    """The cluster's machine, to check commands with: the built-in one of that name, or the one that `spec` names.

    Raises:
        OptionRefused: it is not built in, or `spec` names another machine or version.
        ClusterUnavailable: no node answered with its machine.
        AccessRefused: a file that `access` names cannot be used on this host.
    """
    nodes = Nodes(servers, timeout_s, access)
    try:
        described = nodes.first("/status", "its machine", _described_machine)
    finally:
        nodes.close()
    name, version = described.name, described.version
    if spec is None and name not in BUILT_IN:
        raise OptionRefused("machine", f"the cluster runs {name}: give its package.module:Class, importable in tasks")
    found = recorded_machine(name, spec)
    if (found.name, found.version) != (name, version):
        ours = f"{found.name} version {found.version}"
        raise OptionRefused("machine", f"this is {ours}, but the cluster runs {name} version {version}")
    return found(described.initial)


class _Described(NamedTuple):
    """The cluster's machine, as a node's status names it."""

    name: str
    version: int
    initial: object


def _described_machine(answer: Answer) -> _Described:
    match document_of(answer):
        case {"machine": {"name": str(name), "version": int(version), "initial": initial}}:
            return _Described(name, version, initial)
        case _:
            raise TryNext("its status names no machine; is its cluster formed?")


class CommandChecker:
    """Checks the commands of one partition; counts the rows that are not commands, and keeps the first of them."""

    def __init__(
        self, machine: StateMachine, decode: Decode, partition: int, kept: int, keep: Keep | None = None
    ) -> None:
        """`keep` gets each row that is not a command."""
        self._machine = machine
        self._decode = decode
        self._partition = partition
        self._kept = kept
        self._keep = keep
        self._row = 0
        self.refused = 0
        self.first_refused: list[RowRefused] = []

    def commands(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """The row number and msgpack of each command that passes the check."""
        for start in range(0, batch.num_rows, CHECKED_ROWS):
            yield from self._checked(batch.column(0).slice(start, CHECKED_ROWS).to_pylist())

    def _checked(self, values: list[object]) -> list[tuple[int, bytes]]:
        rows: list[int] = []
        commands: list[object] = []
        packed: list[bytes] = []
        first = self._row
        for row, value in enumerate(values, first):
            try:
                if value is None:
                    raise Malformed("the row is null")
                command = self._decode(value)
                if has_more_containers(encoded := pack(command), COMMAND_CONTAINERS):
                    raise Malformed(f"it has more than {COMMAND_CONTAINERS} lists, maps and ext types")
            except (LimitExceeded, Malformed, PayloadInvalid) as error:
                self._refuse(row, INVALID, str(error).replace("the body", "it"), value)
                continue
            packed.append(encoded)
            rows.append(row)
            commands.append(command)
        self._row += len(values)
        refused = check_batch(self._machine, commands) if commands else []
        for position, code, text in refused:
            self._refuse(rows[position], code, text, values[rows[position] - first])
        bad = {position for position, _, _ in refused}
        return [
            (row, each) for position, (row, each) in enumerate(zip(rows, packed, strict=True)) if position not in bad
        ]

    def _refuse(self, row: int, code: str, text: str, value: object) -> None:
        self.refused += 1
        refused = RowRefused(self._partition, row, code, text)
        if len(self.first_refused) < self._kept:
            self.first_refused.append(refused)
        if self._keep is not None:
            self._keep(refused, value)
