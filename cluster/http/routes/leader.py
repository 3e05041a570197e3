"""`GET /leader`: whom this node hears as the leader; a long poll for the next one."""

from aiohttp import web

from ..admission.admission import ADMISSION
from ..api import API
from ..bodies import answer
from ..request import integer_of, parameters_of
from .ranges import WAIT_LIMIT_MS


async def get_leader(request: web.Request) -> web.Response:
    """{"node_id", "leader", "epoch"}: this node, the leader that it hears or null, and the epoch that it knows.

    The leader's address is in `Quire-Leader`. A node that leads names itself once it serves. With `wait_ms` the answer
    comes as soon as there is a leader of an epoch above `epoch`, and at the latest after that time.
    """
    api = request.app[API]
    parameters = parameters_of(request, "epoch", "wait_ms")
    epoch, wait_ms = integer_of(parameters, "epoch") or 0, integer_of(parameters, "wait_ms", WAIT_LIMIT_MS)
    leadership = api.node.leadership
    if wait_ms:
        with api.leader_polls.slot(request, request.app[ADMISSION].origin_of(request)):
            await leadership.heard_above(epoch, wait_ms / 1000)
    document = {"node_id": leadership.node_id, "leader": leadership.serving_leader, "epoch": leadership.role.epoch}
    return answer(request, document)
