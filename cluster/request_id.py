"""The id of an HTTP request to a node, `Quire-Request-Id`, by which its answer is known.

HTTP matches the answers on a connection to its requests by their order alone. If anything on the way doubles one, each
later caller gets the answer to the call before. So whoever keeps connections to nodes gives each request an id that is
not used twice. Every node returns it. An answer with another id is dropped, and its connection closed.
"""

import os
from itertools import count

REQUEST_ID = "Quire-Request-Id"
OTHER_ANSWER = "the answer to another request came"

_PROCESS = os.urandom(6).hex()
_numbers = count(1)


def new_request_id() -> str:
    """An id that no other request has."""
    return f"{_PROCESS}-{next(_numbers):x}"


def hop_id(request_id: str) -> str:
    """The id with which a node passes a request on: that of its caller, who may use it twice, and a number."""
    return f"{request_id}:{next(_numbers):x}"
