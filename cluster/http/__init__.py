"""The HTTP API of a node: DESIGN 7 as an aiohttp application over the face of `quire.cluster.node.node.Node`.

`app.make_app` makes it. Nothing is imported here, so that the command line can use `encoding` without a node.
"""
