"""What must not come of malformed input: a fault in the journal, and memory that stays."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

import psutil
import pytest
from structlog.testing import capture_logs

MIB = 1 << 20
GROWTH_BYTES = 20 * MIB
"""What so much of it may leave in a process, the allocator's holes included."""
FAULTS = (
    "Traceback",
    "exception",
    "request failed",
    "a fault while",
    "unraisable",
    "never retrieved",
    "a fault of this program",
)


@contextmanager
def no_faults(caplog: pytest.LogCaptureFixture) -> Generator[None, None, None]:
    """Check that nothing which a journal would show is a fault of the program."""
    caplog.clear()
    with capture_logs() as said:
        yield
    lines = [*(repr(line) for line in said), *(record.getMessage() for record in caplog.records)]
    assert [line for line in lines if any(fault in line for fault in FAULTS)] == []
    assert [line for line in said if line.get("exc_info")] == []
    assert [record for record in caplog.records if record.exc_info] == []


def resident() -> int:
    """The bytes of this process, without what is garbage now."""
    gc.collect()
    return psutil.Process().memory_info().rss
