"""A server's side of tokens, as little of it as a test of a client needs."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from quire.cluster.http.problems import problem


class KnownTokens:
    """Lets in who shows one of some tokens."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.refused = 0

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.headers.get("Authorization") in {f"Bearer {token}" for token in self.tokens}:
                return await handler(request)
            self.refused += 1
            return unauthorized(request)

        return check


def unauthorized(_request: web.Request) -> web.Response:
    response = problem(401, "unauthorized", "Unauthorized", "the token is not known", {})
    response.headers["WWW-Authenticate"] = 'Bearer realm="quire"'
    return response
