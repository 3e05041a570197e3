"""What the sink makes of options, columns and rows, before any of it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType

from quire.cluster.errors import LimitExceeded
from quire.cluster.http.routes.stream import decode_message
from quire.log import pack, unpack
from quire.log.json_text import to_json
from quire.pipeline.errors import ClusterUnavailable, OptionRefused
from quire.pipeline.sink.commands import INVALID, CommandChecker, check_columns, machine_of
from quire.pipeline.sink.errors import ColumnsRefused
from quire.pipeline.sink.options import HIGHEST_BATCH, SinkOptions
from quire.pipeline.sink.spool import COMMAND_CONTAINERS
from quire.pipeline.source.options import MAX_FETCH_TIMEOUT_MS
from quire.sm import MachineUnknown
from quire.sm.machines.arithmetic import ArithmeticMachine
from quire.sm.machines.log import LogMachine
from tests.pipeline.fake_cluster import RefusingMachine
from tests.pipeline.servers import serving

GIVEN = {"bootstrap": "127.0.0.1:7001", "checkpointlocation": "/checkpoint"}


def status(name: str, version: int = 1) -> dict[str, tuple[int, bytes]]:
    document = f'{{"machine": {{"name": "{name}", "version": {version}, "initial": 42}}}}'
    return {"/status": (200, document.encode())}


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"bootstrap": "127.0.0.1:7001"}, "checkpointLocation"),
        ({"checkpointlocation": "/c"}, "bootstrap"),
        ({**GIVEN, "topic": "orders"}, "topic"),
        ({**GIVEN, "path": "/data"}, "path"),
        ({**GIVEN, "batchid": "1"}, "batchId"),
        ({**GIVEN, "checkpointlocation": "hdfs://host/c"}, "checkpointLocation"),
        ({**GIVEN, "checkpointlocation": "hdfs:/c"}, "checkpointLocation"),
        ({**GIVEN, "spoollocation": "s3a://bucket/c"}, "spoolLocation"),
        ({**GIVEN, "spoollocation": "file:///c"}, "spoolLocation"),
        ({**GIVEN, "failonrefused": "perhaps"}, "failOnRefused"),
        ({**GIVEN, "failonchangedrows": "perhaps"}, "failOnChangedRows"),
        ({**GIVEN, "sendtimeoutms": "0"}, "sendTimeoutMs"),
        ({**GIVEN, "session": ""}, "session"),
        ({**GIVEN, "session": "s" * 201}, "session"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionRefused, match=f"^option {option}: "):
        SinkOptions.parse(given, streaming=True)


def test_options_are_known_in_any_case_and_sparks_own_are_passed_over() -> None:
    given = {"Bootstrap": "a:1,b:2", "SPOOLLOCATION": "/spool", "queryName": "q", "session": "s" * 200}
    options = SinkOptions.parse({**given, "batchID": "0", "FAILONREFUSED": "False"}, streaming=False)

    assert (options.bootstrap, options.folder, options.batchId) == (("a:1", "b:2"), "/spool", 0)
    assert (options.session_name(), options.failOnRefused, options.sendTimeoutMs) == ("s" * 200, False, 60_000)
    assert options.failOnChangedRows
    assert not SinkOptions.parse({**GIVEN, "failonchangedrows": "false"}, streaming=True).failOnChangedRows


def test_a_checkpoint_may_lie_anywhere_where_the_spool_has_a_folder_of_its_own() -> None:
    given = {**GIVEN, "checkpointlocation": "hdfs://host/c", "spoolLocation": "/spool"}
    options = SinkOptions.parse({**given, "session": "s"}, streaming=True)

    assert (options.folder, options.session_name(), options.query_id()) == ("/spool", "s", None)
    with pytest.raises(OptionRefused, match="option session: name it"):
        SinkOptions.parse(given, streaming=True).session_name()


@pytest.mark.parametrize("url", ["file:///checkpoint", "file:/checkpoint"])
def test_a_checkpoint_that_spark_knows_as_a_file_url_has_its_spool_in_that_folder(url: str) -> None:
    options = SinkOptions.parse({**GIVEN, "checkpointLocation": url}, streaming=True)

    assert options.folder == "/checkpoint/quire"


@pytest.mark.parametrize(("option", "highest"), [("sendTimeoutMs", MAX_FETCH_TIMEOUT_MS), ("batchId", HIGHEST_BATCH)])
def test_a_number_of_the_sink_may_be_its_limit_and_not_one_past_it(option: str, highest: int) -> None:
    given = {**GIVEN, "session": "s"}
    assert getattr(SinkOptions.parse({**given, option: str(highest)}, streaming=False), option) == highest
    with pytest.raises(OptionRefused, match=f"option {option}: must be an integer from"):
        SinkOptions.parse({**given, option: str(highest + 1)}, streaming=False)


def test_a_batch_write_must_name_its_session_and_a_stream_takes_its_querys() -> None:
    with pytest.raises(OptionRefused, match="option session: name"):
        SinkOptions.parse(GIVEN, streaming=False)


def test_a_querys_session_is_told_by_its_checkpoint(tmp_path: Path) -> None:
    options = SinkOptions.parse({**GIVEN, "checkpointLocation": str(tmp_path)}, streaming=True)
    with pytest.raises(OptionRefused, match="option session: name it"):
        options.session_name()
    assert options.query_id() is None
    (tmp_path / "metadata").write_text('{"id":"eaec9cdb"}')

    assert (options.session_name(), options.query_id()) == ("spark/eaec9cdb", "eaec9cdb")
    assert options.folder == str(tmp_path / "quire")


def schema_of(ddl: str) -> StructType:
    """Of text like "value binary, command string". (Spark's own reader of it needs a JVM.)"""
    kinds: dict[str, DataType] = {"binary": BinaryType(), "string": StringType(), "int": IntegerType()}
    pairs = [field.split() for field in ddl.split(",") if field]
    return StructType([StructField(name, kinds[kind]) for name, kind in pairs])


@pytest.mark.parametrize("ddl", ["", "value string", "command int", "other binary", "value binary, command string"])
def test_a_schema_that_does_not_hold_one_column_of_commands_is_refused(ddl: str) -> None:
    schema = schema_of(ddl)
    with pytest.raises(ColumnsRefused, match=f"these have {ddl or 'no column'}"):
        check_columns(schema)


def checked(ddl: str, values: list[Any], machine: Any = None, kept: int = 10) -> tuple[list[Any], CommandChecker]:
    checking = CommandChecker(machine or ArithmeticMachine(42), check_columns(schema_of(ddl)), 4, kept)
    batch = pa.RecordBatch.from_pydict({"value": values})
    return list(checking.commands(batch)), checking


@pytest.mark.parametrize("ddl", ["Value binary", "command binary", "command string"])
def test_rows_that_are_commands_come_out_as_msgpack_with_their_row(ddl: str) -> None:
    commands = [["add", 1], ["mul", "2.5"]]
    texts: list[Any] = ['["add",1]', '["mul", "2.5"]']
    found, checking = checked(ddl, texts if "string" in ddl else [pack(each) for each in commands])

    assert found == list(enumerate(map(pack, commands)))
    assert checking.refused == 0


def test_each_row_that_is_no_command_is_told_with_its_place_across_pieces() -> None:
    texts = ['["add", 1]'] * 2500
    bad = {
        0: "",
        999: '["add"',
        1000: '["add", 99999999999999999999]',
        1001: '{"a": 1, "a": 2}',
        2000: '["pow", 1]',
        2499: '["div", 0]',
    }
    rows = [None if row == 7 else bad.get(row, text) for row, text in enumerate(texts)]
    found, checking = checked("command string", rows)

    assert checking.refused == 7
    assert {row.partition for row in checking.first_refused} == {4}
    assert {row.row for row in checking.first_refused} == {*bad, 7}
    assert {row.row for row in checking.first_refused if row.code == INVALID} == {0, 7, 999, 1000, 1001}
    assert [row for row, _ in found] == [row for row in range(2500) if row not in bad and row != 7]


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", pack(["add", 1]) + b"\x00", b"\xd4\x01\x00", pack([float("nan")]), b"\x81\x01"]
)
def test_bytes_that_no_node_would_take_are_refused_whatever_the_machine_takes(raw: bytes) -> None:
    found, checking = checked("value binary", [raw], LogMachine(None))

    assert (found, checking.refused, checking.first_refused[0].code) == ([], 1, INVALID)


@pytest.mark.parametrize("ddl", ["value binary", "command string"])
def test_a_row_with_more_lists_than_a_message_may_carry_is_named_before_the_plan(ddl: str) -> None:
    as_row = to_json if "string" in ddl else pack
    rows = [as_row([[]] * (COMMAND_CONTAINERS - 1 + more)) for more in (0, 1, 2, 3)]
    values = [row.decode() for row in rows] if "string" in ddl else rows
    found, checking = checked(ddl, values, LogMachine(None))

    assert [row for row, _ in found] == [0]
    assert [(row.row, row.code) for row in checking.first_refused] == [(1, INVALID), (2, INVALID), (3, INVALID)]
    message = pack([1, [unpack(found[0][1])]])
    assert len(decode_message(message)[1]) == 1
    with pytest.raises(LimitExceeded):
        decode_message(pack([1, [[[]] * COMMAND_CONTAINERS]]))


def test_so_many_refused_rows_are_named_and_the_others_counted() -> None:
    assert [len(checked("command string", ["no"] * count)[1].first_refused) for count in (10, 11)] == [10, 10]
    assert checked("command string", ["no"] * 11)[1].refused == 11


def test_the_machine_is_the_clusters_and_ones_own_must_be_named_and_be_it() -> None:
    with serving(status("arithmetic")) as server:
        assert isinstance(machine_of((server,), 5.0, None), ArithmeticMachine)
        assert isinstance(machine_of((server,), 5.0, f"{RefusingMachine.__module__}:RefusingMachine"), RefusingMachine)
        with pytest.raises(OptionRefused, match="this is kv version 1, but the cluster runs arithmetic version 1"):
            machine_of((server,), 5.0, "kv")
    with serving(status("arithmetic", 9)) as server, pytest.raises(OptionRefused, match="version 9"):
        machine_of((server,), 5.0, None)
    with serving(status("orders")) as server, pytest.raises(OptionRefused, match="runs orders: give its package"):
        machine_of((server,), 5.0, None)
    with serving(status("json:JSONDecoder")) as server:  # What a node answers is not imported.
        with pytest.raises(OptionRefused, match="runs json:JSONDecoder: give its package"):
            machine_of((server,), 5.0, None)
        with pytest.raises(MachineUnknown, match="machine '': built in are"):
            machine_of((server,), 5.0, "")
    with serving({"/status": (200, b"{}")}) as server, pytest.raises(ClusterUnavailable, match="is its cluster formed"):
        machine_of((server,), 0.2, None)
