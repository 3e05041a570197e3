"""The budget of file descriptors. The sum of these must not exceed the limit of the process:

connections of clients and the peers' reserve, and a connection to the leader for each carried stream
the log: two for each open read segment
the rest of the process: `NODE_FILES` or `LOG_FILES`
"""

from quire.log import open_segments_of

from ..errors import ClusterError
from ..http.admission.connections import CONNECTIONS_LIMIT

OWN_FILES = 64
"""The lock, the mark, the promise, snapshots being written, read and sent, the event loop, standard streams."""
FEWEST_CONNECTIONS = 16


class TooFewFiles(ClusterError):
    """The process may open fewer files than it needs; the text says how many."""


def connections_of(files: int, reserve: int, own: int, streams: int) -> int:
    """Return how many client connections a process may have that may open `files`; negative `files`: any number.

    `reserve` more are for peers, `own` descriptors are for the rest. Each of `streams` may need another connection.

    Raises:
        TooFewFiles: too few connections would be left.
    """
    if files < 0:
        return CONNECTIONS_LIMIT
    room = files - reserve - own - 2 * open_segments_of(files)
    # Each of the first connections may be a stream, and need another one.
    connections = room // 2 if room < 2 * streams else room - streams
    if connections < FEWEST_CONNECTIONS:
        raise TooFewFiles(
            f"this process may open {files} files, which leaves {max(0, connections)} for connections and is too few; "
            "raise the limit (`ulimit -Hn`, `LimitNOFILE=` of systemd) to 4096 or more"
        )
    return min(connections, CONNECTIONS_LIMIT)


def files_needed(connections: int, reserve: int, own: int, open_segments: int, streams: int) -> int:
    """Return the maximum number of files that a process opens with these limits."""
    return connections + min(connections, streams) + reserve + own + 2 * open_segments
