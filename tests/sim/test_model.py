"""The model of the answers finds wrong ones."""

from collections.abc import Sequence
from random import Random
from unittest.mock import ANY

import pytest

from quire.cluster.simulator.consuming.model import NEVER_BACK, OLD_TOKEN, CursorModel
from quire.cluster.simulator.machine import Model, ModelBroken, Reply, Tally
from quire.log import Frame, Kind, decode_header, encode_frame, encode_records, encode_system
from quire.sm import CursorRow, Cursors, cursors_record

OURS, THEIRS = b"o" * 16, b"t" * 16


class Frames:
    def __init__(self) -> None:
        self.index = 0

    def of(self, *commands: object, session: int = 0, sequence: int = 0) -> Frame:
        return self._frame(encode_records(list(commands)), len(commands), Kind.RECORDS, session, sequence)

    def open(self, name: str | None = None) -> Frame:
        return self._frame(encode_system({"type": "open_session", "name": name}), 1, Kind.SYSTEM, 0, 0)

    def cursors(self, *rows: CursorRow, deleted: Sequence[str] = ()) -> Frame:
        return self._frame(encode_system(cursors_record(rows, deleted)), 1, Kind.SYSTEM, 0, 0)

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


def results_of(model: Model, frame: Frame) -> object:
    [reply] = model.apply(frame)
    assert reply.code is None
    return reply.result


def test_the_model_moves_a_cursor_forward_and_back_only_with_rewind() -> None:
    frames, model = Frames(), Model()
    frames.index = 9
    assert results_of(model, frames.cursors(CursorRow("a", 5), CursorRow("a", 4))) == [[5], ["CURSOR_BACK", 5]]
    assert results_of(model, frames.cursors(CursorRow("a", 5), CursorRow("a", 4, rewind=True))) == [[5], [4]]
    assert results_of(model, frames.cursors(CursorRow("a", 11), CursorRow("a", 12))) == [[11], ["CURSOR_BEYOND", 11]]
    assert results_of(model, frames.cursors(CursorRow("a", 12, expected=4))) == [["CURSOR_MOVED", 11]]
    assert results_of(model, frames.cursors(deleted=["a", "a"])) == [[11], ["CURSOR_UNKNOWN", None]]


def test_the_model_refuses_a_former_holder_and_after_a_history_record_every_holder() -> None:
    frames, model = Frames(), Model()
    taken = [CursorRow("a", 0, token=token, take=True) for token in (OURS, THEIRS)]
    assert results_of(model, frames.cursors(*taken, CursorRow("a", 0, token=OURS))) == [[0], [0], ["CURSOR_TAKEN", 0]]
    assert results_of(model, frames.cursors(CursorRow("a", 1, token=THEIRS))) == [[1]]
    before = model.cursors.table
    model.cursors.end_history()
    assert results_of(model, frames.cursors(CursorRow("a", 1, token=THEIRS))) == [["CURSOR_TAKEN", 1]]
    assert before == {"a": (1, 0, THEIRS, "")}, "the cursors of an earlier index do not change"


def test_results_that_move_a_cursor_back_or_by_an_old_token_break_a_rule_of_their_own() -> None:
    model = Model().cursors
    model.apply(9, cursors_record([CursorRow("a", 5, token=OURS, take=True)]))
    back, late = cursors_record([CursorRow("a", 4)]), cursors_record([CursorRow("a", 6, token=THEIRS)])
    rewound = cursors_record([CursorRow("a", 4, rewind=True)])
    assert model.broken_by(back, [[4]]) == NEVER_BACK
    assert model.broken_by(late, [[6]]) == OLD_TOKEN
    assert not model.broken_by(back, [["CURSOR_BACK", 5]])
    assert not model.broken_by(late, [["CURSOR_TAKEN", 5]])
    assert not model.broken_by(rewound, [[4]])


def test_the_model_and_the_shipped_cursors_agree_on_any_rows() -> None:
    random, model, cursors = Random(46), CursorModel(), Cursors()
    seen = set[object]()
    for end in range(1, 3_000):
        rows = [
            CursorRow(
                random.choice("ab"),
                random.choice((0, end // 2, end - 1, end, end + 1)),
                random.choice((None, None, end - 1, end // 2)),
                random.random() < 0.2,
                random.choice((None, 0, 7)),
                token := random.choice((None, OURS, THEIRS)),
                token is not None and random.random() < 0.3,
                random.choice((None, None, "ours", "theirs", "")),
            )
            for _ in range(random.randint(1, 3))
        ]
        fields = cursors_record(rows, random.choices("ab", k=random.random() < 0.1))
        if random.random() < 0.01:
            model.end_history()
            cursors.end_history()
        results = cursors.apply(end, fields)
        assert model.apply(end, fields) == results
        seen |= {result[0] for result in results if len(result) > 1}
        model.ends_at(end + 1)
        assert model.sorted_at(end + 1) == cursors.all()
    assert seen == {"CURSOR_BACK", "CURSOR_BEYOND", "CURSOR_MOVED", "CURSOR_TAKEN", "CURSOR_UNKNOWN"}
