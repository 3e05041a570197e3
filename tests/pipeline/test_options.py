"""What users may say: every option, its limits, and what contradicts itself."""

from __future__ import annotations

import numpy as np
import pytest

import quire.pipeline.origin.columns
from quire.pipeline.errors import BatchTooLarge, OptionRefused
from quire.pipeline.source.offsets import CursorPlace
from quire.pipeline.source.options import (
    HIGHEST_INDEX,
    MAX_FETCH_TIMEOUT_MS,
    MAX_PARTITIONS,
    MAX_TIMESTAMP_MS,
    SourceOptions,
)

LIMITS = {
    "startingOffsets": (0, HIGHEST_INDEX),
    "endingOffsets": (0, HIGHEST_INDEX),
    "startingTimestamp": (0, MAX_TIMESTAMP_MS),
    "endingTimestamp": (0, MAX_TIMESTAMP_MS),
    "minPartitions": (1, MAX_PARTITIONS),
    "maxOffsetsPerTrigger": (1, HIGHEST_INDEX),
    "maxBytesPerTrigger": (1, HIGHEST_INDEX),
    "fetchTimeoutMs": (1, MAX_FETCH_TIMEOUT_MS),
}


def parse(*given: tuple[str, object], streaming: bool = False) -> SourceOptions:
    return SourceOptions.parse({"path": "data", **{name: str(value) for name, value in given}}, streaming=streaming)


@pytest.mark.parametrize(("option", "limits"), LIMITS.items(), ids=LIMITS)
def test_a_number_may_be_its_limit_and_not_one_past_it(option: str, limits: tuple[int, int]) -> None:
    for number in limits:
        assert getattr(parse((option, number)), option) == number
    for text in (str(limits[0] - 1), str(limits[1] + 1), "", "1.5", "one", "٣", "1e3", "+1"):
        with pytest.raises(OptionRefused, match=f"option {option}: "):
            parse((option, text))


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", '{"index": '),
        ("startingOffsets", '{"index": -1}'),
        ("startingOffsets", '{"index": true}'),
        ("startingOffsets", '{"index": 1, "partition": 0}'),
        ("startingOffsets", "[1]"),
        ("startingOffsets", "[" * 100_000),
        ("startingOffsets", "soonest"),
        ("startingOffsets", "cursor:"),
        ("startingOffsets", "cursor:mail box"),
        ("startingOffsets", f"cursor:{'m' * 201}"),
        ("endingOffsets", "cursor:mail"),
        ("endingOffsets", "earliest"),
        ("endingOffsets", "{}"),
        ("failOnDataLoss", "no"),
        ("includeHeaders", "1"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("path", "file:"),
        ("maxOffsetPerTrigger", "5"),
        ("kafka.bootstrap.servers", "a:1"),
    ],
)
def test_what_an_option_cannot_be_is_refused_by_the_option_s_name(option: str, text: str) -> None:
    with pytest.raises(OptionRefused, match=f"option {option}: "):
        parse((option, text))


@pytest.mark.parametrize("option", ["path", "archive"])
@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "s3a:/bucket/x", "hdfs://host/x", "HTTP://host/x"])
def test_a_url_is_refused_where_a_folder_is_expected(option: str, url: str) -> None:
    with pytest.raises(OptionRefused, match=f"^option {option}: '{url}' is a URL; quire reads and writes folders of "):
        parse((option, url))


def test_a_file_url_is_refused_with_the_path_to_give_instead() -> None:
    for url in ("file:///data/n1", "file:/data/n1"):
        with pytest.raises(OptionRefused, match="is a URL; give the path without it: /data/n1"):
            parse(("path", url))
    for url in ("file://host/n1", "file:n1", "file:", "file://"):
        with pytest.raises(OptionRefused, match="is a URL; quire reads and writes folders"):
            parse(("path", url))


@pytest.mark.parametrize("path", ["data", "/data/n1", "./s3:/x", "a/b://c", "n1:7001", "2024-01-01T00:00/n1", "é:/x"])
def test_what_only_looks_a_little_like_a_url_is_a_path(path: str) -> None:
    assert parse(("path", path)).path == path


@pytest.mark.parametrize("servers", ["", ",", "host", "host:", ":1", "host:0", "host:65536", "http://host:1", "a b:1"])
def test_servers_are_host_and_port(servers: str) -> None:
    with pytest.raises(OptionRefused, match="option bootstrap: "):
        SourceOptions.parse({"bootstrap": servers}, streaming=False)
    given = SourceOptions.parse({"bootstrap": "n1:1, [::1]:65535 ,n1:1"}, streaming=False)
    assert given.bootstrap == ("n1:1", "[::1]:65535")


def test_what_contradicts_itself_is_refused() -> None:
    for contrary in (
        [("bootstrap", "n1:1")],
        [("startingOffsets", 1), ("startingTimestamp", 1)],
        [("endingOffsets", 1), ("endingTimestamp", 1)],
    ):
        with pytest.raises(OptionRefused):
            parse(*contrary)
    with pytest.raises(OptionRefused, match="option path: give either path"):
        SourceOptions.parse({}, streaming=True)


def test_a_read_may_begin_at_a_cursor_of_a_cluster_that_runs() -> None:
    for name in ("mail", "mail/2-4", "m" * 200):
        given = {"bootstrap": "n1:1", "startingOffsets": f"cursor:{name}"}
        assert SourceOptions.parse(given, streaming=True).startingOffsets == CursorPlace(name)
    with pytest.raises(OptionRefused, match="is asked of a running cluster: give bootstrap, not path"):
        parse(("startingOffsets", "cursor:mail"))
    both = {"bootstrap": "n1:1", "startingOffsets": "cursor:mail", "startingTimestamp": "1"}
    with pytest.raises(OptionRefused, match="startingTimestamp: cannot be combined with startingOffsets"):
        SourceOptions.parse(both, streaming=True)


def test_names_are_of_any_case_and_a_stream_begins_at_the_end() -> None:
    assert parse(("STARTINGOFFSETS", "EARLIEST"), ("failondataloss", "FALSE")).failOnDataLoss is False
    assert parse().startingOffsets == "earliest"
    assert parse(streaming=True).startingOffsets == "latest"
    assert parse(("startingOffsets", '{"cluster": "00", "index": 7}')).startingOffsets == 7


def test_values_of_one_batch_are_as_many_bytes_as_arrow_counts() -> None:
    offsets = vars(quire.pipeline.origin.columns)["_offsets"]

    assert offsets(np.array([1, 2**31 - 2]))[-1] == 2**31 - 1
    with pytest.raises(BatchTooLarge):
        offsets(np.array([2, 2**31 - 2]))
