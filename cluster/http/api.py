"""What the handlers of a node's routes use: the node's parts (`NodeView`), hops to other nodes, and limits on callers.

No handler starts or stops the node.
"""

from dataclasses import dataclass, field

from aiohttp import web

from ..errors import ClusterError
from ..node.components import NodeView
from ..node.views.metrics import Metrics
from .admission.concurrency import LongPollLimit, SessionLimit
from .admission.decoding import DecodingTurns
from .admission.openings import SessionOpenings
from .admission.streams import StreamLimit
from .forwarding import LeaderHop
from .members import MemberStatuses


@dataclass(slots=True)
class NodeApi:
    """A node's parts, its hops to others, its metrics, and limits on callers."""

    node: NodeView
    leader: LeaderHop
    members: MemberStatuses
    metrics: Metrics
    streams: StreamLimit
    long_polls: LongPollLimit = field(default_factory=LongPollLimit)
    leader_polls: LongPollLimit = field(default_factory=lambda: LongPollLimit("GET /leader wait for another leader"))
    sessions: SessionLimit = field(default_factory=SessionLimit)
    openings: SessionOpenings = field(default_factory=SessionOpenings)
    decoding: DecodingTurns = field(init=False)

    def __post_init__(self) -> None:
        self.decoding = DecodingTurns(self._refusal)

    def _refusal(self) -> ClusterError | None:
        return None if self.node.formed is None else self.node.formed.writing.refusal


API: web.AppKey[NodeApi] = web.AppKey("api", NodeApi)
