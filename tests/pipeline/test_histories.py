"""The id of a log's history, from the identity file of a data_dir or from a node's status."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

from quire.pipeline.errors import NoLog
from quire.pipeline.origin.cluster import id_of
from quire.pipeline.origin.data_dir import DataDirLog
from tests.pipeline.logs import CLUSTER, append_and_flush, writing

HISTORY = "72" * 16


def identify(path: Path, **fields: object) -> None:
    line = json.dumps({"cluster_id": CLUSTER.hex(), **fields}).encode()
    (path / "identity").write_bytes(line + b"\n" + f"{crc32c(line):08x}\n".encode())


def test_a_data_dir_is_of_the_history_in_its_identity_and_of_its_cluster_if_that_names_none(tmp_path: Path) -> None:
    with writing(tmp_path) as log:
        append_and_flush(log, [1])
    with closing(DataDirLog(str(tmp_path))) as origin:
        assert origin.cluster_id() == CLUSTER.hex()
        identify(tmp_path)
        assert origin.cluster_id() == CLUSTER.hex()
        identify(tmp_path, history=HISTORY)
        assert origin.cluster_id() == HISTORY
        (tmp_path / "identity").write_bytes(b"{}\n00000000\n")
        with pytest.raises(NoLog, match="fails its crc32c"):
            origin.cluster_id()


def test_a_node_is_of_the_history_in_its_status_and_an_older_one_of_its_cluster() -> None:
    assert id_of({"cluster_id": CLUSTER.hex(), "history": HISTORY}) == HISTORY
    assert id_of({"cluster_id": CLUSTER.hex()}) == CLUSTER.hex()
