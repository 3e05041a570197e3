"""A promise: a node's durable word to follow no lower epoch, and whom in this one (rule 1)."""

import re
from dataclasses import dataclass

MAX_NODE_ID_BYTES = 24
NODE_ID = re.compile(rf"[a-z0-9-]{{1,{MAX_NODE_ID_BYTES}}}")


@dataclass(frozen=True, slots=True)
class Promise:
    """(epoch, candidate, incarnation): the whole triple, since a restarted candidate is another candidate.

    Raft's (currentTerm, votedFor), with the incarnation added: a candidate that crashed after it collected promises and
    before it led has lost what it knew of them, so what was promised to it binds nobody to its successor.
    """

    epoch: int
    candidate: str
    incarnation: int


NO_PROMISE = Promise(0, "", 0)
