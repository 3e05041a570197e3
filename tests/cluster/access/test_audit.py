"""The audit log: a stranger cannot fill a disk with it, nor hide in it."""

from structlog.testing import capture_logs

from quire.cluster.access.audit import MAX_KNOWN, REFUSALS_IN_SECOND, Audit


def test_equal_refusals_are_one_line_in_a_second_and_counted() -> None:
    with capture_logs() as lines:
        audit = Audit()
        for _ in range(1000):
            audit.refused("nobody", "10.0.0.9", "GET /status", "unauthorized", "x")
        audit.refused("nobody", "10.0.0.8", "GET /status", "unauthorized", "y")

    refused = [line["address"] for line in lines]
    assert {"10.0.0.9", "10.0.0.8"} == set(refused)
    assert len(refused) <= 1 + 2, "1,000 calls may fall into two or three seconds"
    assert sum(line.get("left_out", 0) for line in lines) == 1001 - len(refused)


def test_unequal_refusals_have_a_limit_in_all() -> None:
    with capture_logs() as lines:
        audit = Audit()
        for number in range(10 * REFUSALS_IN_SECOND):
            audit.refused("nobody", f"10.0.{number // 256}.{number % 256}", "GET /status", "unauthorized", "x")

    assert REFUSALS_IN_SECOND <= len(lines) <= 3 * REFUSALS_IN_SECOND


def test_a_token_is_told_of_once_from_each_address_and_forgotten_when_others_come() -> None:
    with capture_logs() as lines:
        audit = Audit()
        for address in ("a", "b", "a"):
            audit.used("app", address, "POST /commands", "x")
        assert [line["address"] for line in lines] == ["a", "b"]
        for number in range(MAX_KNOWN):
            audit.used("app", str(number), "POST /commands", "x")
        lines.clear()
        audit.used("app", "a", "POST /commands", "x")

    assert [line["address"] for line in lines] == ["a"]
