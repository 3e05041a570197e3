"""Rule 13's level: PySyncObj elects over our links, suggests one node, and cannot harm the one that it runs in."""

import asyncio
import pickle
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from quire.cluster.control import Control
from quire.cluster.control.envelope import MAX_INTEGER, NotAdmitted, decode, encode
from quire.cluster.control.syncobj import Raft, RaftTimes
from quire.log import pack
from tests.control.running import TIMES, planes
from tests.packed import unpacked
from tests.replication.loopback import DEADLINE_S, until

UNPICKLED: list[str] = []


def note_unpickling(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        UNPICKLED.append(f"{arguments[0]}.{arguments[1]}")


sys.addaudithook(note_unpickling)


# Who is suggested


async def test_one_of_three_is_suggested() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)


async def test_another_is_suggested_when_that_one_is_lost() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        (first,) = plane.candidates

        await plane.lose(first)
        await until(lambda: plane.candidates != [])

        assert first not in plane.candidates


async def test_a_node_that_hears_no_majority_is_suggested_no_longer() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        (first,) = plane.candidates

        plane.isolate(first)

        await until(lambda: plane.candidates not in ([], [first]) and first not in plane.candidates)
        assert plane.levels[first][-1] is False


@pytest.mark.full
async def test_a_node_that_is_not_fit_to_lead_is_suggested_no_longer_and_another_is() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        (first,) = plane.candidates

        plane.unfit.add(first)
        await until(lambda: plane.candidates not in ([], [first]) and first not in plane.candidates)

        plane.unfit.clear()  # Then it takes part again, and follows whoever is suggested by then.
        await until(
            lambda: (status := plane.controls[first].status()) is not None and [status.leader] == plane.candidates
        )


async def test_nobody_is_suggested_where_no_majority_is_linked() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)

        await plane.lose("n1")
        await plane.lose("n2")

        await until(lambda: plane.candidates == [])


async def test_a_plane_that_forgot_everything_everywhere_suggests_somebody_again() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)

        for node_id in list(plane.controls):
            await plane.lose(node_id)
        for node_id in list(plane.levels):
            plane.make(node_id).start()
        plane.link()

        await until(lambda: len(plane.candidates) == 1)


@pytest.mark.full
async def test_of_other_voters_it_is_made_anew_and_counts_a_majority_of_them() -> None:
    async with planes("n1", "n2", "n3", "n4") as plane:
        await until(lambda: len(plane.candidates) == 1)
        for gone in ("n3", "n4"):
            await plane.lose(gone)
        await until(lambda: plane.candidates == [])  # Two of four are no majority.

        for node_id, other in (("n1", "n2"), ("n2", "n1")):
            plane.controls[node_id].set_other_voters([other])

        await until(lambda: len(plane.candidates) == 1)
        await plane.lose("n2")
        await until(lambda: plane.candidates == [])


async def test_a_level_is_told_once_and_taken_back_at_the_end() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        (first,) = plane.candidates
        assert plane.levels[first][-1] is True
        assert all(plane.levels[first][i] != plane.levels[first][i + 1] for i in range(len(plane.levels[first]) - 1))
    assert plane.levels[first][-1] is False


# What it cannot do


async def test_what_makes_pysyncobj_fail_makes_it_anew_and_nothing_else() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        (first,) = plane.candidates
        other = next(node_id for node_id in plane.levels if node_id != first)
        far = pack([4, 1 << 50, True, True])

        plane.controls[first].receive(other, far)
        plane.controls[first].receive("n9", far)
        plane.controls[first].receive(other, b"nonsense")

        await until(lambda: len(plane.candidates) == 1)


async def test_a_pysyncobj_that_a_message_has_spoilt_is_made_anew_and_no_fault_is_traced() -> None:
    last = pack([1, MAX_INTEGER, 1, 0])  # From here on it would campaign in a term that may not be sent.
    with capture_logs() as said:
        async with planes("n1", "n2", "n3") as plane:
            await until(lambda: len(plane.candidates) == 1)
            control = plane.controls[plane.candidates[0]]
            other = next(node_id for node_id in plane.levels if plane.controls[node_id] is not control)
            spoilt = control._raft  # pyright: ignore[reportPrivateUsage]

            control.receive(other, last)

            await until(lambda: control._raft not in (None, spoilt))  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(plane.candidates) == 1)

    assert [line["event"] for line in said if line.get("exc_info")] == []


@pytest.mark.parametrize("method", ["__init__", "connected", "destroy"])
async def test_a_pysyncobj_that_neither_begins_nor_ends_is_made_anew_until_it_does(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    failures = 0
    whole = getattr(Raft, method)

    def fails(raft: Raft, *arguments: Any) -> None:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise RuntimeError("planted")
        whole(raft, *arguments)

    monkeypatch.setattr("quire.cluster.control.control.REBUILD_PAUSE_S", 0.01)
    monkeypatch.setattr(Raft, method, fails)
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        for control in plane.controls.values():
            control.set_other_voters([])
            control.set_other_voters([node_id for node_id in plane.levels if plane.controls[node_id] is not control])
        await until(lambda: failures > 2)
        await until(lambda: len(plane.candidates) == 1)


async def test_whatever_integers_a_peer_sends_the_node_lives() -> None:
    edges = [0, 1, 2, 3, 1 << 20, (1 << 53) - 1]
    async with planes("n1", "n2", "n3") as plane:
        for control in plane.controls.values():
            for a in edges:
                for b in edges:
                    for row in (
                        [1, a, b, a],
                        [2, a],
                        [3, a, b, b, a, [[b, a]]],
                        [3, a, b, a, b, []],
                        [4, a, True, b > 2],
                    ):
                        for source in plane.levels:
                            control.receive(source, pack(row))
            await asyncio.sleep(0)
        assert all(control.status() is None or control.status() for control in plane.controls.values())


def test_a_leader_takes_no_answer_with_an_index_that_its_log_does_not_have() -> None:
    said: list[list[Any]] = []
    node = Raft("n1", ("n2", "n3"), QUICK, lambda _, message: said.append(unpacked(encode(message))))
    node.connected("n2")
    end = time.monotonic() + DEADLINE_S
    while not node.status().leads and time.monotonic() < end:
        node.tick()
        for asked in [row for row in said if row[0] == 1]:
            node.received("n2", decode(pack([2, asked[1]])))
        said.clear()
    following = node.status().log_length + 1

    for index in (1, following + 1, following + 300):
        with pytest.raises(NotAdmitted, match=f"the next index is {index}, and is from 2 to {following}"):
            node.received("n2", decode(pack([4, index, True, False])))
    node.received("n2", decode(pack([4, following, True, True])))


@pytest.mark.parametrize("seed", range(4))
def test_no_message_of_a_peer_makes_pysyncobj_fail_now_or_later(seed: int) -> None:
    chance = random.Random(seed)
    said: list[list[Any]] = []
    node = Raft("n1", ("n2", "n3"), QUICK, lambda _, message: said.append(unpacked(encode(message))))
    for other in ("n2", "n3"):
        node.connected(other)
    led = taken = rounds = 0
    end = time.monotonic() + DEADLINE_S
    # Its elections go by the clock: 5,000 rounds may end before it leads. Those that follow only answer it.
    while rounds < 5_000 or (not led and time.monotonic() < end):
        rounds += 1
        node.tick()
        status = node.status()
        led += status.leads
        rows = [answer_to(row, chance) for row in said[-3:]]
        if rounds <= 5_000:
            rows += changed(status.term, status.log_length, chance)
        said.clear()
        for row in chance.sample(rows, min(3, len(rows))):
            try:
                node.received(chance.choice(("n2", "n3")), decode(pack(row)))
                taken += 1
            except NotAdmitted:
                pass
        if status.log_length > 200:
            node.received("n2", decode(pack([3, status.term + 1, 1, 1, 0, []])))  # Its log begins anew.

    assert led > 0
    assert taken > 0


QUICK = RaftTimes(silence_min_s=0.0005, silence_max_s=0.001, ping_s=0.0001, fallback_s=1.0)


def answer_to(row: list[Any], chance: random.Random) -> list[Any]:
    """What a peer answers that takes what it is told, or is far ahead or behind."""
    if row[0] == 1:
        return [2, row[1]]
    following = row[3] + len(row[5]) + 1 if row[0] == 3 else 2
    return [4, following + chance.choice((0, 0, 0, 1, -1, 300)), chance.random() < 0.5, chance.random() < 0.7]


def changed(term: int, length: int, chance: random.Random) -> list[list[Any]]:
    """Messages that are near those of a peer, most of them with something wrong."""
    index, later = chance.choice((0, 1, length, length + 1, length + 9, 2**53 - 1)), term + chance.choice((-1, 0, 1))
    no_ops = [[length + place + chance.choice((0, 0, 0, 7)), later] for place in range(1, chance.randrange(1, 4))]
    return [
        [1, later, index, chance.choice((0, term))],
        [2, later],
        [3, later, index, chance.choice((length, index)), chance.choice((0, term, later)), no_ops],
        [3, later, 1, length, term, [[index, later]]],
        [4, index, chance.random() < 0.5, chance.random() < 0.5],
    ]


class Gadget:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


def planted(gadget: bytes) -> list[Any]:
    """A gadget in each field of each message, as a command, as a dump and its parts, and as the message itself."""
    rows: list[Any] = [gadget, [gadget], {"type": gadget}]
    for row in ([1, 9, 9, 9], [2, 9], [3, 9, 9, 1, 0, [[2, 9]]], [4, 9, True, True]):
        rows += [[*row[:place], gadget, *row[place + 1 :]] for place in range(len(row))]
        rows += [[*row, gadget]]
    rows += [[3, 9, 9, 1, 0, [[gadget, 9]]], [3, 9, 9, 1, 0, [[2, gadget]]], [3, 9, 9, 1, 0, [[gadget, 2, 9]]]]
    command = b"\x00" + gadget
    for kind in (b"\x00", b"\x02", b"\x03"):
        rows += [[3, 9, 9, 1, 0, [[kind + gadget, 2, 9]]], {"type": "apply_command", "command": kind + gadget}]
    for part in ("start", "process", "finish"):
        rows += [{"type": "append_entries", "term": 9, "transmission": part, "data": gadget, "commit_index": 9}]
    append = {"type": "append_entries", "term": 9, "commit_index": 9, "prevLogIdx": 1, "prevLogTerm": 0}
    rows += [{**append, "entries": [[command, 2, 9]]}, {**append, "serialized": [gadget, True, True]}]
    return rows


def noting(nodes: set[str]) -> Callable[[str, bytes], None]:
    """Notes to whom something was said."""

    def send(node_id: str, _: bytes) -> None:
        nodes.add(node_id)

    return send


async def test_a_gadget_planted_in_any_field_command_or_dump_is_never_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "unpickled"
    gadget = pickle.dumps(Gadget(file))
    messages = [gadget, *(pack(row) for row in planted(gadget))]
    said: list[set[str]] = [set() for _ in messages]
    # A new control plane for each message, so that earlier messages have no effect.
    controls = [Control("n1", ("n2", "n3"), TIMES, noting(own), lambda _: None, lambda: True) for own in said]
    UNPICKLED.clear()

    for control, data in zip(controls, messages, strict=True):
        control.start()
        for source in ("n2", "n3"):
            control.peer_linked(source)
            control.receive(source, data)
    await until(lambda: all(own == {"n2", "n3"} for own in said))  # It survived the message and campaigns.
    await asyncio.gather(*(control.stop() for control in controls))

    assert UNPICKLED == []
    assert not file.exists()
    pickle.loads(gadget)
    assert file.exists(), "the gadget works"
    assert UNPICKLED


async def test_no_message_that_is_sent_holds_a_pickle() -> None:
    async with planes("n1", "n2", "n3") as plane:
        await until(lambda: len(plane.candidates) == 1)
        assert plane.sent
        assert not any(b"\x80\x04" in data or b"\x80\x05" in data for data in plane.sent)
