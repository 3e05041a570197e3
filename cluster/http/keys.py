"""What the application holds for its handlers."""

from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from ..node.metrics import Metrics
from .admission.door import Door
from .admission.inflow import Inflow
from .admission.outflow import Outflow
from .admission.places import Places
from .admission.waiting import Waiting
from .admission.windows import Windows

if TYPE_CHECKING:
    from ..node.node import Node

NODE: web.AppKey["Node"] = web.AppKey("node")
CARRYING: web.AppKey[aiohttp.ClientSession] = web.AppKey("carrying", aiohttp.ClientSession)
FORWARDING: web.AppKey[aiohttp.ClientSession] = web.AppKey("forwarding", aiohttp.ClientSession)
DOOR: web.AppKey[Door] = web.AppKey("door", Door)
WINDOWS: web.AppKey[Windows] = web.AppKey("windows", Windows)
INFLOW: web.AppKey[Inflow] = web.AppKey("inflow", Inflow)
OUTFLOW: web.AppKey[Outflow] = web.AppKey("outflow", Outflow)
ASKING: web.AppKey[aiohttp.ClientSession] = web.AppKey("asking", aiohttp.ClientSession)
METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)
STREAMS: web.AppKey[Places] = web.AppKey("streams", Places)
WAITING: web.AppKey[Waiting] = web.AppKey("waiting", Waiting)
KNOWN_HEADERS: web.AppKey[frozenset[str]] = web.AppKey("known_headers", frozenset)
