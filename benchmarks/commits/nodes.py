"""Three nodes of the quire that is installed for this interpreter: one side of `benchmarks.commits`.

Prints one line of JSON once they are ready, and stops them when its standard input ends. It imports nothing else from
this repository, because it runs with other commits' quire.
"""

import asyncio
import json
import sys
from pathlib import Path

from quire.cluster.client import connect
from quire.cluster.demo.nodes import DemoNodes

READY_TIMEOUT_S = 60.0


async def serve(folder: Path) -> None:
    """Run the nodes below this folder."""
    nodes = DemoNodes(folder)
    try:
        await nodes.start()
        async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client:
            await asyncio.gather(*map(client.ready, nodes.addresses.values()))
            leader = str((await client.status())["leader"])
        document = {"leader": leader, "addresses": nodes.addresses, "process_ids": nodes.process_ids}
        print(json.dumps(document), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await nodes.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
