"""The HTTP API of a node, as an aiohttp application; `app.make_app` builds it."""
