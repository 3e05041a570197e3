"""Jobs, sources and sinks on a cluster with TLS and tokens: files on each host, and what is refused."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from quire.log.packing import Skimmer
from quire.pipeline.cli import app
from quire.pipeline.errors import AccessRefused, ClusterUnavailable, OptionRefused
from quire.pipeline.jobs import scrub
from quire.pipeline.origin.access import Access
from quire.pipeline.origin.cluster import ClusterLog
from quire.pipeline.origin.nodes import AnswerRefused, Nodes, document_of
from quire.pipeline.origin.origin import Stretch
from quire.pipeline.sink.commands import machine_of
from quire.pipeline.sink.options import SinkOptions
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.reading import open_origin
from tests.cluster.access.issued import Authority
from tests.pipeline.logs import CLUSTER
from tests.pipeline.servers import answers_of, pages, serving
from tests.pipeline.test_nodes import HIGHEST, raw_frames

TOKEN = "quire_" + "a" * 43
NEXT = "quire_" + "b" * 43
SOURCE = partial(SourceOptions.parse, streaming=False)
SINK = partial(SinkOptions.parse, streaming=True)
STREAM = {"bootstrap": "n1:7001", "checkpointLocation": "checkpoint"}
PARSED = [(SOURCE, {"bootstrap": "n1:7001"}), (SINK, STREAM)]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("shop")


@pytest.fixture
def tls(tmp_path: Path, authority: Authority) -> ssl.SSLContext:
    return authority.context(tmp_path)


@pytest.fixture
def access(tmp_path: Path, authority: Authority) -> Access:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    return Access(str(token), str(authority.write(tmp_path / "ca.crt")))


def node_id(server: str, access: Access, timeout_s: float = 30.0) -> object:
    with closing(Nodes([server], timeout_s, access)) as nodes:
        return nodes.first("/status", "its id", document_of)["node_id"]


def test_a_task_reads_a_locked_cluster_with_the_files_that_the_options_name(
    tmp_path: Path, tls: ssl.SSLContext, access: Access
) -> None:
    raw = raw_frames(tmp_path / "log")
    with serving(answers_of(records=pages(raw)), tls=tls, tokens={TOKEN}) as server:
        options = SOURCE({"bootstrap": server, "tokenFile": str(access.token_file), "ca": str(access.ca)})
        with closing(open_origin(options)) as origin:
            assert origin.cluster_id() == CLUSTER.hex()
        with closing(ClusterLog([server], 30.0, known=CLUSTER.hex(), access=options.access)) as log:
            indices = [index for rows in log.rows(Stretch(3, 97, None), Skimmer()) for index in rows.index.tolist()]

    assert indices == list(range(3, 97))


def test_spark_reads_a_locked_cluster_in_tasks_that_read_the_files_themselves(
    spark: SparkSession, tmp_path: Path, tls: ssl.SSLContext, access: Access
) -> None:
    raw = raw_frames(tmp_path / "log")
    with serving(answers_of(records=pages(raw)), tls=tls, tokens={TOKEN}) as server:
        # The nodes name another address for themselves, which nobody listens on: this one answers for all.
        reader = spark.read.format("quire").option("bootstrap", server).option("minPartitions", "2")
        frame = reader.option("ca", str(access.ca)).option("tokenFile", str(access.token_file)).load()
        assert frame.count() == HIGHEST
        Path(str(access.token_file)).unlink()
        with pytest.raises(PySparkException, match=f"on {socket.gethostname()}: token file .* cannot be read"):
            frame.count()


def test_a_scrub_of_locked_nodes_reads_all_of_them(tmp_path: Path, tls: ssl.SSLContext, access: Access) -> None:
    raw = raw_frames(tmp_path / "log")
    with serving(answers_of(records=pages(raw)), tls=tls, tokens={TOKEN}) as server:
        assert scrub(servers=[server], access=access).is_whole


def test_the_sink_learns_the_machine_of_a_locked_cluster(tls: ssl.SSLContext, access: Access) -> None:
    machine = {"machine": {"name": "arithmetic", "version": 1, "initial": 0}}
    with serving({"/status": (200, json.dumps(machine).encode())}, tls=tls, tokens={TOKEN}) as server:
        assert machine_of((server,), 30.0, None, access).name == "arithmetic"


@pytest.mark.parametrize(("cluster", "words"), [("other", "not a server of the cluster shop"), (None, "not speak TLS")])
def test_nothing_is_sent_to_a_server_that_does_not_prove_its_name(
    cluster: str | None, words: str, tmp_path: Path, access: Access
) -> None:
    asked: list[dict[str, int]] = []

    def answer(query: dict[str, int]) -> tuple[int, bytes]:
        asked.append(query)
        return 200, b"{}"

    context = None if cluster is None else Authority(cluster).context(tmp_path)
    with serving({"/status": answer}, tls=context) as server, pytest.raises(ClusterUnavailable, match=words):
        node_id(server, access, 0.2)

    assert asked == []


def test_a_token_that_no_node_knows_is_refused_at_once_and_not_shown(tls: ssl.SSLContext, access: Access) -> None:
    with serving(answers_of(), tls=tls, tokens={NEXT}) as server:
        with pytest.raises(AnswerRefused, match=r"401: the token is not known$") as refused:
            node_id(server, access)
        with pytest.raises(AnswerRefused, match="give a token with option tokenFile, or --token-file"):
            node_id(server, Access(ca=access.ca))

    assert TOKEN not in str(refused.value)


def test_a_role_that_does_not_suffice_is_refused_at_once() -> None:
    told = {"/status": (403, b'{"detail": "it takes read"}')}
    with serving(told) as server, pytest.raises(AnswerRefused, match="403: it takes read"):
        node_id(server, Access())


def test_a_process_without_a_ca_learns_that_the_nodes_speak_tls() -> None:
    problem = json.dumps({"type": "urn:quire:problem:tls-required", "detail": "tls"}).encode()
    words = "speaks TLS; give the cluster's CA with option ca, or --ca"
    with serving({"/status": (400, problem)}) as server, pytest.raises(AnswerRefused, match=f"{server} {words}"):
        node_id(server, Access())


def test_a_token_and_a_ca_are_rotated_while_a_process_reads(
    tmp_path: Path, tls: ssl.SSLContext, access: Access, authority: Authority
) -> None:
    tokens, follower = {TOKEN}, Authority("shop")
    with serving(answers_of(), tls=tls, tokens=tokens) as server, closing(Nodes([server], 30.0, access)) as nodes:
        assert nodes.first("/status", "its id", document_of)["node_id"] == "n1"

        Path(str(access.token_file)).write_text(NEXT + "\n")
        tokens ^= {TOKEN, NEXT}
        assert nodes.first("/status", "its id", document_of)["node_id"] == "n1"

        Path(str(access.ca)).write_bytes(follower.pem + authority.pem)
        tls.load_cert_chain(*follower.issue(tmp_path))
        nodes.close()  # So that it connects again.
        assert nodes.first("/status", "its id", document_of)["node_id"] == "n1"


def test_a_file_that_a_host_does_not_have_is_refused_with_the_host(access: Access) -> None:
    for missing in (Access("absent", access.ca), Access(access.token_file, "absent")):
        with pytest.raises(AccessRefused, match=f"on {socket.gethostname()}: .* absent cannot be read: no such file"):
            Nodes(["n1:7001"], 1.0, missing)


@pytest.mark.parametrize(("parse", "given"), PARSED)
def test_a_token_is_not_an_option_because_options_are_shown(
    parse: partial[SourceOptions | SinkOptions], given: dict[str, str]
) -> None:
    for option in ("token", "TOKEN", "tokenFile", "tokenfile"):
        with pytest.raises(OptionRefused, match=r"Spark shows options.*revoke.*path as tokenFile") as refused:
            parse({**given, "ca": "ca.crt", option: TOKEN})
        assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(("parse", "given"), PARSED)
def test_the_options_are_paths_that_every_process_finds(
    parse: partial[SourceOptions | SinkOptions], given: dict[str, str]
) -> None:
    access = parse({**given, "tokenfile": "token", "CA": "/etc/quire/ca.crt"}).access

    assert access == Access(str(Path.cwd() / "token"), "/etc/quire/ca.crt")
    with pytest.raises(OptionRefused, match="tokenFile: needs ca, too"):
        parse({**given, "tokenFile": "token"})
    for text in ("", "s3://bucket/ca.crt"):
        with pytest.raises(OptionRefused, match="option ca: "):
            parse({**given, "ca": text})


def test_a_ca_without_nodes_to_connect_to_is_refused() -> None:
    with pytest.raises(OptionRefused, match="option ca: goes with bootstrap"):
        SOURCE({"path": "data", "ca": "ca.crt"})


@pytest.mark.parametrize("command", ["scrub", "archive archive", "report report", "replay --path x"])
def test_a_job_refuses_files_before_spark_starts(command: str, access: Access) -> None:
    for variables, words in (
        ({"QUIRE_TOKEN_FILE": "absent", "QUIRE_CA": str(access.ca)}, "absent cannot be read"),
        ({"QUIRE_TOKEN_FILE": str(access.token_file)}, "tokenFile: needs ca"),
        ({"QUIRE_TOKEN_FILE": TOKEN, "QUIRE_CA": str(access.ca)}, "is a token"),
    ):
        ended = CliRunner().invoke(app, [*command.split(), "--bootstrap", "127.0.0.1:1"], env=variables)
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert words in ended.stderr
        assert TOKEN not in ended.stderr
