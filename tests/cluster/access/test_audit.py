"""The audit log: a stranger cannot fill a disk with it, nor hide in it."""

from collections import Counter

from structlog.testing import capture_logs

from quire.cluster.access.audit import LINES_PER_SECOND, MAX_KNOWN, SUBJECT_CHARACTERS, Audit, Call
from quire.cluster.serve.journal import LineRates

NOW = 17.0
BY_STRANGER = Call("nobody", "10.0.0.9", "GET /status", "x")
BY_APP = Call("app", "10.0.0.1", "POST /commands", "x")


def test_equal_refusals_are_one_line_in_a_second_and_counted() -> None:
    now = [NOW]
    with capture_logs(processors=[LineRates(lambda: now[0])]) as lines:
        audit = Audit()
        for number in range(1000):
            audit.refused(BY_STRANGER._replace(request_id=str(number)), "unauthorized", "0123456789ab")
        audit.refused(BY_STRANGER, "unauthorized", "another")
        now[0] += 1
        audit.refused(BY_STRANGER, "unauthorized", "0123456789ab")

    assert [(line["token"], line.get("left_out")) for line in lines] == [
        ("0123456789ab", None),
        ("another", 999),
        ("0123456789ab", None),
    ]


def test_unequal_refusals_have_a_limit_in_all() -> None:
    with capture_logs(processors=[LineRates(lambda: NOW)]) as lines:
        audit = Audit()
        for number in range(10 * LINES_PER_SECOND):
            audit.refused(BY_STRANGER._replace(address=f"10.0.{number // 256}.{number % 256}"), "unauthorized", "")

    assert len(lines) == LINES_PER_SECOND


def test_a_token_that_comes_from_ever_new_addresses_fills_no_journal_and_hides_no_refusal() -> None:
    rates = LineRates(lambda: NOW)
    with capture_logs(processors=[rates]) as lines:
        audit = Audit()
        for number in range(3_000):
            audit.used(BY_APP._replace(address=f"fd00::{number:x}"))
        audit.refused(BY_STRANGER, "unauthorized", "")
        audit.called(BY_APP._replace(who="admin"), 200, is_admin=True)
        rates.say()

    assert [line["event"] for line in lines].count("token used from a new address") == LINES_PER_SECOND
    assert [line["event"] for line in lines[-3:-1]] == ["refused", "admin call"]
    assert lines[-1]["kinds"] == {"quire.audit token used from a new address app": 3_000 - LINES_PER_SECOND}


def test_no_call_that_may_have_changed_something_is_left_out() -> None:
    by_admin, rates = BY_APP._replace(who="admin"), LineRates(lambda: NOW)
    with capture_logs(processors=[rates]) as lines:
        audit = Audit()
        for _ in range(LINES_PER_SECOND):
            audit.called(by_admin._replace(what="GET /admin/genesis"), 200, is_admin=True)
            audit.called(BY_APP._replace(what="PUT /cursors/{cursor}", subject="a"), 503, is_admin=False)
        for number in range(LINES_PER_SECOND + 1):
            audit.called(by_admin._replace(what="HEAD /admin/genesis"), 200, is_admin=True)
            audit.called(by_admin._replace(what="DELETE /members/{node}", subject="n9"), 404, is_admin=True)
            status = (200, 500, 504)[number % 3]
            audit.called(by_admin._replace(what="DELETE /members/{node}", subject="n3"), status, is_admin=True)
            audit.called(BY_APP._replace(what="PUT /cursors/{cursor}", subject="b"), status, is_admin=False)

    assert Counter((line["who"], line["subject"]) for line in lines if "subject" in line) == {
        ("app", "a"): LINES_PER_SECOND,
        ("admin", "n3"): LINES_PER_SECOND + 1,
        ("app", "b"): LINES_PER_SECOND + 1,
    }
    assert rates.left_out == 2 * (LINES_PER_SECOND + 1), "reads, and calls that were refused"


def test_a_token_is_told_of_once_from_each_address_and_forgotten_when_others_come() -> None:
    with capture_logs() as lines:
        audit = Audit()
        for address in ("a", "b", "a"):
            audit.used(BY_APP._replace(address=address))
        assert [line["address"] for line in lines] == ["a", "b"]
        for number in range(MAX_KNOWN):
            audit.used(BY_APP._replace(address=str(number)))
        lines.clear()
        audit.used(BY_APP._replace(address="a"))

    assert [line["address"] for line in lines] == ["a"]


def test_a_token_that_sets_many_cursors_makes_no_other_token_new() -> None:
    with capture_logs() as lines:
        audit = Audit()
        audit.used(BY_APP._replace(who="other"))
        for number in range(MAX_KNOWN + 1):
            by_app = BY_APP._replace(what="PUT /cursors/{cursor}", subject=f"{number % MAX_KNOWN}", action="set")
            audit.called(by_app, 200, is_admin=False, once=True)
        audit.used(BY_APP._replace(who="other"))

    assert [line["who"] for line in lines] == ["other", *["app"] * MAX_KNOWN]


def test_what_a_call_is_about_is_cut_off_at_its_limit() -> None:
    with capture_logs() as lines:
        Audit().called(BY_APP._replace(subject="s" * SUBJECT_CHARACTERS), 200, is_admin=False)
        Audit().called(BY_APP._replace(subject="s" * (SUBJECT_CHARACTERS + 1)), 200, is_admin=False)

    assert [line["subject"] for line in lines] == ["s" * SUBJECT_CHARACTERS] * 2
