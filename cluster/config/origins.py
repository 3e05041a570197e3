"""Host names and web origins: in the setting `allow`, and in the headers of a request."""

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

HOST_LENGTH = 262
"""Of the longest name, its dot, a colon and a port."""

_PORT = r"(:[0-9]{0,5})?"
_HOST = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+){_PORT}")
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+){_PORT}")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def name_in(host: str) -> str | None:
    """The name in HOST or HOST:PORT, in lower case; empty for an IP address, None if it is neither."""
    return _name_in(host) if len(host) <= HOST_LENGTH else None


@lru_cache(maxsize=256)  # A node is dialled by few names, on every request.
def _name_in(host: str) -> str | None:
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    name = match[1].lower().removesuffix(".")
    try:
        if name.startswith("["):
            IPv6Address(name[1:-1])
        else:
            IPv4Address(name)
    except AddressValueError:
        return None if name.startswith("[") else name or None
    return ""


def origin_in(text: str) -> str | None:
    """An origin as a browser writes it: in lower case, without a default port. None if it is none, such as `null`."""
    match = _ORIGIN.fullmatch(text.lower()) if len(text) <= HOST_LENGTH else None
    if match is None:
        return None
    return match[0].removesuffix(_DEFAULT_PORTS.get(match[1], ":"))


def _checked(text: str) -> str:
    """An origin, which contains `://`, or a host name, in the form that requests have."""
    if "://" in text or text == "null":  # What a page that hides its origin sends.
        origin = origin_in(text)
        if origin is None:
            raise ValueError(
                f"{text!r} is not an origin; write it as in https://dashboard.example.org:8443, without a path"
            )
        return origin
    name = name_in(text) if ":" not in text else None
    if not name:
        raise ValueError(
            f"{text!r} is not a host name; give the name alone, as in quire.example.org, or an origin with its scheme"
        )
    return name


def _parse_list(value: object) -> object:
    """The comma-separated parts of a string, or of a list of strings (a repeated flag)."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return tuple(part.strip() for text in texts for part in text.split(","))


Allow = Annotated[
    tuple[Annotated[str, AfterValidator(_checked)], ...],
    BeforeValidator(_parse_list),
    NoDecode,
    Field(
        default_factory=tuple,
        description="Host names and web origins to accept in addition to the node's own. Give a host name, such as a "
        "load balancer's, without a port: requests to any other name are refused, because a web page may have chosen "
        "it. Give an origin with its scheme, as in https://quire.example.org: its web pages may do everything that a "
        "client may. May be repeated.",
    ),
]
