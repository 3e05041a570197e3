"""Query parameters, read strictly: an unknown or repeated one is refused, and so is a number that is none."""

import re
from collections.abc import Mapping

from aiohttp import web

from ..errors import Malformed

INDEX_HIGHEST = 2**64 - 1


def parameters_of(request: web.Request, *known: str) -> Mapping[str, str]:
    """The query's parameters, each at most once. Raises Malformed."""
    query = request.query
    for name in query:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise Malformed(f"query parameter {name!r} is not known to {request.method} {request.path}; {takes}")
        if len(query.getall(name)) > 1:
            raise Malformed(f"query parameter {name!r} is given more than once")
    return query


def integer_of(parameters: Mapping[str, str], name: str, highest: int = INDEX_HIGHEST) -> int | None:
    """A parameter that is an int from 0 to `highest`; None where it is absent. Raises Malformed."""
    text = parameters.get(name)
    return None if text is None else parse_integer(text, name, highest)


def parse_integer(text: str, name: str, highest: int = INDEX_HIGHEST) -> int:
    """The text as an int from 0 to `highest`. Raises Malformed."""
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > highest:
        raise Malformed(f"{name} must be an integer from 0 to {highest}, not {text[:24]!r}")
    return int(text)
