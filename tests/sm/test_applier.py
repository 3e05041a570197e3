"""The applier: results, refusals, digests, and that it never continues after a failure."""

import json
import struct
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from quire.log import Frame, Kind, Run, pack
from quire.sm import (
    EMPTY_DIGEST,
    Applier,
    ApplyFailed,
    ArithmeticMachine,
    CommandFailed,
    Context,
    Contexts,
    FrameOutOfOrder,
    LogMachine,
    Refused,
    next_digest,
)
from quire.sm.errors import FIX_MACHINE, REASON_LENGTH, RESTART
from tests.sm.frames import TIMESTAMP, Frames, boundary_at
from tests.sm.test_checks import Even


class Interrupted(BaseException):
    """What Ctrl-C and the like raise in the middle of something."""


class Moody(Even):
    """Answers each command with its context; refuses "no", raises on "boom", answers a set on "set"."""

    name = "moody"

    def __init__(self, initial: Any = None) -> None:
        super().__init__(initial)
        self.applied: list[Any] = []

    def apply(self, command: Any, context: Context) -> Any:
        if command == "no":
            raise Refused("NO", "no")
        if command == "boom":
            raise KeyError("boom")
        if command == "wrong":
            raise Refused("WRONG", {1})  # type: ignore[arg-type]
        if command == "exit":
            sys.exit(3)
        if command == "interrupt":
            raise Interrupted
        self.applied.append(command)
        return {1} if command == "set" else list(context)

    def query(self, request: Any) -> Any:
        return self.applied


class Miscounting(Moody):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        return [None]


class GivingNothing(Moody):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> Any:
        return None


class Misplacing(Moody):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        raise CommandFailed(position=7, reason="two\nlines")


class FailingInBatches(Moody):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        raise RuntimeError("whole batch")


def digest_by_hand(digest: bytes, frame: Frame, reply: list[Any]) -> bytes:
    """The digest's formula in sm/boundary.py, written out."""
    text = digest + struct.pack("<Q", frame.header.index) + struct.pack("<I", frame.header.crc32c) + pack(reply)
    return blake2b(text, digest_size=16).digest()


def test_a_frame_moves_applied_index_and_gives_each_result() -> None:
    frames = Frames(index=10, epoch=3)
    applier = Applier(ArithmeticMachine(), boundary=boundary_at(10))
    applied = applier.apply(frames.records([["add", 3], ["div", 5]]))
    assert applied[:5] == (10, 12, 3, ["45", "9"], [])
    assert applier.applied_index == 12
    assert applier.state() == "9"


def test_a_refused_command_has_no_result_and_is_in_refused_with_its_position() -> None:
    applier = Applier(ArithmeticMachine())
    applied = applier.apply(Frames().records([["add", 3], ["mul", "1e9999"], ["div", 5]]))
    assert applied.results == ["45", None, "9"]
    [[position, code, text]] = applied.refused
    assert (position, code) == (1, "OVERFLOW")
    assert "1E+6145" in text


def test_the_digest_is_the_one_of_the_design() -> None:
    frames = Frames()
    applier = Applier(ArithmeticMachine())
    assert applier.digest == EMPTY_DIGEST == bytes(16)
    first = frames.records([["add", 3], ["div", 5]])
    applier.apply(first)
    expected = digest_by_hand(bytes(16), first, [["45", "9"], []])
    assert applier.digest == expected
    second = frames.records([["mul", "1e9999"], ["add", 1]])
    applied = applier.apply(second)
    assert applier.digest == digest_by_hand(expected, second, [[None, "10"], applied.refused])


def test_the_digest_of_the_first_frame_has_golden_bytes() -> None:
    assert (
        next_digest(bytes(16), 1, 0x01020304, b"\x92\x91\xa2\x34\x35\x90").hex() == "5dc90480a95fce894e4be066ce0d6400"
    )


@pytest.mark.parametrize("changed", ["digest", "index", "crc32c", "results", "refused"])
def test_every_part_changes_the_digest(changed: str) -> None:
    parts: dict[str, Any] = {"digest": bytes(16), "index": 5, "crc32c": 6, "results": ["1"], "refused": []}
    others = {"digest": bytes(15) + b"\1", "index": 6, "crc32c": 5, "results": ["2"], "refused": [[0, "C", "t"]]}

    def digest(of: dict[str, Any]) -> bytes:
        return next_digest(of["digest"], of["index"], of["crc32c"], pack([of["results"], of["refused"]]))

    assert digest(parts) != digest({**parts, changed: others[changed]})


def test_a_system_frame_is_passed_over() -> None:
    frames = Frames()
    applier = Applier(ArithmeticMachine())
    applied = applier.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))
    assert applied[:5] == (0, 1, 1, [], [])
    assert applier.applied_index == 1
    assert applier.digest == EMPTY_DIGEST
    assert applier.apply(frames.records([["add", 3]])).results == ["45"]


def test_coalesced_runs_without_sessions_are_applied_in_order() -> None:
    applier = Applier(ArithmeticMachine())
    frame = Frames().runs([Run(0, 0, 2), Run(0, 0, 1)], [["add", 3], ["div", 5], ["mul", 2]])
    assert applier.apply(frame).results == ["45", "9", "18"]
    assert applier.digest == digest_by_hand(bytes(16), frame, [["45", "9", "18"], []])


def test_a_blob_is_one_record_of_the_log_machine() -> None:
    frame = Frames().blob(b"\0" * 1000)
    applier = Applier(LogMachine())
    assert applier.apply(frame)[:5] == (0, 1, 1, [None], [])
    assert applier.digest == digest_by_hand(bytes(16), frame, [[None], []])


def test_the_machine_gets_each_command_s_own_context() -> None:
    applier = Applier(Moody(), boundary=boundary_at(20))
    applied = applier.apply(Frames(index=20, epoch=7).records(["a", "no", "b"]))
    assert applied.results == [[20, 7, TIMESTAMP], None, [22, 7, TIMESTAMP]]
    assert applied.refused == [[1, "NO", "no"]]


def failing_frames() -> list[tuple[str, Any, Frame, int, str]]:
    """What, machine, the frame at index 1, the index that is named, a word of the text."""
    return [
        ("raise", Moody(), after_one().records(["a", "b", "boom", "c"]), 3, "KeyError: 'boom'"),
        (
            "result",
            Moody(),
            after_one().records(["a", "no", "set", "c"]),
            3,
            "the result of 'set' is not a msgpack value",
        ),
        (
            "refusal",
            Moody(),
            after_one().records(["a", "no", "wrong", "c"]),
            3,
            "the result of 'wrong' is not a msgpack",
        ),
        ("exit", Moody(), after_one().records(["a", "exit"]), 2, "apply of 'exit' raised SystemExit: 3"),
        ("count", Miscounting(), after_one().records(["a", "b"]), 1, "1 results for 2 commands, the first 'a'"),
        ("nothing", GivingNothing(), after_one().records(["a", "b"]), 1, "gave NoneType for 2 commands"),
        ("position", Misplacing(), after_one().records(["a", "b"]), 1, "apply of 'a' raised two lines"),
        ("batch", FailingInBatches(), after_one().records(["a", "b"]), 1, "RuntimeError: whole batch"),
        ("unchecked", ArithmeticMachine(), after_one().records([["add", 1], ["add", 1.5]]), 2, "TypeError"),
        ("blob", ArithmeticMachine(), after_one().blob(b"raw"), 1, "does not accept blobs"),
        ("system payload", ArithmeticMachine(), after_one().payload(b"\xc1", 1, Kind.SYSTEM), 1, "payload"),
        ("name", ArithmeticMachine(), after_one().system({"type": "open_session", "name": 5}), 1, "name is text"),
        ("close", ArithmeticMachine(), after_one().system({"type": "close_session"}), 1, "payload"),
        ("payload", ArithmeticMachine(), after_one().payload(b"\xc1", 1), 1, "payload"),
        ("too few", ArithmeticMachine(), after_one().payload(pack([["add", 1]]), 2), 1, "payload"),
        ("runs payload", ArithmeticMachine(), after_one().payload(pack([["add", 1]]), 1, Kind.RUNS), 1, "payload"),
        ("blob payload", LogMachine(), after_one().payload(b"\0", 1, Kind.BLOB), 1, "payload"),
    ]


def after_one() -> Frames:
    return Frames(index=1)


@pytest.mark.parametrize(("machine", "frame", "index", "word"), [case[1:] for case in failing_frames()],
                         ids=[case[0] for case in failing_frames()])  # fmt: skip
def test_a_failure_stops_applying_at_its_index_for_good(machine: Any, frame: Frame, index: int, word: str) -> None:
    applier = Applier(machine)
    applier.apply(Frames().system({"type": "epoch_start", "node_id": "n1"}))
    with pytest.raises(ApplyFailed) as failure:
        applier.apply(frame)
    assert failure.value.index == index
    assert word in failure.value.text
    assert applier.failure is failure.value
    assert (applier.applied_index, applier.digest) == (1, EMPTY_DIGEST)

    good = Frames(index=1).records([["add", 1]])
    for again in (lambda: applier.apply(frame), lambda: applier.apply(good), applier.state):
        with pytest.raises(ApplyFailed) as repeated:
            again()
        assert repeated.value is failure.value
    assert (applier.applied_index, applier.digest) == (1, EMPTY_DIGEST)


def test_a_failure_names_command_and_line_and_says_what_to_do() -> None:
    with pytest.raises(ApplyFailed) as failure:
        Applier(Moody()).apply(Frames().records(["a", "boom"]))

    line = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if 'KeyError("boom")' in text)
    assert str(failure.value) == (
        f"applying stopped at index 1: apply of 'boom' raised KeyError: 'boom' at {__file__}:{line}; {FIX_MACHINE}"
    )


def test_a_failure_beside_the_machine_s_own_code_names_the_machine_s_line() -> None:
    class Parsing(Moody):
        def apply(self, command: Any, context: Context) -> Any:
            return json.loads(command)

    with pytest.raises(ApplyFailed, match=rf"raised JSONDecodeError: .* at {__file__}:\d+; if other nodes"):
        Applier(Parsing()).apply(Frames().records(["{"]))


def test_a_machine_without_memory_is_restarted_before_it_is_fixed() -> None:
    class Hungry(Moody):
        def apply(self, command: Any, context: Context) -> Any:
            raise MemoryError

    with pytest.raises(ApplyFailed) as failure:
        Applier(Hungry()).apply(Frames().records(["a"]))
    assert failure.value.do == RESTART


def test_a_failure_is_one_line_of_bounded_length_whatever_command_and_message_are() -> None:
    class Unsayable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Wordy(Moody):
        def apply(self, command: Any, context: Context) -> Any:
            raise Unsayable if command == "unsayable" else ValueError("many\nwords " * 1000)

    for command in ("unsayable", "line\n" * 10_000, {str(key): ["x" * 1000] * 10 for key in range(100)}):
        with pytest.raises(ApplyFailed) as failure:
            Applier(Wordy()).apply(Frames().records([command]))
        sentence = str(failure.value)
        assert ("Unsayable: (its message cannot be read: RuntimeError)" in sentence) == (command == "unsayable")
        assert "\n" not in sentence
        assert len(sentence) < 4 * REASON_LENGTH + len(__file__)


def test_an_applier_that_was_interrupted_in_a_frame_never_applies_it_again() -> None:
    machine = Moody()
    applier = Applier(machine)
    frame = Frames().records(["a", "interrupt", "b"])
    with pytest.raises(Interrupted):
        applier.apply(frame)
    with pytest.raises(ApplyFailed):
        applier.apply(frame)
    assert machine.applied == ["a"]


def test_nothing_behind_a_failing_command_is_applied() -> None:
    machine = Moody()
    with pytest.raises(ApplyFailed):
        Applier(machine).apply(Frames().records(["a", "boom", "b"]))
    assert machine.applied == ["a"]


@pytest.mark.parametrize("index", [0, 4, 6])
def test_a_frame_that_is_not_the_next_is_refused_and_changes_nothing(index: int) -> None:
    applier = Applier(ArithmeticMachine(), boundary=boundary_at(5))
    with pytest.raises(FrameOutOfOrder) as error:
        applier.apply(Frames(index=index).records([["add", 1]]))
    assert (error.value.index, error.value.applied_index) == (index, 5)
    assert applier.failure is None
    assert (applier.applied_index, applier.digest, applier.state()) == (5, EMPTY_DIGEST, "42")


def test_an_applier_continues_where_another_stopped() -> None:
    frames = Frames()
    first, second = frames.records([["add", "0.1"], ["div", 3]]), frames.records([["mul", "1e9999"], ["sub", 5]])
    whole = Applier(ArithmeticMachine())
    whole.apply(first)
    machine = ArithmeticMachine()
    machine.restore(whole.machine.snapshot())
    resumed = Applier(machine, boundary=boundary_at(whole.applied_index, whole.digest))
    assert whole.apply(second) == resumed.apply(second)
    assert (whole.digest, whole.state()) == (resumed.digest, resumed.state())


def test_contexts_are_a_sequence() -> None:
    contexts = Contexts(10, 3, 2, 99)
    expected = [Context(10, 2, 99), Context(11, 2, 99), Context(12, 2, 99)]
    assert len(contexts) == 3
    assert list(contexts) == expected
    assert [contexts[position] for position in range(3)] == expected
    assert contexts[-1] == expected[-1]
    assert contexts[1:] == expected[1:]
    for position in (3, -4):
        with pytest.raises(IndexError):
            contexts[position]
