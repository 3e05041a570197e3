"""Closing a server without losing the connection that it takes at that moment."""

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Take no connection any more; one that is being taken is served as any other.

    asyncio takes a connection in two steps. A server that is closed between them fails an assertion in the second
    (`Server._attach`, of which only asyncio's debug mode tells), and the connection is nobody's: it is found when it is
    collected, as a ResourceWarning of whichever test runs then. So nothing is accepted first, and then one turn of the
    loop lets the second step of what was.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()
