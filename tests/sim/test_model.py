"""The model of the answers finds wrong ones."""

from unittest.mock import ANY

import pytest

from quire.cluster.simulator.machine import Model, ModelBroken, Reply, Tally
from quire.log import Frame, Kind, decode_header, encode_frame, encode_records, encode_system


class Frames:
    def __init__(self) -> None:
        self.index = 0

    def of(self, *commands: object, session: int = 0, sequence: int = 0) -> Frame:
        return self._frame(encode_records(list(commands)), len(commands), Kind.RECORDS, session, sequence)

    def open(self, name: str | None = None) -> Frame:
        return self._frame(encode_system({"type": "open_session", "name": name}), 1, Kind.SYSTEM, 0, 0)

    def _frame(self, payload: bytes, count: int, kind: Kind, session: int, sequence: int) -> Frame:
        raw = encode_frame(
            index=self.index,
            epoch=1,
            timestamp=1,
            count=count,
            prev_crc32c=0,
            kind=kind,
            payload=payload,
            session=session,
            sequence=sequence,
        )
        self.index += count
        return Frame(decode_header(raw), payload)


def test_a_retry_is_answered_as_before_and_a_gap_refused() -> None:
    frames, model = Frames(), Model()
    model.apply(frames.open())
    first = model.apply(frames.of(1, 2))
    assert [reply.result for reply in first] == [[1, ANY], [2, ANY]]
    frames, model = Frames(), Model()
    frames.index = 5
    model.apply(frames.open())
    done = model.apply(frames.of(1, session=5, sequence=1))
    assert model.apply(frames.of(1, session=5, sequence=1)) == done
    assert model.apply(frames.of(9, session=5, sequence=1)) == [Reply(None, "SEQUENCE_REUSED")]
    assert model.apply(frames.of(9, session=5, sequence=3)) == [Reply(None, "SEQUENCE_GAP")]
    assert model.executed_at == {1: 6}


def test_a_name_that_is_opened_again_fences_the_old_session_and_goes_on_with_its_sequence() -> None:
    frames, model = Frames(), Model()
    frames.index = 5
    model.apply(frames.open("a"))
    model.apply(frames.of(1, session=5, sequence=1))
    assert model.apply(frames.open("a")) == [Reply({"session": 7, "sequence": 1})]
    assert model.apply(frames.of(2, session=5, sequence=2)) == [Reply(None, "SESSION_FENCED")]
    assert model.apply(frames.of(2, session=7, sequence=2))[0].code is None


def test_a_command_that_executes_twice_is_found() -> None:
    frames, model = Frames(), Model()
    model.apply(frames.of(1))
    with pytest.raises(ModelBroken, match="1 executes at 0 and again at 1"):
        model.apply(frames.of(1))


def test_a_command_that_was_said_not_to_be_appended_is_found() -> None:
    frames, model = Frames(), Model()
    model.never.add(3)
    with pytest.raises(ModelBroken, match="it was not appended"):
        model.apply(frames.of(3))


def test_a_refused_command_changes_nothing() -> None:
    frames, model = Frames(), Model()
    assert model.apply(frames.of(23)) == [Reply(None, "NO")]
    assert model.states[1] == [0, 0] == Tally().query(None)
