"""The event loop's clock, turned on by a test: a deadline passes once its condition holds, and none sooner.

A test that waits for a short deadline needs luck: everything before it must be done in that time, on a machine that may
stand still for a second. Here the deadlines are long, and the clock is set past them.
"""

import asyncio
from collections.abc import Callable

from tests.replication.loopback import until

PASSED_S = 10_000.0


async def late(condition: Callable[[], bool]) -> None:
    """Once the condition holds, let every deadline of this event loop pass."""
    await until(condition)
    loop = asyncio.get_running_loop()
    time = loop.time
    vars(loop)["time"] = lambda: time() + PASSED_S
