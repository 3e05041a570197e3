"""Consumers against real nodes: what they deliver, what a commit means, shares, and records that expired."""

import asyncio
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import BadRequest, Client, ClientError, CursorTaken, RecordsLost, ReshardRefused
from quire.cluster.cli.calls.consuming import Consumption
from quire.cluster.client.records import consumer as consumer_module
from quire.cluster.node.views.status import node_status
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.test_retention import SETTINGS, snapshot, written

DEADLINE_S = 60.0


def connected(cluster: RunningCluster, *nodes: str) -> Client:
    return quire.connect([cluster.address(node) for node in nodes or cluster.nodes], timeout_s=DEADLINE_S)


async def indices(client: Client, name: str, *, commit: bool = True, **fields: Any) -> list[int]:
    """All that is delivered up to the end of the log."""
    found: list[int] = []
    until = (await client.bounds()).highest_index
    async with asyncio.timeout(DEADLINE_S), aclosing(client.consume(name, until=until, **fields)) as batches:
        async for batch in batches:
            found += [record.index for record in batch.records]
            if commit:
                await batch.commit()
    return found


@pytest.mark.asyncio
async def test_a_record_is_delivered_until_its_batch_or_a_later_one_is_committed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, connected(cluster) as client:
        first = [await client.append(["add", number]) for number in range(5)]
        assert await indices(client, "mail", commit=False) == first
        assert await indices(client, "mail") == first
        assert await indices(client, "mail") == []
        later = [await client.append_batch([["add", 1]] * 3)]
        found = await indices(client, "mail")
        assert found == [later[0], later[0] + 1, later[0] + 2], "and none of the commits in between"


@pytest.mark.asyncio
async def test_a_part_of_a_batch_can_be_committed_and_no_more_than_it_holds(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        first = await client.append_batch([["add", 1]] * 10)
        async with aclosing(client.consume("mail")) as batches:
            batch = await anext(batches)
            await batch.commit(first + 4)
            await batch.commit(first + 2)
            with pytest.raises(ValueError, match="beyond the batch"):
                await batch.commit(batch.next_index + 1)
        assert (await client.cursors.get("mail"))["index"] == first + 4
        assert await indices(client, "mail") == list(range(first + 4, first + 10))


@pytest.mark.asyncio
async def test_who_consumes_later_fences_who_consumed_before_and_so_does_an_operator(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 10)
        async with aclosing(client.consume("mail")) as former, aclosing(client.consume("mail")) as later:
            old = await anext(former)
            new = await anext(later)
            assert new.records == old.records
            with pytest.raises(CursorTaken, match="another consumer took the cursor 'mail'"):
                await old.commit()
            await new.commit()
            await client.append(["add", 1])
            following = await anext(later)
            await client.cursors.set("mail", 2, rewind=True)
            with pytest.raises(
                CursorTaken,
                match=r"it is at 2\. Consume again",
            ):
                await following.commit()
        async with aclosing(client.consume("mail")) as batches:
            batch = await anext(batches)
            await client.cursors.delete("mail")
            with pytest.raises(CursorTaken, match="there is no cursor 'mail'"):
                await batch.commit()


@pytest.mark.asyncio
async def test_shares_have_every_record_once_and_each_has_its_own_cursor(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, connected(cluster) as client:
        for _ in range(10):
            await client.append_batch([["add", 1]] * 7)
        whole = await indices(client, "all")
        shares = await asyncio.gather(*(indices(client, "mail", shard=(shard, 4)) for shard in range(4)))
        assert sorted(chain(*shares)) == whole
        assert all(index % 4 == shard for shard, share in enumerate(shares) for index in share)
        assert all(share == sorted(share) for share in shares)
        assert [row["name"] async for row in client.cursors.all("mail")] == [f"mail/{shard}-4" for shard in range(4)]
        for shard in ((0, 0), (9, 4), (-1, 4), (0, 65_537)):
            with pytest.raises(ValueError, match="a share is"):
                await indices(client, "mail", shard=shard)


@pytest.mark.asyncio
async def test_the_number_of_shares_changes_once_all_are_level_and_no_record_is_left_out(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 40)
        whole = await indices(client, "all")
        before = [await indices(client, "mail", shard=(shard, 4)) for shard in range(3)]
        with pytest.raises(ReshardRefused, match="the cursor mail/3-4 is missing"):
            await client.cursors.reshard("mail", 4, 6)
        await client.cursors.set("mail/3-4", 0)
        with pytest.raises(ReshardRefused, match=r"`quire consume mail --shard 3/4 --until \d+`"):
            await client.cursors.reshard("mail", 4, 6)
        async with asyncio.timeout(DEADLINE_S):
            level = max([row["index"] async for row in client.cursors.all("mail")])
            async for batch in client.consume("mail", shard=(3, 4), until=level):
                before.append([record.index for record in batch.records])
                await batch.commit()
        await client.append_batch([["add", 2]] * 40)
        assert await client.cursors.reshard("mail", 4, 6) == level
        assert [row["name"] async for row in client.cursors.all("mail")] == [f"mail/{shard}-6" for shard in range(6)]
        after = [await indices(client, "mail", shard=(shard, 6)) for shard in range(6)]
        assert sorted(chain(*before)) == whole
        assert sorted(chain(*before, *after)) == await indices(client, "everything")
        with pytest.raises(ReshardRefused, match="no cursors of 4 shares"):
            await client.cursors.reshard("mail", 4, 6)


@pytest.mark.asyncio
async def test_an_interrupted_change_of_shares_is_continued(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 40)
        for shard in range(2):
            await indices(client, "mail", shard=(shard, 2))
        level = max([row["index"] async for row in client.cursors.all("mail")])
        for shard in range(3):
            await client.cursors.set(f"mail/{shard}-3", level)
        for shard in range(2):
            await client.cursors.set(f"mail/{shard}-2", level)
        await client.cursors.delete("mail/0-2")
        assert await client.cursors.reshard("mail", 2, 3) == level
        assert [row["name"] async for row in client.cursors.all()] == [f"mail/{shard}-3" for shard in range(3)]


@pytest.mark.asyncio
@pytest.mark.parametrize("others", [0, 200], ids=["room for one more", "no room"])
async def test_a_change_of_shares_passes_their_hold_on_in_steps_each_of_which_may_be_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    async with running_cluster(tmp_path, 1, cursors_hold_bytes=1000) as cluster, connected(cluster) as client:
        level = await client.append_batch([["add", 1]] * 40)
        table = cluster.nodes["n1"].node.components.applying.applier.cursors
        await client.cursors.set("other", level, hold_bytes=others)
        connection = client.cursors._connection  # pyright: ignore[reportPrivateUsage]
        call, steps_left = connection.call, 0

        async def step(*arguments: Any, writes: bool = False, **more: Any) -> Any:
            nonlocal steps_left
            if writes and steps_left == 0:
                raise InterruptedError
            steps_left -= writes
            reply = await call(*arguments, writes=writes, **more)
            holds = [(cursor.index, cursor.hold_bytes) for name, cursor in table.holding() if name != "other"]
            assert (level, 200) in holds, "the log is held throughout"
            return reply

        steps = 0
        for steps in range(100):
            for shard in range(4):
                await client.cursors.set(f"mail/{shard}-4", level, hold_bytes=200)
            steps_left, is_interrupted = steps, False
            with monkeypatch.context() as patch:
                patch.setattr(connection, "call", step)
                try:
                    await client.cursors.reshard("mail", 4, 2)
                except InterruptedError:
                    is_interrupted, steps_left = True, 100
                    assert await client.cursors.reshard("mail", 4, 2) == level
            found = [(row["name"], row["index"], row["hold_bytes"]) async for row in client.cursors.all("mail")]
            assert found == [("mail/0-2", level, 200), ("mail/1-2", level, 200)]
            for name, _, _ in found:
                await client.cursors.delete(name)
            if not is_interrupted:
                break
        assert steps > 4 + 2 + 4


@pytest.mark.asyncio
async def test_a_change_of_shares_without_room_for_the_holds_says_so_and_keeps_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, cursors_hold_bytes=500) as cluster, connected(cluster) as client:
        level = await client.append_batch([["add", 1]] * 40)
        await client.cursors.set("mail", level, hold_bytes=500)
        with pytest.raises(BadRequest, match="cursors_hold_bytes"):
            await client.cursors.reshard("mail", 1, 2)
        assert (await client.cursors.get("mail"))["hold_bytes"] == 500
        cluster.nodes["n1"].node.components.cursors.hold_limit = 1000
        assert await client.cursors.reshard("mail", 1, 2) == level
        assert [row["hold_bytes"] async for row in client.cursors.all("mail")] == [500, 500]


@pytest.mark.asyncio
async def test_consumers_that_wait_add_nothing_to_the_log_whatever_others_commit(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 10)
        taken = [asyncio.Event() for _ in range(4)]

        async def worker(shard: int) -> None:
            async for batch in client.consume("mail", shard=(shard, 4)):
                await batch.commit()
                taken[shard].set()

        workers = [asyncio.create_task(worker(shard)) for shard in range(4)]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(each.wait() for each in taken))
            rows = [row async for row in client.cursors.all()]
        end = (await client.bounds()).highest_index
        for _ in range(200):
            await client.cursors.set("other", 3)
        assert (await client.bounds()).highest_index == end + 200
        assert [row async for row in client.cursors.all("mail")] == [
            {**row, "next_index": end + 200} for row in rows
        ], "they are level, and where they were"
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_share_without_records_is_committed_on_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "IDLE_RECORDS", 100)
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        until = (await client.bounds()).highest_index + 250
        consuming = asyncio.create_task(anext(client.consume("mail", start="end"), None))
        async with asyncio.timeout(DEADLINE_S):
            while not [row async for row in client.cursors.all("mail")]:
                pass
            while (await client.bounds()).highest_index < until:
                await client.cursors.set("other", 0)
            while (await client.cursors.get("mail"))["index"] < until - 150:
                pass
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)


@pytest.mark.asyncio
async def test_records_that_expired_on_one_server_come_from_another(tmp_path: Path) -> None:
    def own(node_id: str) -> dict[str, Any]:
        return {"retention_bytes": 1} if node_id == "n1" else {}

    async with running_cluster(tmp_path, own=own, **SETTINGS) as cluster, connected(cluster) as client:
        lowest = await expired(cluster)
        async with aclosing(client.consume("mail", start=0)) as batches:
            batch = await anext(batches)
        assert batch.records[0].index < lowest
        assert batch.lost == 0


async def expired(cluster: RunningCluster) -> int:
    """Have the first records expire on n1; return its lowest index."""
    for _ in range(2):
        await written(cluster, 3)
        await snapshot(cluster)
    async with asyncio.timeout(DEADLINE_S):
        while (lowest := node_status(cluster.nodes["n1"].node)["lowest_index"]) == 0:
            await cluster.ask("n1", "POST", "/admin/expire", b"{}", "application/json")
    return int(lowest)


@pytest.mark.asyncio
async def test_a_consumer_behind_the_log_s_beginning_is_told_how_much_it_lost(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster, connected(cluster) as client:
        await client.cursors.set("mail", 1)
        lowest = await expired(cluster)
        with pytest.raises(
            RecordsLost, match=f"the consumer of mail has read up to index 1, and the log begins at {lowest}"
        ) as lost:
            await anext(client.consume("mail"))
        assert (lost.value.lost, lost.value.lowest_index) == (lowest - 1, lowest)
        command = Consumption("mail", None, "first", lowest, None, skip_lost=True)
        with pytest.raises(ClientError, match=f"no record is left for it below {lowest}$"):
            await command.run(connected(cluster), None, 1)
        async with aclosing(client.consume("mail", skip_lost=True)) as batches:
            batch = await anext(batches)
            assert batch.lost == lowest - 1
            assert batch.records[0].index >= lowest
            await batch.commit()
        assert (await client.cursors.get("mail"))["index"] == batch.next_index
        assert await indices(client, "new") != [], "a new cursor begins at the first record"


@pytest.mark.asyncio
async def test_a_consumer_that_had_read_all_lost_nothing_when_commits_of_others_expired(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster, connected(cluster) as client:
        await written(cluster, 1)
        await indices(client, "mail")
        level = (await client.cursors.get("mail"))["index"]
        lags = cluster.nodes["n1"].node.components.cursor_lags
        async with asyncio.timeout(DEADLINE_S):
            while node_status(cluster.nodes["n1"].node)["lowest_index"] <= level + 1:
                await asyncio.gather(*(client.cursors.set(f"{number}" * 60, 0) for number in range(100, 400)))
                await lags.look()
                await snapshot(cluster)
                await cluster.ask("n1", "POST", "/admin/expire", b"{}", "application/json")
        assert (await client.cursors.get("mail"))["lost"] == 0
        assert await indices(client, "mail") == []


@pytest.mark.asyncio
async def test_a_waiting_consumer_moves_its_cursor_on_when_the_log_s_beginning_passes_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster, connected(cluster) as client:
        await written(cluster, 1)
        taken = asyncio.Event()

        async def work() -> None:
            async for batch in client.consume("mail"):
                await batch.commit()
                taken.set()

        working = asyncio.create_task(work())
        async with asyncio.timeout(DEADLINE_S):
            await taken.wait()
            level = (await client.cursors.get("mail"))["index"]
            lowest, index = 0, level
            while lowest <= level or index < lowest:
                await asyncio.gather(*(client.cursors.set(f"{number}" * 60, 0) for number in range(100, 400)))
                await snapshot(cluster)
                await cluster.ask("n1", "POST", "/admin/expire", b"{}", "application/json")
                lowest = node_status(cluster.nodes["n1"].node)["lowest_index"]
                index = (await client.cursors.get("mail"))["index"]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@pytest.mark.asyncio
async def test_records_that_were_lost_are_not_hidden_by_a_change_of_shares(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster, connected(cluster) as client:
        await client.cursors.set("~mail/1-2", 0)
        await client.cursors.set("~mail/0-2", await expired(cluster))
        with pytest.raises(
            ReshardRefused,
            match=r"expired before the worker of ~mail/1-2 read them.*--skip-lost: `quire consume '~mail' --shard 1/2 ",
        ):
            await client.cursors.reshard("~mail", 2, 3)


@pytest.mark.asyncio
async def test_one_named_server_that_has_the_records_is_enough(tmp_path: Path) -> None:
    def own(node_id: str) -> dict[str, Any]:
        return {"retention_bytes": 1} if node_id == "n1" else {}

    async with running_cluster(tmp_path, own=own, **SETTINGS) as cluster, connected(cluster, "n2") as client:
        lowest = await expired(cluster)
        found = await indices(client, "mail", start=0)
        assert found[0] < lowest < found[-1]


@pytest.mark.asyncio
async def test_commits_may_pass_each_other(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        first = await client.append_batch([["add", 1]] * 10)
        async with aclosing(client.consume("mail")) as batches:
            batch = await anext(batches)
            await asyncio.gather(*(batch.commit(first + number) for number in (9, 3, 7, 1, 10)))
        assert (await client.cursors.get("mail"))["index"] == first + 10


@pytest.mark.asyncio
async def test_one_worker_becomes_many_and_many_become_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 10)
        whole = await indices(client, "mail")
        await client.append_batch([["add", 1]] * 10)
        await client.cursors.reshard("mail", 1, 2)
        parts = [await indices(client, "mail", shard=(shard, 2)) for shard in range(2)]
        await client.cursors.reshard("mail", 2, 1)
        assert await indices(client, "mail", shard=(0, 1)) == []
        assert [row["name"] async for row in client.cursors.all()] == ["mail"]
        assert sorted(chain(whole, *parts)) == await indices(client, "all")
        with pytest.raises(ValueError, match="is the name of a share's cursor"):
            await anext(client.consume("report/01-31"))
        for name in ("", ".", "..", "./."):
            with pytest.raises(BadRequest, match="is not the name of a cursor"):
                await client.cursors.get(name)


@pytest.mark.asyncio
async def test_a_worker_that_was_not_told_of_a_change_of_shares_does_not_begin_anew(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 10)
        await client.cursors.set("mail/other", 0)
        for shard in range(2):
            await indices(client, "mail", shard=(shard, 2))
        level = await client.cursors.reshard("mail", 2, 4)
        for shares in (1, 2, 3):
            with pytest.raises(ReshardRefused, match=f"but mail/0-4: .* `quire cursor reshard mail 4 {shares}`"):
                await indices(client, "mail", shard=(0, shares))
        await indices(client, "lone")
        with pytest.raises(ReshardRefused, match=r"but lone: consume as one of 1, .* `quire cursor reshard lone 1 4`"):
            await indices(client, "lone", shard=(0, 4))
        await client.cursors.set("mail/0-2", level + 1)
        with pytest.raises(ReshardRefused, match="mail has 4 shares already; mail/0-2 is none of them"):
            await client.cursors.reshard("mail", 2, 4)


@pytest.mark.asyncio
async def test_a_new_cursor_begins_where_its_consumer_says(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        first = await client.append_batch([["add", 1]] * 10)
        assert await indices(client, "end", start="end") == []
        assert await indices(client, "at", start=first + 5) == list(range(first + 5, first + 10))
        assert await indices(client, "at", start=first) == [], "it is there already"
        with pytest.raises(BadRequest, match="CURSOR_BEYOND"):
            await anext(client.consume("beyond", start=10_000))
        with pytest.raises(ValueError, match="begins at first, end or an index"):
            await anext(client.consume("other", start="middle"))
        with pytest.raises(BadRequest, match="a cursor's name has"):
            await anext(client.consume("a b"))


@pytest.mark.asyncio
async def test_a_consumer_continues_over_a_change_of_leader(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, connected(cluster) as client:
        await client.append_batch([["add", 1]] * 10)
        async with asyncio.timeout(DEADLINE_S), aclosing(client.consume("mail")) as batches:
            batch = await anext(batches)
            await cluster.lead("n2")
            await batch.commit()
            written_at = await client.append(["add", 2])
            await cluster.lead("n3")
            batch = await anext(batches)
            assert [record.index for record in batch.records] == [written_at]
            await batch.commit()
        assert (await client.cursors.get("mail"))["lag"]["records"] == 0


@pytest.mark.asyncio
async def test_the_blocking_twin_delivers_and_commits_the_same(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connected(cluster) as client:
        first = await client.append_batch([["add", 1]] * 10)

        def consumed() -> list[int]:
            found: list[int] = []
            with quire.connect_sync(cluster.address("n1"), timeout_s=DEADLINE_S) as blocking:
                for batch in blocking.consume("mail", until=first + 10):
                    found += [record.index for record in batch.records]
                    batch.commit(first + 5)
                    batch.commit()
                assert [row["index"] for row in blocking.cursors.all()] == [first + 10]
                assert blocking.cursors.get("mail")["lag"]["records"] == 0
                assert blocking.cursors.set("mail", first, rewind=True) == first
                assert blocking.cursors.delete("mail") == first
            return found

        assert await asyncio.to_thread(consumed) == list(range(first, first + 10))
