"""Machines of your own on real clusters: the README's example, and refusals and failures at each call."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from quire.cluster.client import CommandRefused, ServerFault, connect
from quire.cluster.config.serve import ServeConfig
from quire.sm import load_machine
from tests.cluster.running import RunningCluster, running_cluster

README = Path(__file__).parents[2] / "README.md"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
NOTES = "tests.cluster.machines:Notes"


def example() -> str:
    """The machine of the README."""
    [code] = re.findall(r"^```python stock\.py\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return str(code)


@pytest_asyncio.fixture
async def notes(tmp_path: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path, machine=NOTES, request_timeout_ms=2000) as running:
        yield running


async def post(cluster: RunningCluster, at: str, *commands: object) -> tuple[int, str, dict[str, object]]:
    body = orjson.dumps({"commands": commands})
    reply = await cluster.ask(at, "POST", "/commands", body, "application/json")
    return reply.status, reply.problem if reply.status != 200 else "", reply.document


async def test_the_readme_s_machine_runs_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stock.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    async with running_cluster(tmp_path, machine="stock:Stock") as running, connect(running.address("n3")) as cluster:
        assert await cluster.apply(["put", "nails", 100]) == 100
        assert await cluster.apply(["take", "nails", 3]) == 97
        with pytest.raises(CommandRefused, match="TOO_FEW") as by_apply:
            await cluster.apply(["take", "nails", 98])
        with pytest.raises(CommandRefused, match="UNKNOWN") as by_check:
            await cluster.apply(["burn", "nails", 1])
        assert await cluster.query("nails") == 97
        assert (await cluster.state()).state == {"nails": 97}

    assert (by_apply.value.index is None, by_check.value.index) == (False, None)


def test_the_readme_s_machine_takes_back_its_snapshot_and_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    stock = load_machine("shelf:Stock")
    full, empty = stock(None), stock(None)
    full.apply(["put", "nails", 5], None)  # type: ignore[arg-type]

    empty.restore(full.snapshot())

    assert empty.query(None) == full.query(None) == {"nails": 5}
    assert len(example().splitlines()) < 35


def test_the_help_of_the_flag_says_where_a_machine_is_looked_for() -> None:
    assert "current directory" in str(ServeConfig.model_fields["machine"].description)


@EVERYWHERE
async def test_what_check_refuses_is_named_by_its_positions_and_nothing_is_appended(
    notes: RunningCluster, at: str
) -> None:
    before = (await notes.ask("n1", "GET", "/index_bounds")).document

    status, problem, document = await post(notes, at, "yes", "no", "yes", "never", "none")

    assert (status, problem) == (422, "commands-refused")
    assert document["refused"] == [[1, "NO", "it begins with no"], [4, "NO", "it begins with no"]]
    assert (await notes.ask("n1", "GET", "/index_bounds")).document == before


@EVERYWHERE
async def test_a_check_that_fails_is_the_machine_s_fault_and_nothing_is_appended(
    notes: RunningCluster, at: str
) -> None:
    before = (await notes.ask("n1", "GET", "/index_bounds")).document

    status, problem, document = await post(notes, at, "fine", "check fails")
    async with connect(notes.address(at)) as cluster:
        with pytest.raises(ServerFault, match="check on command 0"):
            await cluster.append("check fails")

    assert (status, problem) == (500, "check-failed")
    assert "command 1" in str(document["detail"])
    assert (await notes.ask("n1", "GET", "/index_bounds")).document == before
    assert (await post(notes, at, "fine"))[0] == 200


@EVERYWHERE
async def test_what_apply_refuses_is_a_reply_and_stands_in_the_log(notes: RunningCluster, at: str) -> None:
    status, _, document = await post(notes, at, "twice", "twice", "more")

    record = await notes.ask("n1", "GET", f"/records/{int(str(document['index'])) + 1}")
    assert (status, document["results"]) == (200, [1, None, 2])
    assert document["refused"] == [[1, "TWICE", "it is noted already"]]
    assert record.document == "twice"


@EVERYWHERE
async def test_an_exception_in_apply_stops_applying_there_and_the_nodes_go_on_replicating(
    notes: RunningCluster, at: str
) -> None:
    index = int(str((await post(notes, at, "good"))[2]["index"]))

    status, problem, document = await post(notes, at, "apply fails")

    assert (status, problem) == (504, "outcome-unknown")
    assert f"stopped at index {index + 1}" in str(document["detail"])
    for node_id in notes.nodes:
        async with asyncio.timeout(30):  # The machine's thread reports the failure after the record is visible.
            while (ready := await notes.ask(node_id, "GET", "/readyz")).status == 200:
                pass
        state = await notes.ask(node_id, "GET", "/state?consistency=local")
        told = (await notes.ask(node_id, "GET", "/status")).document
        assert (ready.status, ready.problem) == (503, "not-ready")
        assert (
            f"stopped at index {index + 1}: apply of 'apply fails' raised KeyError: 'apply fails'"
            in ready.document["detail"]
        )
        assert (state.status, state.problem) == (503, "state-unavailable")
        assert (told["commit_index"], told["applied_index"]) == (index + 2, index + 1)
        assert (told["role"], told["leader"]) == ("leader" if node_id == "n1" else "follower", "n1")
    assert (await post(notes, at, "later"))[:2] == (503, "state-unavailable")
