"""Cursors belong to the name of the token that created them, and no name takes all of them, or of what they hold."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from quire.cluster.access.roles import Role
from quire.cluster.access.tokens import is_token_name
from quire.cluster.client import BadRequest, CursorTaken, Forbidden, connect
from quire.cluster.errors import OutcomeUnknown
from quire.cluster.node.tables import cursors as cursors_module
from quire.cluster.node.tables.cursors import ROW_BYTES, Mover
from quire.cluster.node.views.status import node_status
from quire.log import CURSOR_OWNERS, FEATURES, Kind, decode_system, encode_system, walk_frames
from quire.replication import Write
from quire.sm import CURSOR_NAME_BYTES, MAX_CURSOR_ROWS, TOKEN_BYTES, CursorRow, Cursors, cursors_record
from tests.cluster.acting import Acting
from tests.cluster.conditions import held
from tests.cluster.machines import Gate
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.cluster.test_reading_turns import CountedTurns
from tests.cluster.test_session_owners import until_asked
from tests.cluster.test_slow_machines import GATE, unapplied, until, waiting

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = "application/json"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
DEADLINE_S = 60.0
OWNED = (403, "cursor-owned")
ONE, TWO = "1" * 32, "2" * 32
GIB = 1 << 30
LEAST_FRAME_BYTES = 64 << 10

acting = Acting()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    with pytest.MonkeyPatch.context() as patch:
        acting.install(patch)
        async with running_cluster(tmp_path_factory.mktemp("cursors")) as running:
            yield running


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


async def put(cluster: RunningCluster, name: str, index: int = 0, at: str = "n1", **fields: Any) -> Reply:
    return await cluster.ask(at, "PUT", f"/cursors/{name}", orjson.dumps({"index": index, **fields}), JSON)


async def delete(cluster: RunningCluster, name: str, at: str = "n1") -> Reply:
    return await cluster.ask(at, "DELETE", f"/cursors/{name}")


async def row_of(cluster: RunningCluster, name: str, at: str = "n1") -> Any:
    reply = await cluster.ask(at, "GET", f"/cursors/{name}")
    assert reply.status == 200, reply
    return reply.document


async def created(cluster: RunningCluster, owner: str, name: str, **fields: Any) -> None:
    with acting.as_caller(owner):
        assert (await put(cluster, name, **fields)).status == 200


def table(cluster: RunningCluster, node_id: str = "n1") -> Cursors:
    return cluster.nodes[node_id].node.components.applying.applier.cursors


def rows(cluster: RunningCluster) -> list[Any]:
    """The rows of `set` in the log of n1, as arrays."""
    log = cluster.nodes["n1"].node.components.log
    raw, _ = log.read_frames(0, 1 << 24, to_index=log.durable_index)
    fields: list[Any] = [decode_system(frame.payload) for frame in walk_frames(raw) if frame.header.kind == 2]
    return [row for each in fields if each["type"] == "cursors" for row in each["set"]]


async def end_of_log(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.problem


async def test_a_cursor_shows_the_name_that_created_it(cluster: RunningCluster) -> None:
    await created(cluster, "alice", "shown%2Fa")
    await created(cluster, "bob", "shown%2Fb", take=True, token=ONE)
    assert (await put(cluster, "shown%2Fof-a-node-without-tokens")).status == 200

    listed = (await cluster.ask("n3", "GET", "/cursors?prefix=shown/")).document["cursors"]
    assert [row["owner"] for row in listed] == ["alice", "bob", None]
    assert {table(cluster, each).find("shown/a") for each in cluster.nodes} == {table(cluster).find("shown/a")}


@EVERYWHERE
async def test_another_name_s_cursor_is_neither_moved_nor_taken_nor_deleted(cluster: RunningCluster, at: str) -> None:
    name = f"~held-at-{at}"
    await created(cluster, "alice", name, take=True, token=ONE)
    before = await end_of_log(cluster)

    other = f"bob-{at}"
    with acting.as_caller(other), capture_logs() as lines:
        reply = await put(cluster, name, 1, at)
        for fields in ({"take": True, "token": TWO}, {"token": ONE}, {"hold_bytes": 7}, {"expected": 0}):
            assert refusal(await put(cluster, name, 1, at, **fields)) == OWNED
        assert refusal(await delete(cluster, name, at)) == OWNED
    assert refusal(reply) == OWNED
    assert "belongs to 'alice'" in reply.document["detail"]
    assert f"quire cursor set '{name}' --owner" in reply.document["detail"]
    assert (other, "cursor-owned") in {(line.get("who"), line.get("why")) for line in lines}, "in the audit log"
    assert await end_of_log(cluster) == before, "nothing was appended"
    with acting.as_caller("alice"):
        assert (await put(cluster, name, 1, at, token=ONE)).status == 200
        assert (await delete(cluster, name, at)).status == 200
    await created(cluster, "alice", name)
    with acting.as_caller("carol", Role.ADMIN):
        assert (await put(cluster, name, 1, at)).status == 200
        assert (await row_of(cluster, name))["owner"] == "alice", "an admin who moves it does not take it"
        assert (await delete(cluster, name, at)).status == 200


@EVERYWHERE
async def test_a_cursor_without_an_owner_is_open_to_all_who_may_write(cluster: RunningCluster, at: str) -> None:
    name = f"open-at-{at}"
    assert (await put(cluster, name)).status == 200

    with acting.as_caller("alice"):
        assert (await put(cluster, name, 1, at, take=True, token=ONE)).status == 200
        assert (await row_of(cluster, name))["owner"] is None, "taking it does not make it one's own"
        assert refusal(await put(cluster, name, 1, at, owner="alice")) == (403, "forbidden"), "nor may it be claimed"
    with acting.as_caller("bob"):
        assert (await put(cluster, name, 2, at)).status == 200
        assert (await delete(cluster, name, at)).status == 200


@EVERYWHERE
async def test_what_an_admin_creates_for_a_consumer_is_not_the_admin_s(cluster: RunningCluster, at: str) -> None:
    name = f"prepared-at-{at}"
    with acting.as_caller("carol", Role.ADMIN):
        assert (await put(cluster, name, at=at)).status == 200
        assert (await put(cluster, f"{name}-own", at=at, take=True, token=ONE)).status == 200, "she consumes herself"
    assert [(await row_of(cluster, each))["owner"] for each in (name, f"{name}-own")] == [None, "carol"]
    with acting.as_caller("alice"):
        assert (await put(cluster, name, at=at, take=True, token=ONE)).status == 200
        assert refusal(await put(cluster, f"{name}-own", at=at, take=True, token=TWO)) == OWNED


@EVERYWHERE
async def test_only_an_admin_gives_a_cursor_to_another(cluster: RunningCluster, at: str) -> None:
    name = f"given-at-{at}"
    await created(cluster, "alice", name, take=True, token=ONE)
    with acting.as_caller("alice"):
        for owner in ("bob", ""):
            assert refusal(await put(cluster, name, 0, at, owner=owner)) == (403, "forbidden")
        assert refusal(await put(cluster, f"{name}-new", 0, at, owner="bob")) == (403, "forbidden")
        assert (await put(cluster, name, 0, at, owner="alice", token=ONE)).status == 200, "that changes nothing"

    with acting.as_caller("carol", Role.ADMIN):
        for unusable in ("Not A Name", "quire_x", 7):
            assert refusal(await put(cluster, name, 0, at, owner=unusable)) == (400, "malformed")
        assert (await put(cluster, name, 0, at, owner="bob")).status == 200
        assert (await put(cluster, f"{name}-new", 0, at, owner="bob")).status == 200
    with acting.as_caller("alice"):
        assert refusal(await put(cluster, name, 1, at, token=ONE)) == OWNED
    with acting.as_caller("bob"):
        assert (await put(cluster, name, 0, at, take=True, token=TWO)).status == 200
        assert (await put(cluster, f"{name}-new", 0, at)).status == 200
    with acting.as_caller("carol", Role.ADMIN):
        assert (await put(cluster, name, 0, at, owner="")).status == 200
    with acting.as_caller("alice"):
        assert (await put(cluster, name, 0, at)).status == 200


async def test_a_fencing_token_is_shown_to_who_may_move_the_cursor_and_to_nobody_else(cluster: RunningCluster) -> None:
    await created(cluster, "alice", "secret", take=True, token=ONE)
    await put(cluster, "unowned", take=True, token=TWO)

    async def seen(name: str, caller: str, role: Role) -> tuple[Any, Any]:
        with acting.as_caller(caller, role):
            alone = await row_of(cluster, name, "n3")
            [listed] = (await cluster.ask("n3", "GET", f"/cursors?prefix={name}")).document["cursors"]
        assert (alone["token"], alone["taken"]) == (listed["token"], listed["taken"])
        return alone["taken"], alone["token"]

    assert await seen("secret", "alice", Role.WRITE) == (True, ONE)
    assert await seen("secret", "carol", Role.ADMIN) == (True, ONE)
    assert await seen("secret", "bob", Role.WRITE) == (True, None)
    assert await seen("secret", "alice", Role.READ) == (True, None)
    assert await seen("unowned", "bob", Role.WRITE) == (True, TWO)
    assert await seen("unowned", "bob", Role.READ) == (True, None)


async def test_of_two_names_that_create_a_cursor_at_once_the_second_is_refused(cluster: RunningCluster) -> None:
    """It must not move the first one's cursor: both were judged before there was one."""
    names = [f"raced-{number}" for number in range(20)]
    with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
        first = asyncio.create_task(put(cluster, "in-flight"))
        await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
        with acting.as_caller("alice"):
            alices = [asyncio.create_task(put(cluster, name)) for name in names]
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == len(names)), DEADLINE_S)
        with acting.as_caller("bob"):
            bobs = [asyncio.create_task(put(cluster, name, 1)) for name in names]
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 2 * len(names)), DEADLINE_S)
    await first

    assert [reply.status for reply in await asyncio.gather(*alices)] == [200] * len(names)
    assert {refusal(reply) for reply in await asyncio.gather(*bobs)} == {OWNED}
    assert {(await row_of(cluster, name))["index"] for name in names} == {0}


async def test_who_comes_after_a_deletion_under_way_creates_its_own_cursor_and_moves_no_other(
    cluster: RunningCluster,
) -> None:
    for name in ("freed", "kept"):
        await created(cluster, "alice", name)
    with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
        first = asyncio.create_task(put(cluster, "in-flight"))
        await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
        with acting.as_caller("alice"):
            freed = asyncio.create_task(delete(cluster, "freed"))
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 1), DEADLINE_S)
        with acting.as_caller("bob"):
            bobs = [asyncio.create_task(put(cluster, name, 1)) for name in ("freed", "kept")]
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 3), DEADLINE_S)
        with acting.as_caller("alice"):
            kept = asyncio.create_task(delete(cluster, "kept"))
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 4), DEADLINE_S)
    await first

    assert (await freed).document == {"name": "freed", "index": 0}
    assert [reply.status for reply in await asyncio.gather(*bobs)] == [200, 403]
    assert (await kept).document == {"name": "kept", "index": 0}
    assert (await row_of(cluster, "freed"))["owner"] == "bob"


def _waiting_rows(cluster: RunningCluster) -> int:
    waiting = cluster.nodes["n1"].node.components.cursors._waiting  # pyright: ignore[reportPrivateUsage]
    return sum(map(len, waiting.values()))


async def test_refused_changes_of_another_name_do_not_delay_the_owner_s_commit(cluster: RunningCluster) -> None:
    await created(cluster, "alice", "delayed")
    with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
        first = asyncio.create_task(put(cluster, "in-flight"))
        await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
        with acting.as_caller("bob"):
            refused = [asyncio.create_task(put(cluster, "delayed", 1)) for _ in range(20)]
            own = [asyncio.create_task(put(cluster, "of-bob", 1)) for _ in range(20)]
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 40), DEADLINE_S)
        with acting.as_caller("alice"):
            commit = asyncio.create_task(put(cluster, "delayed", 1))
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 41), DEADLINE_S)
    await first

    assert (await commit).status == 200
    assert {refusal(reply) for reply in await asyncio.gather(*refused)} == {OWNED}
    assert {reply.status for reply in await asyncio.gather(*own)} == {200}
    names = [row[0] for row in rows(cluster)]
    assert sorted(names[names.index("of-bob") - 1 :][:3]) == ["delayed", "of-bob", "of-bob"], "it is in the next record"


async def test_so_many_changes_are_judged_in_a_turn_and_those_refused_take_no_record(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(cluster, "alice", "judged")
    monkeypatch.setattr(cursors_module, "MAX_CURSOR_ROWS", 4)
    judged_in = Counter[int]()
    admit = cursors_module._Admission.admit  # pyright: ignore[reportPrivateUsage]
    before = await end_of_log(cluster)
    async with CountedTurns() as turns:

        def counted(*arguments: Any) -> Any:
            judged_in[turns.number] += 1
            return admit(*arguments)

        monkeypatch.setattr(cursors_module._Admission, "admit", counted)  # pyright: ignore[reportPrivateUsage]
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
            first = asyncio.create_task(put(cluster, "in-flight"))
            await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
            with acting.as_caller("bob"):
                refused = [asyncio.create_task(put(cluster, "judged", 1)) for _ in range(30)]
                await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 30), DEADLINE_S)
            with acting.as_caller("alice"):
                commit = asyncio.create_task(put(cluster, "judged", 1))
                await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 31), DEADLINE_S)
        await first
        assert (await commit).status == 200
        assert {refusal(reply) for reply in await asyncio.gather(*refused)} == {OWNED}
    assert max(judged_in.values()) <= 2 * 4  # What is counted as one turn here may be parts of two.
    assert await end_of_log(cluster) == before + 2


async def test_one_name_has_its_share_of_the_waiting_changes_and_no_more(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors_module, "MAX_OWN_WAITING_ROWS", 3)
    with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
        first = asyncio.create_task(put(cluster, "in-flight"))
        await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
        with acting.as_caller("bob"):
            bobs = [asyncio.create_task(put(cluster, f"waits-{number}")) for number in range(5)]
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) + sum(map(_is_done, bobs)) == 5), DEADLINE_S)
        refused = [each.result() for each in bobs if each.done()]
        assert [refusal(reply) for reply in refused] == [(429, "overloaded")] * 2
        assert "4 changes of cursors are waiting, 3 of this caller's name" in refused[0].document["detail"]
        with acting.as_caller("alice"):
            commit = asyncio.create_task(put(cluster, "waits-for-alice"))
            await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 4), DEADLINE_S)
    assert (await first).status == (await commit).status == 200
    assert sorted(reply.status for reply in await asyncio.gather(*bobs)) == [200] * 3 + [429] * 2


def _is_done(task: asyncio.Task[Reply]) -> bool:
    return task.done()


async def test_a_change_whose_caller_gave_up_is_not_counted_and_not_written(cluster: RunningCluster) -> None:
    cursors, bob = cluster.nodes["n1"].node.components.cursors, Mover("bob", is_admin=False)
    with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
        first = asyncio.create_task(put(cluster, "in-flight"))
        await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
        before = cursors._count  # pyright: ignore[reportPrivateUsage]
        for number in range(5):
            with pytest.raises(OutcomeUnknown):
                await cursors.set(CursorRow("gone", number), bob, 1)
        cancelled = asyncio.create_task(cursors.set(CursorRow("gone", 0), bob, int(DEADLINE_S * 1000)))
        await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == 1), DEADLINE_S)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert _waiting_rows(cluster) == 0
        assert cursors._count == before  # pyright: ignore[reportPrivateUsage]
    await first
    assert (await put(cluster, "after")).status == 200
    assert table(cluster).find("gone") is None


async def test_a_fault_of_this_program_fails_those_of_its_record_and_no_later_ones(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = cursors_module._Admission.admit  # pyright: ignore[reportPrivateUsage]

    def faulty(admission: Any, change: Any, mover: Any) -> Any:
        if change.name == "faulty":
            raise RuntimeError("planted")
        return admit(admission, change, mover)

    monkeypatch.setattr(cursors_module._Admission, "admit", faulty)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(cursors_module, "MAX_CURSOR_ROWS", 2)
    names = ["healthy", "faulty", "later"]
    with capture_logs() as lines:
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
            first = asyncio.create_task(put(cluster, "in-flight"))
            await asyncio.wait_for(until(lambda: waiting(cluster) == 1), DEADLINE_S)
            tasks: list[asyncio.Task[Reply]] = []
            for name in names:
                tasks.append(asyncio.create_task(put(cluster, name)))
                await asyncio.wait_for(until(lambda: _waiting_rows(cluster) == len(tasks)), DEADLINE_S)
        await first
        replies = await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
    assert [(reply.status, reply.problem) for reply in replies[:2]] == [(504, "outcome-unknown")] * 2
    assert [reply.status for reply in replies[2:]] == [200]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["a fault of this program"]


async def test_changes_of_the_longest_names_and_owners_fit_into_the_smallest_frames(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, max_request_bytes=1 << 15, max_frame_bytes=LEAST_FRAME_BYTES) as cluster:
        cursors, owner, deadline_ms = cluster.nodes["n1"].node.components.cursors, "o" * 64, int(DEADLINE_S * 1000)
        longest = [CursorRow(f"{number:0200}", 0, None, False, 0, b"t" * 16, True, owner) for number in range(400)]
        carol = Mover("carol", is_admin=True)
        changes = [cursors.set(row, carol, deadline_ms) for row in (CursorRow("in-flight", 0), *longest)]
        assert set(await asyncio.gather(*changes)) == {0}
        assert table(cluster).owned_by(owner) == len(longest)


async def test_a_row_of_a_cursor_takes_fewer_bytes_than_are_reckoned_for_it() -> None:
    highest, owner = (1 << 64) - 1, "o" * 64
    row = CursorRow("n" * CURSOR_NAME_BYTES, highest, highest, True, highest, b"t" * TOKEN_BYTES, True, owner)
    assert is_token_name(owner)
    assert not is_token_name(f"{owner}o")
    for count in (1, 100, MAX_CURSOR_ROWS):
        record = encode_system(cursors_record([row] * count))
        assert Write(record, 1, kind=Kind.SYSTEM, owner=None).size <= (count + 1) * ROW_BYTES


async def test_a_new_leader_knows_the_owners_of_what_was_committed_before_it_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: type[Gate]
) -> None:
    acting.install(monkeypatch)
    monkeypatch.setattr("quire.cluster.node.writing.APPLY_BEHIND_S", DEADLINE_S)
    settings: dict[str, Any] = {"machine": GATE, "request_timeout_ms": int(DEADLINE_S * 1000)}
    async with running_cluster(tmp_path, **settings) as cluster, asyncio.timeout(DEADLINE_S):
        with held(cluster, waiting_us=int(DEADLINE_S * 1_000_000)):
            hanging = asyncio.create_task(cluster.commands("n1", "wait"))
            await until(lambda: waiting(cluster) == 1)
            with acting.as_caller("alice"):
                creating = asyncio.create_task(put(cluster, "mail"))
                await until(lambda: waiting(cluster) == 2)
        await until(lambda: all(count == 2 for count in unapplied(cluster)))
        await cluster.nodes["n1"].node.leadership.transfer("n2")
        await cluster.ready()
        with acting.as_caller("bob"):
            asked = asyncio.create_task(put(cluster, "mail", 1, at="n2"))
            applying = cluster.nodes["n2"].node.components.applying
            await until(lambda: applying._waiting or applying._reads)  # pyright: ignore[reportPrivateUsage]
        gate.opened.set()
        assert refusal(await asked) == OWNED
        cursor = table(cluster, "n2").find("mail")
        assert cursor is not None
        assert (cursor.index, cursor.owner) == (0, "alice")
        await asyncio.gather(hanging, creating, return_exceptions=True)


async def test_one_name_takes_its_share_of_the_cursors_and_no_more(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors_module, "MAX_OWNED_CURSORS", 5)
    before = await end_of_log(cluster)
    with acting.as_caller("mallory"):
        replies = await asyncio.gather(*(put(cluster, f"share-{number}") for number in range(30)))
        refused = [reply for reply in replies if reply.status != 200]
        assert len(refused) == 25
        assert {refusal(reply) for reply in refused} == {(409, "cursors-full")}
        assert "'mallory' has 5 cursors, as many as one token's name may have" in refused[0].document["detail"]
        assert table(cluster).owned_by("mallory") == 5
        assert await end_of_log(cluster) <= before + 5, "what is refused is not in the log"
        own = next(f"share-{number}" for number, reply in enumerate(replies) if reply.status == 200)
        assert (await put(cluster, own, 1)).status == 200
        async with connect([cluster.address(node_id) for node_id in cluster.nodes]) as client:
            with pytest.raises(BadRequest, match="'mallory' has 5 cursors"):
                await client.cursors.set("share-31", 0)
        unknown = await put(cluster, "share-unknown", 1, token=ONE)
        assert unknown.problem == "cursor-unknown", "that would create none"
    with acting.as_caller("nina"):
        assert (await put(cluster, "share-other")).status == 200
    with acting.as_caller("carol", Role.ADMIN):
        for number in range(7):
            assert (await put(cluster, f"share-admin-{number}")).status == 200
    with acting.as_caller("mallory"):
        assert (await delete(cluster, own)).status == 200
        assert (await put(cluster, "share-again")).status == 200


async def test_all_holds_together_have_a_limit_that_only_the_operator_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting.install(monkeypatch)
    async with running_cluster(tmp_path, cursors_hold_bytes=1000) as cluster:
        with acting.as_caller("carol", Role.ADMIN):
            reply = await put(cluster, "all", at="n2", hold_bytes=1 << 63)
        assert refusal(reply) == (409, "holds-full")
        assert "hold 0 of at most 1,000, which is the setting cursors_hold_bytes" in reply.document["detail"]
        assert (reply.document["held_bytes"], reply.document["limit_bytes"]) == (0, 1000)
        with acting.as_caller("mallory"):
            replies = await asyncio.gather(*(put(cluster, f"c{number}", hold_bytes=300) for number in range(20)))
        assert sorted(reply.status for reply in replies) == [200] * 3 + [409] * 17
        assert node_status(cluster.nodes["n2"].node)["cursors"]["cursors_hold_bytes"] == 1000
        assert table(cluster).hold_bytes == node_status(cluster.nodes["n1"].node)["cursors"]["hold_bytes"] == 900
        held_one = next(f"c{number}" for number, reply in enumerate(replies) if reply.status == 200)
        assert (await put(cluster, held_one, 1, hold_bytes=400)).status == 200
        assert refusal(await put(cluster, held_one, 1, hold_bytes=401)) == (409, "holds-full")
        assert (await put(cluster, held_one, 2)).status == 200
        assert (await put(cluster, held_one, 2, hold_bytes=10)).status == 200
        assert (await put(cluster, "other", hold_bytes=390)).status == 200
        assert (await put(cluster, "without")).status == 200


async def test_a_hold_from_before_the_limit_stays_and_is_an_alarm_until_it_is_lowered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, cursors_hold_bytes=GIB) as cluster:
        await put(cluster, "mail", hold_bytes=GIB)
        cursors = cluster.nodes["n1"].node.components.cursors
        cursors.hold_limit = 1 << 70  # As a leader of the version before.
        for number in range(3):
            assert (await put(cluster, f"all{number}", hold_bytes=1 << 63)).status == 200
        cursors.hold_limit = GIB
        status = (await cluster.ask("n1", "GET", "/status")).document
        assert status["cursors"]["hold_bytes"] == (1 << 64) - 1, "no more fits into an answer"
        for number in range(3):
            await delete(cluster, f"all{number}")
        addresses = [cluster.address("n1")]
    async with running_cluster(tmp_path, 1, addresses=addresses, cursors_hold_bytes=1000) as cluster:
        node = cluster.nodes["n1"].node
        said = "cursors may hold 1,073,741,824 bytes of the log together, above cursors_hold_bytes, 1,000"
        assert said in "\n".join(node_status(node)["alarms"])
        assert (await put(cluster, "mail", 1)).status == 200
        assert refusal(await put(cluster, "mail", 1, hold_bytes=GIB + 1)) == (409, "holds-full")
        assert refusal(await put(cluster, "other", hold_bytes=1)) == (409, "holds-full")
        assert (await put(cluster, "mail", 1, hold_bytes=GIB - 1)).status == 200
        assert (await put(cluster, "mail", 1, hold_bytes=1000)).status == 200
        assert not node_status(node)["alarms"]


async def test_cursors_have_owners_once_every_member_offers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of the version before, whose nodes are upgraded one after the other."""
    acting.install(monkeypatch)
    async with asyncio.timeout(DEADLINE_S):
        with monkeypatch.context() as before:
            before.setattr("quire.cluster.node.components.FEATURES", FEATURES - {CURSOR_OWNERS})
            async with running_cluster(tmp_path, cursors_hold_bytes=1000) as cluster:
                await created(cluster, "alice", "mail")
                with acting.as_caller("bob"):
                    assert (await put(cluster, "mail", 1, at="n3")).status == 200
                    assert refusal(await put(cluster, "mail", 1, hold_bytes=1001)) == (409, "holds-full")
                with acting.as_caller("carol", Role.ADMIN):
                    assert refusal(await put(cluster, "mail", 1, owner="bob")) == (503, "feature-not-in-use")
                assert {len(row) for row in rows(cluster)} == {7}, "as the version before reads them"
                addresses = [cluster.address(node_id) for node_id in cluster.nodes]
        async with running_cluster(tmp_path, addresses=addresses) as cluster:
            components = cluster.nodes["n1"].node.components
            await until_asked(cluster, lambda: CURSOR_OWNERS in components.applying.features)
            await created(cluster, "alice", "new")
            assert [(await row_of(cluster, name))["owner"] for name in ("mail", "new")] == [None, "alice"]
            with acting.as_caller("bob"):
                assert (await put(cluster, "mail", 2)).status == 200, "a cursor of before has no owner"
                assert refusal(await put(cluster, "new", 1, at="n3")) == OWNED


async def test_a_consumer_whose_cursor_is_given_away_has_lost_it(cluster: RunningCluster) -> None:
    servers = [cluster.address(node_id) for node_id in cluster.nodes]
    await cluster.commands("n1", ["add", 1])
    with acting.as_caller("alice"):
        async with connect(servers) as client, aclosing(client.consume("moves")) as batches:
            batch = await anext(batches)
            with acting.as_caller("carol", Role.ADMIN):
                assert (
                    await put(cluster, "moves", (await row_of(cluster, "moves"))["index"], owner="bob")
                ).status == 200
            with pytest.raises(CursorTaken, match="belongs to 'bob'"):
                await batch.commit()
            for refused in (
                anext(client.consume("moves")),
                client.cursors.set("moves", 0),
                client.cursors.delete("moves"),
            ):
                with pytest.raises(Forbidden, match="belongs to 'bob'"):
                    await refused
            with pytest.raises(Forbidden):
                await client.cursors.set("mine", 0, owner="bob")


async def test_new_shares_belong_to_the_owner_of_the_former_ones_and_to_no_admin(cluster: RunningCluster) -> None:
    end = await end_of_log(cluster)
    for shard in range(2):
        await created(cluster, "alice", f"shares%2F{shard}-2", index=end)
    with acting.as_caller("carol", Role.ADMIN):
        async with connect([cluster.address("n1")]) as client:
            await client.cursors.reshard("shares", 2, 3)
            assert [row["owner"] async for row in client.cursors.all("shares/")] == ["alice"] * 3
            await client.cursors.set("unowned", end)
            await client.cursors.reshard("unowned", 1, 2)
            assert [row["owner"] async for row in client.cursors.all("unowned/")] == [None] * 2
