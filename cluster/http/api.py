"""The objects that an application holds for its middleware and handlers."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from ..node.metrics import Metrics
from .admission.addresses import address_of
from .admission.browsers import BrowserGuard
from .admission.concurrency import LongPollLimit, OneATurn, SessionLimit
from .admission.connections import ConnectionLimit
from .admission.decoding import DecodingTurns
from .admission.openings import SessionOpenings
from .admission.slow_callers import RequestBodyLimit, ResponseBodyLimit
from .admission.streams import StreamLimit
from .request import FORWARDED

if TYPE_CHECKING:
    from ..node.node import Node
    from .forwarding import LeaderHop
    from .routes.cluster import MemberStatuses


@dataclass(slots=True)
class Admission:
    """The limits that apply to every request of a server."""

    connections: ConnectionLimit
    browsers: BrowserGuard
    members: Container[str] = ()
    request_bodies: RequestBodyLimit = field(default_factory=RequestBodyLimit)
    response_bodies: ResponseBodyLimit = field(default_factory=ResponseBodyLimit)

    def origin_of(self, request: web.Request) -> str:
        """What the request counts against: the member that forwarded it, or else the address that it came from."""
        member = request.headers.get(FORWARDED)
        if member is not None and member in self.members:
            return f"member {member}"
        return "" if request.transport is None else address_of(request.transport.get_extra_info("peername"))


@dataclass(slots=True)
class NodeApi:
    """What the handlers of a node's routes use: the node, its hops to others, its metrics, and limits on callers."""

    node: "Node"
    leader: "LeaderHop"
    members: "MemberStatuses"
    metrics: Metrics
    streams: StreamLimit = field(default_factory=StreamLimit)
    long_polls: LongPollLimit = field(default_factory=LongPollLimit)
    ranges: OneATurn = field(default_factory=OneATurn)
    sessions: SessionLimit = field(default_factory=SessionLimit)
    openings: SessionOpenings = field(default_factory=SessionOpenings)
    decoding: DecodingTurns = field(init=False)

    def __post_init__(self) -> None:
        self.decoding = DecodingTurns(lambda: self.node.refusal)


ADMISSION: web.AppKey[Admission] = web.AppKey("admission", Admission)
API: web.AppKey[NodeApi] = web.AppKey("api", NodeApi)
