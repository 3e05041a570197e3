"""What the application holds for its handlers."""

from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from ..node import Node

NODE: web.AppKey["Node"] = web.AppKey("node")
FORWARDING: web.AppKey[aiohttp.ClientSession] = web.AppKey("forwarding", aiohttp.ClientSession)
