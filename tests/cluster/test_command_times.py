"""How long commands take: what the journal says of a slow one, when a part is a problem, rates and percentiles."""

from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from quire.cluster.errors import CheckFailedError
from quire.cluster.node import command_times, writing
from quire.cluster.node.command_times import LOOK_S, LOOKS, NAME_BYTES, NO_STEP, CommandTimes, Step, TimedFrame
from quire.cluster.node.writing import WriteCounts, Writing
from quire.log import Kind, encode_blob, encode_records, pack
from quire.replication import Placed, Write
from quire.replication.disk import Share
from tests.cluster.running import running_cluster

SLOW_S = 0.1
START_S = 1000.0
DEADLINE_S = 20.0
JSON = "application/json"


class World:
    """A node's commands, in a time of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow_s: float = SLOW_S, *, names: bool = True) -> None:
        self.now = START_S
        monkeypatch.setattr(command_times, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.times = CommandTimes(slow_s, names=names)
        self._index = 0

    def write(self, *commands: Any, check_s: float = 0.0, session: int = 0) -> Write[None]:
        write = Write(encode_records(list(commands)), len(commands), session=session, check_s=check_s, owner=None)
        write.are_commands, write.proposed_at = True, self.now
        return write

    def frame(self, *writes: Write[None], behind_s: float = 0.0, apply_s: float = 0.0, slowest: Step = NO_STEP) -> None:
        """A frame of writes, which are proposed by now, from its append to its answer."""
        shares, count = list[Share[None]](), 0
        for write in writes:
            shares.append(Share(write, count))
            count += write.count
        frame = TimedFrame(Placed(self._index, self._index + count, 1, shares), self.now)
        self._index += count
        frame.flushed_at = frame.committed_at = self.now
        self.now += behind_s + apply_s
        self.times.executed(apply_s, slowest)
        self.times.answered(frame)

    def seconds(self, count: int, **longest_s: float) -> None:
        """So many looks, each at which a part took so long."""
        for _ in range(count):
            self.now += LOOK_S
            self.times.look(longest_s)


def test_the_command_that_took_long_is_named_and_those_that_waited_for_it_have_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    with capture_logs() as lines:
        writes = world.write(["a"], ["b"], session=7), world.write(["c"], ["d"], session=8), world.write(["e"])
        world.frame(*writes, apply_s=0.4, slowest=Step(0.3, 3))
        world.frame(world.write(["waits"]), behind_s=0.3, apply_s=0.05)
        world.frame(world.write(["fast"]), apply_s=0.09)
    slow, waited = lines
    assert (slow["event"], slow["index"], slow["session"], slow["command"]) == ("slow command", 3, 8, "d")
    assert (slow["took_ms"], slow["apply_ms"], slow["behind_ms"]) == (400, 400, 0)
    assert (waited["event"], waited["command"]) == ("a command waited for a slow one", "waits")
    assert (waited["took_ms"], waited["apply_ms"], waited["behind_ms"]) == (350, 50, 300)


def test_a_slow_check_is_told_with_its_own_command_and_the_ids_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    with capture_logs(processors=[merge_contextvars]) as lines:
        with bound_contextvars(request_id="mine"):
            slow = world.write(["slow"], check_s=0.4)
            slow.context = copy_context()
        with bound_contextvars(request_id="another's"):
            world.frame(world.write(["fast"], check_s=0.2), slow)
            world.frame(world.write(["no request"], check_s=0.2))
    assert [(line["command"], line["check_ms"], line.get("request_id")) for line in lines] == [
        ("slow", 400, "mine"),
        ("no request", 200, None),
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["put", "key", 1], "put"),
        ("secret", None),
        ({"secret": "x"}, None),
        ([], None),
        ([["secret"]], None),
        ([b"secret"], None),
        ([7], None),
        (["a\nb\x1b[2J"], r"a\nb\x1b[2J"),
        (["x" * 100], "x" * NAME_BYTES),
        (["\u00e4" * 100], "\u00e4" * (NAME_BYTES // 2)),
    ],
)
def test_a_command_is_named_by_its_first_element_which_is_cut_and_escaped(
    monkeypatch: pytest.MonkeyPatch, command: Any, name: str | None
) -> None:
    world = World(monkeypatch)
    with capture_logs() as lines:
        world.frame(world.write(["before"], command, "after"), apply_s=1.0, slowest=Step(1.0, 1))
    assert [line.get("command") for line in lines] == [name]


def test_only_what_came_as_commands_is_named_and_nothing_if_the_setting_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    record = world.write(["secret", 5])
    record.are_commands = False
    blob: Write[None] = Write(encode_blob(b"secret"), 1, Kind.BLOB, owner=None, proposed_at=world.now)
    with capture_logs() as lines:
        world.frame(record, apply_s=1.0)
        blob.proposed_at = world.now
        world.frame(blob, apply_s=1.0)
        world = World(monkeypatch, names=False)
        world.frame(world.write(["secret"]), apply_s=1.0)
    assert [line["event"] for line in lines] == ["slow command"] * 3
    assert "secret" not in str(lines)


@pytest.mark.asyncio
async def test_commands_are_named_however_they_came_and_records_are_not(tmp_path: Path) -> None:
    machine = "tests.cluster.machines:Slow"
    async with running_cluster(tmp_path, 1, machine=machine, slow_command_ms=100) as cluster:
        session = (await cluster.ask("n1", "POST", "/sessions", b"{}", JSON)).document["session"]
        with capture_logs() as journal:
            records = orjson.dumps(["secret", 5])
            under_session = {"Quire-Session": str(session), "Quire-Sequence": "1"}
            assert (await cluster.ask("n1", "POST", "/records", records, JSON)).status == 200
            assert (await cluster.ask("n1", "POST", "/records", records, JSON, under_session)).status == 200
            commands = orjson.dumps({"commands": [["posted"]]})
            assert (await cluster.ask("n1", "POST", "/commands", commands, JSON)).status == 200
            url = f"{cluster.url('n1')}/commands/stream?session={session}"
            async with cluster.session.ws_connect(url, compress=0) as socket:
                await socket.send_bytes(pack([2, [["streamed"]]]))
                await socket.receive(timeout=DEADLINE_S)
    lines = [line for line in journal if line["event"] == "slow command"]
    assert [line.get("command") for line in lines] == [None, None, "posted", "streamed"]


def test_a_command_is_named_without_unpacking_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    no_text = b"\xa1\xff"
    write = world.write(["put", "?"], ["get", "?"], ["?", 1])
    write.payload = write.payload.replace(pack("?"), no_text)
    with capture_logs() as lines:
        for position in range(3):
            write.proposed_at = world.now
            world.frame(write, apply_s=1.0, slowest=Step(1.0, position))
    assert [line.get("command") for line in lines] == ["put", "get", None]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_quick", [True, False])
async def test_a_check_that_fails_in_the_end_is_timed_too(monkeypatch: pytest.MonkeyPatch, is_quick: bool) -> None:
    world = World(monkeypatch)
    monkeypatch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: world.now))

    def check(_: Any) -> None:
        world.now += 5.0
        raise TimeoutError

    checker: Any = SimpleNamespace(quick=is_quick, check=check)
    nobody: Any = SimpleNamespace(other_code="")
    with pytest.raises(CheckFailedError):
        await Writing(checker, nobody, nobody, nobody, WriteCounts(world.times), 0).check(["late"])
    world.times.count()
    assert world.times.check.take_longest() == 5.0


def test_nothing_is_slow_at_a_threshold_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0)
    with capture_logs() as lines:
        world.frame(world.write(["long"]), apply_s=100.0)
        world.seconds(5, flush=100.0)
    assert (lines, world.times.alarms("d")) == ([], [])


def test_a_part_that_is_slow_again_and_again_is_a_problem_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.seconds(1, flush=0.4)
    assert world.times.alarms("d") == [], "one stall is no problem"
    world.seconds(3, flush=0.0)
    world.seconds(1, flush=0.2, queue=0.09)
    [alarm] = world.times.alarms("/data/n1")
    assert alarm.startswith("commands are slow: flush took up to 400 ms in the last 4 s; ")
    assert "/data/n1" in alarm
    world.seconds(LOOKS - 1)
    assert world.times.alarms("d")
    world.seconds(1)
    assert world.times.alarms("d") == []


def test_a_part_that_has_not_ended_is_a_problem_already(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for waited_s in (0.3, 1.3, 2.3):
        world.seconds(1, majority=waited_s)
    [alarm] = world.times.alarms("d")
    assert alarm.startswith("commands are slow: majority took up to 2,300 ms in the last 2 s; ")


def test_rate_and_percentiles_count_commands_of_the_last_looks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 0.0)
    none = {"per_second": 0.0, "p50_ms": 0.0, "p99_ms": 0.0}
    assert world.times.document() == none
    world.frame(world.write(["before the first look"]), apply_s=0.5)
    shown = world.times.document()
    assert shown["per_second"] == 2.0
    assert 500 <= shown["p50_ms"] <= 550
    world.seconds(LOOKS + 1)
    assert world.times.document() == none
    for _ in range(9):
        world.frame(world.write(*[["fast"]] * 10), apply_s=0.002)
    world.frame(world.write(*[["slow"]] * 10), apply_s=0.4)
    shown = world.times.document()
    assert shown["per_second"] == pytest.approx(100 / (LOOKS * LOOK_S + 0.418), abs=0.1)
    assert 2 <= shown["p50_ms"] <= 2.2
    assert 400 <= shown["p99_ms"] <= 440
    world.seconds(LOOKS + 1)
    assert world.times.document() == none
