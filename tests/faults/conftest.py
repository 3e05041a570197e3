"""Fixtures of the fault tests."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.toxiproxy import ToxiproxyServer, running_toxiproxy


@pytest.fixture
async def toxiproxy() -> AsyncIterator[ToxiproxyServer]:
    """A toxiproxy server of the test's own, gone afterwards with all its links and toxics."""
    async with running_toxiproxy() as server:
        yield server
