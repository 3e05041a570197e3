"""`quire status`: exit codes, a line for each cause of a problem, and what answers that is no node of a cluster."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from typer.testing import CliRunner

from quire.cluster.cli.commands import app
from quire.cluster.cli.console import EscapingConsole
from quire.cluster.cli.nodes.problems import problem_lines
from quire.cluster.cli.nodes.rows import NodeRow, Rows
from quire.cluster.cli.nodes.table import print_nodes
from quire.cluster.cli.output import Exit
from quire.cluster.client import Status
from tests.cluster.logs import Device, served
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.scripted import document, foreign, refusing, scripted, silent
from tests.ports import HOST, free_port, free_ports
from tests.processes.cluster import DEADLINE_S, QUIRE, Ended, environment

TABLE_WIDTH = 80
LONGEST_S = 4.0
"""For an answer that is due within 0.3 s, on a busy machine."""


async def status(*arguments: str, server: str) -> Ended:
    """`quire status`, beside this loop."""
    ended = await asyncio.to_thread(CliRunner().invoke, app, ["status", *arguments, "--server", server])
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def problems(ended: Ended) -> list[str]:
    """What stands before the table, a line for each."""
    first, *others = ended.stdout.splitlines()
    assert first.startswith("problems: ")
    return [first.removeprefix("problems: "), *(line.strip() for line in others[: _length(others)])]


def _length(lines: list[str]) -> int:
    return next(
        (place for place, line in enumerate(lines) if not line.startswith(" " * 10) or not line.strip()), len(lines)
    )


def node(node_id: str, address: str, **others: Any) -> dict[str, Any]:
    """The status of a node that is alone."""
    members = [{"node_id": node_id, "disk_id": "d", "address": address, "role": "voter"}]
    return {
        "node_id": node_id,
        "role": "leader",
        "ready": True,
        "reasons": [],
        "alarms": [],
        "members": members,
        **others,
    }


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path) as running:
        yield running


async def test_the_exit_code_is_0_if_all_are_ready_1_if_one_is_down_and_3_if_nobody_answers(
    cluster: RunningCluster,
) -> None:
    address = {node_id: cluster.address(node_id) for node_id in cluster.nodes}

    whole, whole_json = await status(server=address["n2"]), await status("--json", server=address["n2"])
    await cluster.stop("n3")
    lost, lost_json = await status(server=address["n2"]), await status("--json", server=address["n2"])
    nobody, nobody_json = await status(server=address["n3"]), await status("--json", server=address["n3"])

    assert (whole.code, whole_json.code, problems(whole)) == (Exit.DONE, Exit.DONE, ["none"])
    assert all(row["problems"] == [] for row in json.loads(whole_json.stdout).values())
    cause = "is not reached: connection refused; start it, or see its journal"
    assert (lost.code, problems(lost)) == (Exit.FAILED, [f"n3 ({address['n3']}) {cause}"])
    assert [line.split()[1:] for line in lost.stdout.splitlines() if line.split()[:1] == ["role"]] == [
        ["leader", "follower", "not", "reached"]
    ]
    assert "answer" not in lost.stdout
    rows = json.loads(lost_json.stdout)
    assert lost_json.code == Exit.FAILED
    assert {node_id: row["problems"] for node_id, row in rows.items()} == {"n1": [], "n2": [], "n3": [cause]}
    assert (rows["n3"]["address"], rows["n3"]["status"], rows["n3"]["answer"]) == (address["n3"], None, None)
    assert (nobody.code, nobody.stdout, nobody_json.code) == (Exit.UNAVAILABLE, "", Exit.UNAVAILABLE)
    assert nobody.stderr == (
        f"quire: {address['n3']} is not reached: connection refused; check --server, or start the nodes\n"
    )


@pytest.mark.parametrize("flags", [[], ["--state"], ["--json"], ["--state", "--json"]], ids=" ".join)
async def test_a_node_that_is_not_ready_and_an_alarm_are_said_with_and_without_the_state(flags: list[str]) -> None:
    full = "no space is left for the log; free space on the volume of /data"

    def answering(request: web.Request) -> web.Response:
        if request.path == "/state":
            return document({"state": 42, "applied_index": 3, "digest": "00"})(request) or web.Response()
        faults = {"ready": False, "reasons": [f"{full} (it leads)"], "alarms": [full, "set the clock right"]}
        return document(node("n1", request.host, **faults))(request) or web.Response()

    async with scripted(answering) as server:
        ended = await status(*flags, server=server.address)

    assert ended.code == Exit.FAILED
    if "--json" in flags:
        assert json.loads(ended.stdout)["n1"]["problems"] == [
            f"is not ready: {full} (it leads)",
            "set the clock right",
        ]
    else:
        assert problems(ended) == [f"n1 is not ready: {full} (it leads)", "n1: set the clock right"]


async def test_an_alarm_alone_leaves_the_exit_code_at_0() -> None:
    async with scripted(
        lambda request: document(node("n1", request.host, alarms=["a clock is wrong"]))(request)
    ) as server:
        ended = await status(server=server.address)

    assert (ended.code, problems(ended)) == (Exit.DONE, ["n1: a clock is wrong"])


def row(**status: Any) -> NodeRow:
    return NodeRow("a:1", cast("Status", {"role": "follower", "ready": True, **status}))


def test_what_several_nodes_report_is_one_line_and_what_they_say_of_a_lost_node_is_left_out() -> None:
    def waiting(other: str) -> NodeRow:
        seen = f"{other}: connected, would vote for this node, holds epoch 3"
        reasons = ["no leader is heard; n3: connection refused (a:3)", f"waits; {seen}"]
        return row(ready=False, reasons=reasons, link_failures={"n3": "connection refused (a:3)", "link from n3": "x"})

    rows: Rows = {"n1": waiting("n2"), "n2": waiting("n1"), "n3": NodeRow("a:3", None, failure="it is gone")}

    assert problem_lines(rows) == [
        "n3 (a:3) gives no status: it is gone",
        "n1, n2 are not ready: no leader is heard",
        "n1 is not ready: waits; n2: connected, would vote for this node, holds epoch 3",
        "n2 is not ready: waits; n1: connected, would vote for this node, holds epoch 3",
    ]


def test_a_link_that_fails_between_nodes_that_both_answer_is_said() -> None:
    rows = {"n1": row(link_failures={"n2": "no route to host", "stream with n2": "closed"}), "n2": row()}

    assert problem_lines(rows) == ["n1 does not reach n2: no route to host"]


@asynccontextmanager
async def speaking(greeting: bytes) -> AsyncGenerator[str, None]:
    """The address of a server of another protocol."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, HOST, 0)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2])


async def test_what_is_not_quire_is_called_so() -> None:
    def page(_request: web.Request) -> web.Response:
        return web.Response(text="<html></html>", content_type="text/html")

    said = "is not a quire node (it answered"
    for step, answered in [
        (
            lambda _request: web.Response(status=404, text="<html></html>", content_type="text/html"),
            "404 with text/html",
        ),
        (page, "200 with text/html"),
        (lambda _request: web.json_response([1]), "200 with application/json that is not a map"),
        (foreign(502), "502 with text/plain"),
    ]:
        async with scripted(step) as server:
            ended = await status(server=server.address)
            assert (ended.code, ended.stdout) == (Exit.UNAVAILABLE, "")
            assert ended.stderr.startswith(f"quire: {server.address} {said} {answered}); "), ended
            assert ended.stderr.count("\n") == 1
    async with scripted(document({"a": 1})) as server:
        assert "is not a quire node (its answer is not a status)" in (await status(server=server.address)).stderr
    async with speaking(b"SSH-2.0-OpenSSH_9.2p1\r\n") as address:
        ended = await status(server=address)
    assert ended == (
        Exit.UNAVAILABLE,
        "",
        f"quire: {address} is not a quire node (it does not speak HTTP); correct the address\n",
    )


async def test_a_server_that_is_no_member_and_gives_no_status_is_named_beside_the_table() -> None:
    async with (
        scripted(lambda request: document(node("n1", request.host))(request)) as server,
        scripted(foreign(404)) as other,
    ):
        ended = await status(server=f"{other.address},{server.address}")

    assert (ended.code, problems(ended)) == (Exit.DONE, ["none"])
    assert ended.stderr == (
        f"quire: {other.address} is not a quire node (it answered 404 with text/plain); no node shown has this "
        "address, which --server or QUIRE_SERVER names\n"
    )


async def test_a_cluster_that_is_not_formed_is_shown_by_the_nodes_that_are_named() -> None:
    reason = "the cluster is not formed yet; it forms once all members are waiting: n2: connection refused (a:2)"
    forming = {"node_id": "n1", "role": "forming", "ready": False, "reasons": [reason]}
    lost = f"{HOST}:{free_port()}"
    async with scripted(document(forming)) as server:
        ended = await status(server=f"{server.address},{lost}")

    assert (ended.code, problems(ended)) == (Exit.FAILED, [f"n1 is not ready: {reason}"])
    assert ended.stderr == (
        f"quire: {lost} is not reached: connection refused; no node shown has this address, which --server or "
        "QUIRE_SERVER names\n"
    )


async def test_servers_that_fail_alike_are_named_together_and_what_to_do_once() -> None:
    lost = [f"{HOST}:{port}" for port in free_ports(2)]
    async with scripted(refusing(401, "unauthorized")) as first, scripted(refusing(401, "unauthorized")) as second:
        ended = await status(server=",".join([first.address, *lost, second.address]))

    assert ended.code == Exit.FAILED
    assert ended.stderr == (
        f"quire: {first.address} answered 401: detail of unauthorized; so for {second.address}; {lost[0]} is not "
        f"reached: connection refused; so for {lost[1]}; give a token with --token-file or QUIRE_TOKEN_FILE; check "
        "--server, or start the nodes\n"
    )


async def test_a_standalone_log_and_a_node_are_not_one_cluster(tmp_path: Path) -> None:
    def answering(request: web.Request) -> web.Response | None:
        return document(node("n1", request.host, cluster_id="aa"))(request)

    async with served(tmp_path) as log, scripted(answering) as server:
        address = log.service.config.listen
        ended = await status(server=f"{server.address},{address}")

    assert (ended.code, ended.stdout) == (Exit.USAGE, "")
    assert f"{server.address} is of cluster aa and {address} is a standalone log" in ended.stderr


async def test_servers_of_two_clusters_are_refused() -> None:
    def of(cluster_id: str) -> Any:
        return lambda request: document(node("n1", request.host, cluster_id=cluster_id))(request)

    async with scripted(of("aa")) as first, scripted(of("bb")) as second:
        servers = f"{first.address},{second.address}"
        for flags in ([], ["--json"], ["--watch"]):
            ended = await status(*flags, server=servers)
            assert (ended.code, ended.stdout) == (Exit.USAGE, "")
            assert ended.stderr == (
                f"quire: --server or QUIRE_SERVER: {first.address} is of cluster aa and {second.address} is of cluster "
                "bb: name the servers of one\n"
            )


async def test_a_standalone_log_is_shown_with_its_records_and_whether_it_accepts_more(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device=device) as log:
        address = log.service.config.listen
        for value in range(3):
            await log.append(json.dumps(value).encode(), "application/json")
        well, as_json = await status(server=address), await status("--json", "--state", server=address)
        device.broken = True
        assert (await log.append(b"4", "application/json")).status != 200
        failed, failed_json = await status(server=address), await status("--json", server=address)

    line = f"standalone log at {address}: records [0, 3), accepting records"
    assert well == (Exit.DONE, f"problems: none\n{line}\n", "")
    assert (as_json.code, json.loads(as_json.stdout)) == (
        Exit.DONE,
        {
            address: {
                "address": address,
                "lowest_index": 0,
                "highest_index": 3,
                "accepting": True,
                "reason": None,
                "problems": [],
            }
        },
    )
    assert (failed.code, failed_json.code) == (Exit.FAILED, Exit.FAILED)
    assert failed.stdout.startswith(f"problems: {address} accepts no records: ")
    assert failed.stdout.endswith("accepting none\n")
    assert json.loads(failed_json.stdout)[address]["accepting"] is False


async def test_a_node_that_does_not_answer_has_a_column_within_its_deadline() -> None:
    async with silent() as frozen:

        def answering(request: web.Request) -> web.Response | None:
            members = [
                {"node_id": "n1", "disk_id": "d", "address": request.host, "role": "voter"},
                {"node_id": "n2", "disk_id": "d", "address": frozen, "role": "voter"},
            ]
            return document({"node_id": "n1", "role": "leader", "ready": True, "members": members})(request)

        async with scripted(answering) as server:
            began = time.monotonic()
            ended = await status("--timeout", "0.3", server=server.address)
            took_s = time.monotonic() - began

    assert ended.code == Exit.FAILED
    [line] = problems(ended)
    assert line.startswith(f"n2 ({frozen}) does not answer within 0.3 s; see its journal: ")
    assert "no answer" in ended.stdout
    assert took_s < LONGEST_S


async def test_a_member_that_is_reached_only_as_it_was_named_counts_as_reached() -> None:
    """As with ports that a container publishes: its own address is of no use here."""
    elsewhere = f"{HOST}:{free_port()}"
    async with scripted(document(node("n1", elsewhere))) as server:
        ended = await status(server=server.address)

    assert (ended.code, problems(ended), ended.stderr) == (Exit.DONE, ["none"], "")
    assert elsewhere in ended.stdout


async def test_an_address_at_which_another_node_answers_is_said() -> None:
    async with scripted(document(node("n9", "a:9", cluster_id="bb"))) as other:

        def answering(request: web.Request) -> web.Response | None:
            members = [
                {"node_id": "n1", "disk_id": "d", "address": request.host, "role": "voter"},
                {"node_id": "n2", "disk_id": "d", "address": other.address, "role": "voter"},
            ]
            leading = {"serving": True, "cluster_id": "aa", "members": members}
            return document({**node("n1", request.host), **leading})(request)

        async with scripted(answering) as server:
            ended = await status(server=server.address)

    assert ended.code == Exit.FAILED
    assert problems(ended) == [
        f"n2 ({other.address}) is not at its address: n9 of cluster bb answers; correct the address"
    ]


def test_three_nodes_with_large_numbers_and_a_held_log_fit_into_80_columns() -> None:
    lag = {"records": 12_345_678_901, "bytes": 123_456_789_012, "seconds": 123_456.78}
    full: Any = {
        "role": "follower",
        "epoch": 1_234,
        **dict.fromkeys(
            ("highest_index", "durable_index", "commit_index", "applied_index", "log_bytes"), 98_765_432_109
        ),
        "lag": lag,
        "apply_lag": {"records": 12_345_678_901, "seconds": 1.0},
        "digest": "0123456789abcdef" * 2,
        "snapshots": {"kept": [{"index": 98_765_432_109, "sha256": "ab" * 32}]},
        "expiry": {
            "held": {"segments": 3, "bytes": 123_456_789_012},
            "holds": [{"what": "snapshots", "index": 1, "why": "the older of the two newest snapshots is at index 1"}],
        },
        "reasons": ["a long sentence about what is wrong " * 5],
    }
    text = StringIO()
    rows = {f"node-{number}": NodeRow("192.168.100.100:65535", full) for number in range(3)}
    print_nodes(EscapingConsole(width=TABLE_WIDTH, file=text), rows)

    first, *table = text.getvalue().splitlines()
    assert first.startswith("problems: node-0, node-1, node-2 are not ready: a long sentence")
    assert max(map(len, table)) <= TABLE_WIDTH
    assert "…" not in text.getvalue()
    assert text.getvalue().count("98,765,432,109") == 3 * 6
    assert "the older of" not in text.getvalue()


async def test_a_node_that_refuses_the_status_says_why() -> None:
    advice = "give a token with --token-file or QUIRE_TOKEN_FILE"
    async with scripted(refusing(403, "forbidden")) as server:
        ended = await status(server=server.address)

    assert ended == (
        Exit.FAILED,
        "",
        f"quire: {server.address} answered 403: detail of forbidden; {advice}\n",
    )


@pytest.mark.full
async def test_a_watch_says_that_nobody_answers_until_somebody_does() -> None:
    port = free_port()
    command = [*QUIRE, "status", "--watch", "--interval", "0.1", "--json", "--server", f"{HOST}:{port}"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            said = (await process.stderr.readline()).decode()
            async with scripted(lambda request: document(node("n1", request.host))(request), port=port):
                rows = json.loads(await process.stdout.readline())
            while (lost := json.loads(await process.stdout.readline()))["n1"]["status"] is not None:
                pass
    finally:
        process.kill()
        await process.wait()

    assert said == f"quire: {HOST}:{port} is not reached: connection refused; check --server, or start the nodes\n"
    assert rows["n1"]["problems"] == []
    assert "is not reached" in lost["n1"]["failure"]
