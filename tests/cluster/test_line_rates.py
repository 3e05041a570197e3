"""Each kind of line in the journal has a rate, whoever causes it, and what is left out is counted and said."""

import json
import logging
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from quire.cluster.access.audit import AUDIT_LOG
from quire.cluster.serve.journal import (
    ALARMS_PER_SECOND,
    BURST_LINES,
    BURST_PER_SECOND,
    KINDS_LIMIT,
    LineRates,
    configure_logging,
)
from quire.log import pack
from quire.replication.core.messages import ControlMessage, Heartbeat, Promise
from quire.replication.net.wire import encode
from tests.cluster.malformed.trial import FOLLOWER, LEADER, Trial, world

MANY = 2_000


class Journal:
    """What a process has written, a line an item. It stands for the queue of stderr."""

    def __init__(self) -> None:
        self.text = ""
        self.rates: Any = None
        self._began = time.monotonic()

    def write(self, text: str) -> None:
        self.text += text

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def counted(self) -> Counter[str]:
        return Counter(line["event"] for line in self.lines)

    @property
    def left_out(self) -> int:
        """How many lines are said to have been left out."""
        return sum(line.get("left_out", 0) + sum(line.get("kinds", {}).values()) for line in self.lines)

    @property
    def most(self) -> float:
        """How many lines of a kind there may be by now."""
        return BURST_LINES + BURST_PER_SECOND * (time.monotonic() - self._began) + 1


@contextmanager
def journal() -> Generator[Journal]:
    """What a node's process sets up, with a journal that a test can read."""
    handlers, level, configured = logging.root.handlers[:], logging.root.level, structlog.get_config()
    written = Journal()
    try:
        written.rates = configure_logging("json", "n1", written)  # type: ignore[arg-type]
        structlog.configure(cache_logger_on_first_use=False)  # The next test has another journal.
        yield written
    finally:
        structlog.configure(**configured)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_kind_of_line_has_a_rate_and_what_is_left_out_is_counted_in_its_next_line() -> None:
    clock = Clock()
    with capture_logs(processors=[LineRates(clock)]) as lines:
        log = structlog.get_logger()
        for number in range(BURST_LINES + 5):
            log.warning("refused by a stranger", number=number)
            log.info("another kind" if number == BURST_LINES else "one of few", number=number)
        clock.now += 1 / BURST_PER_SECOND
        log.warning("refused by a stranger", number=-1)
        log.warning("refused by a stranger", number=-2)

    of_kind = [(line["number"], line.get("left_out")) for line in lines if line["event"] == "refused by a stranger"]
    assert of_kind == [*((number, None) for number in range(BURST_LINES)), (-1, 5)]
    assert [line["event"] for line in lines].count("another kind") == 1


def test_what_was_left_out_is_said_though_no_line_of_its_kind_follows() -> None:
    rates = LineRates(Clock())
    with capture_logs(processors=[rates]) as lines:
        for _ in range(MANY):
            structlog.get_logger().info("role")
        rates.say()
        rates.say()

    assert len(lines) == BURST_LINES + 1, "it is said once"
    assert lines[-1]["kinds"] == {"role": MANY - BURST_LINES}
    assert rates.left_out == MANY - BURST_LINES


def test_an_alarm_that_is_repeated_leaves_room_for_another() -> None:
    clock = Clock()
    with capture_logs(processors=[LineRates(clock)]) as lines:
        for _ in range(60):
            for _ in range(MANY // 60):
                structlog.get_logger().error("alarm", text="a second process of n2 runs with the same disk")
            clock.now += 1.0
        for number in range(int(ALARMS_PER_SECOND)):
            structlog.get_logger().error("alarm", text=f"the disk of n{number} is failing")

    texts = Counter(line["text"] for line in lines)
    assert texts["a second process of n2 runs with the same disk"] == 60
    assert [texts[f"the disk of n{number} is failing"] for number in range(int(ALARMS_PER_SECOND))] == [1] * 10


def test_kinds_that_are_made_of_values_share_a_rate_and_fill_no_memory() -> None:
    with capture_logs(processors=[LineRates(Clock())]) as lines:
        for number in range(10 * KINDS_LIMIT):
            structlog.get_logger().info(f"a line about {number}")
        written = len(lines)
        structlog.get_logger().error("alarm", text="the disk of n2 is failing")

    assert written == KINDS_LIMIT + BURST_LINES
    assert len(lines) == written + 1, "an alarm has its own"


def test_tokens_of_any_number_leave_a_rate_to_quire_s_own_kinds_and_to_other_callers() -> None:
    audit, rates = structlog.get_logger(AUDIT_LOG, log=AUDIT_LOG), LineRates(Clock())
    with capture_logs(processors=[rates]) as lines:
        for _ in range(MANY):
            audit.warning("refused", who="ci-0", why="forbidden")
        for number in range(3 * KINDS_LIMIT):
            audit.info("token used from a new address", who=f"ci-{number}")
        for number in range(MANY):
            audit.warning("refused", who="nobody", token=f"{number:012x}")
        written = len(lines)
        structlog.get_logger().error("alarm", text="the disk of n2 is failing")
        structlog.get_logger().error("the machine has failed")
        audit.info("call", who="operator")
        rates.say()

    assert [line["event"] for line in lines[written:-1]] == ["alarm", "the machine has failed", "call"]
    assert sum(lines[-1]["kinds"].values()) == rates.left_out, "also of kinds that were forgotten"
    assert rates.left_out + written == 2 * MANY + 3 * KINDS_LIMIT


def test_a_caller_that_fills_the_audit_log_hides_no_line_of_another() -> None:
    audit = structlog.get_logger(AUDIT_LOG, log=AUDIT_LOG)
    with capture_logs(processors=[LineRates(Clock())]) as lines:
        for number in range(MANY):
            audit.info("call", who="app", subject=f"cursor {number}", action="take")
            audit.warning("refused", who="nobody", token=f"{number:012x}")
        audit.info("call", who="operator", subject="mail", action="rewind to 0")
        audit.warning("refused", who="worker", subject="mail")

    assert Counter(line["who"] for line in lines) == {"app": 100, "nobody": 100, "operator": 1, "worker": 1}


def test_lines_of_every_library_and_their_tracebacks_fill_no_disk() -> None:
    with journal() as written:
        for number in range(MANY):
            try:
                raise ValueError(number)
            except ValueError:
                logging.getLogger("asyncio").exception("Exception in callback %d", number)
                structlog.get_logger().exception("PySyncObj failed and is rebuilt")
            logging.getLogger("pysyncobj.syncobj").critical("truncating entries from index %d", number)

        assert len(written.lines) <= 3 * written.most
        assert written.text.count("Traceback") <= 2 * written.most
        written.rates.say()

    assert written.left_out + len(written.lines) - 1 == 3 * MANY


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
async def test_a_member_that_lies_fills_no_journal(tmp_path: Path, role: str) -> None:
    async with world(tmp_path, election_timeout_ms=250, heartbeat_ms=25) as strange:
        trial, me = Trial(strange, 1), strange.member.info
        target = await trial.node(role)
        core = target.node.components.replica.core
        with journal() as written:
            async with strange.member.dialled(target.config.listen, target.config.node) as line:
                for number in range(1, MANY):
                    promise = Promise(core.promise.epoch + 1, me.node_id, me.incarnation)
                    await line.socket.send_bytes(encode(Heartbeat(promise, number, 0)))  # A leader follows it.
                    await line.socket.send_bytes(encode(ControlMessage(pack([2, "no integer"]))))
                    if number % 10 == 0:
                        assert await line.listens()
            counted, most = written.counted(), written.most
            written.rates.say()

    assert counted["a message to the control plane was dropped"] >= BURST_LINES
    assert counted["role"] >= (BURST_LINES if role == LEADER else 0), "each heartbeat changes a leader's role"
    assert {kind: lines for kind, lines in counted.items() if lines > most} == {}
    assert written.left_out > MANY // 2
    assert "Traceback" not in written.text
