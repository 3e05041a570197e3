"""Rule 0, for a node that belongs to no cluster yet: wait for a genesis, store it, run."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from quire.replication.net.forming import Forming
from quire.replication.replica import watched_task

from ..data_dir.genesis import Genesis, check_genesis, make_genesis, read_genesis
from .opened import Opened


class Formation:
    """One node's. A fault, or whatever else keeps it from running, is told."""

    def __init__(
        self,
        opened: Opened,
        initial: Any,
        then: Callable[[Genesis], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        """Begin. `initial` is the machine's value where this node makes the genesis; `then` runs a formatted node."""
        config = opened.config
        self._opened = opened
        self._then = then
        self._forming: Forming | None = Forming(
            opened.identity,
            config.members[config.node],
            list(config.initial_members),
            opened.secret,
            lambda members: make_genesis(members, opened.machine, initial, config),
        )
        self._task = watched_task(self._form(self._forming), "formation", failed)

    async def _form(self, forming: Forming) -> None:
        opened = self._opened
        try:
            frame = await forming.run(opened.http, opened.urls)
            check_genesis(read_genesis(frame), opened.machine, opened.config)
            await self._then(await asyncio.to_thread(opened.data_dir.format, opened.config.node, frame))
        finally:
            self._forming = None

    async def stop(self) -> None:
        """Return when nothing is waited for any more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle a `/peer` connection."""
        if self._forming is None:
            raise web.HTTPServiceUnavailable
        return await self._forming.serve(request)

    def failures(self) -> dict[str, str]:
        """Why the others are not reached, by node id."""
        return dict(self._forming.failures) if self._forming else {}

    def awaited(self) -> str:
        """The initial members that are not there yet, each with why, where that is known."""
        failures = self.failures()
        awaited = self._forming.awaited() if self._forming else []
        return ", ".join(f"{node} ({failures[node]})" if node in failures else node for node in awaited)
