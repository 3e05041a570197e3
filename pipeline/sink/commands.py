"""Rows to commands: what a column holds as a value of msgpack, and whether the cluster's machine takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, StringType, StructType

from quire.cluster.errors import Malformed
from quire.cluster.values import DEPTH_LIMIT, decode_json, decode_msgpack
from quire.log import PayloadInvalid, pack
from quire.sm import StateMachine
from quire.sm.machine import check_batch
from quire.sm.machines.registry import BUILT_IN, load_machine

from ..errors import OptionRefused
from ..origin.nodes import Answer, Nodes, TryNext, document_of
from .errors import ColumnsRefused, RowRefused

if TYPE_CHECKING:
    import pyarrow as pa

INVALID = "NO_COMMAND"
"""The code of a row that is no value at all."""
CHECKED_ROWS = 1000
"""Checked, and in memory as Python's objects, at a time."""

Decode = Callable[[Any], Any]


def check_columns(schema: StructType) -> Decode:
    """What makes a value of a row's only column, as the nodes read a request. It raises Malformed.

    Raises:
        ColumnsRefused: there is another column, or one of another type.
    """
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields) or "no column"
    if len(schema.fields) == 1:
        name, kind = schema.fields[0].name.lower(), schema.fields[0].dataType
        if name in ("value", "command") and isinstance(kind, BinaryType):
            return _of_msgpack
        if name == "command" and isinstance(kind, StringType):
            return _of_json
    raise ColumnsRefused(found)


def _of_msgpack(value: bytes) -> Any:
    return decode_msgpack(value, DEPTH_LIMIT)


def _of_json(text: str) -> Any:
    return decode_json(text.encode(), DEPTH_LIMIT)


def machine_of(servers: tuple[str, ...], timeout_s: float, spec: str | None) -> StateMachine:
    """The cluster's machine, to check commands with: a built-in one by its name, or what `spec` names.

    Raises:
        OptionRefused: it is not built in, or what `spec` names is not it.
        ClusterUnavailable: no node says what it is.
    """
    nodes = Nodes(servers, timeout_s)
    try:
        told = nodes.first("/status", "its machine", _machine_told)
    finally:
        nodes.close()
    name, version = told["name"], told["version"]
    if spec is None and name not in BUILT_IN:
        raise OptionRefused("machine", f"the cluster's is {name}: give its package.module:Class, importable in tasks")
    found = load_machine(spec or name)
    if (found.name, found.version) != (name, version):
        ours = f"{found.name} version {found.version}"
        raise OptionRefused("machine", f"this is {ours}, and the cluster's is {name} version {version}")
    return found(told["initial"])


def _machine_told(answer: Answer) -> dict[str, Any]:
    machine = document_of(answer).get("machine")
    if not isinstance(machine, dict) or not {"name", "version", "initial"} <= set(machine):
        raise TryNext("it does not say what its machine is; is its cluster formed?")
    return machine


class CommandChecker:
    """The commands of one partition, checked; the rows that are none are counted, and the first of them kept."""

    def __init__(self, machine: StateMachine, decode: Decode, partition: int, kept: int) -> None:
        self._machine = machine
        self._decode = decode
        self._partition = partition
        self._kept = kept
        self._row = 0
        self.refused = 0
        self.first_refused: list[RowRefused] = []

    def commands(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Row and msgpack of each command that passes."""
        for start in range(0, batch.num_rows, CHECKED_ROWS):
            yield from self._checked(batch.column(0).slice(start, CHECKED_ROWS).to_pylist())

    def _checked(self, values: list[Any]) -> list[tuple[int, bytes]]:
        rows: list[int] = []
        commands: list[Any] = []
        packed: list[bytes] = []
        for row, value in enumerate(values, self._row):
            try:
                if value is None:
                    raise Malformed("the row is null")
                command = self._decode(value)
                packed.append(pack(command))
            except (Malformed, PayloadInvalid) as error:
                self._refuse(row, INVALID, str(error).replace("the body", "it"))
                continue
            rows.append(row)
            commands.append(command)
        self._row += len(values)
        refused = check_batch(self._machine, commands) if commands else []
        for place, code, text in refused:
            self._refuse(rows[place], code, text)
        bad = {place for place, _, _ in refused}
        return [(row, each) for place, (row, each) in enumerate(zip(rows, packed, strict=True)) if place not in bad]

    def _refuse(self, row: int, code: str, text: str) -> None:
        self.refused += 1
        if len(self.first_refused) < self._kept:
            self.first_refused.append(RowRefused(self._partition, row, code, text))
