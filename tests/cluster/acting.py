"""Requests of a caller that a test names, at all nodes of this process, as if they had sent its token."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from quire.cluster.access.roles import Role
from quire.cluster.access.tokens import Token
from quire.cluster.http.admission.authorization import CALLER, Caller
from quire.cluster.http.app import make_app

NOBODY = Caller(None, Role.ADMIN)
"""The caller at a node without tokens."""


class Acting:
    """Who sends the requests from here on."""

    def __init__(self) -> None:
        self.caller = NOBODY

    @contextmanager
    def as_caller(self, name: str, role: Role = Role.WRITE) -> Generator[None]:
        """Requests in the block are sent by this caller."""
        before, self.caller = self.caller, Caller(name, role, Token(name, name.encode(), role, None))
        try:
            yield
        finally:
            self.caller = before

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Nodes that `running_cluster` starts from here on take their callers from here."""

        @web.middleware
        async def act(request: web.Request, handler: Handler) -> web.StreamResponse:
            request[CALLER] = self.caller
            return await handler(request)

        def acting_app(*arguments: Any) -> web.Application:
            app = make_app(*arguments)
            app.middlewares.append(act)
            return app

        patch.setattr("tests.cluster.running.make_app", acting_app)
