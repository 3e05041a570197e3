"""`docs/standalone.md`, made from the model: `python -m quire.cluster.standalone.page > docs/standalone.md`."""

import sys

from ..config.page import page_of
from .config import StandaloneConfig

HEAD = """\
# A log by itself: `quire serve --standalone`

One process serves one log, without a cluster and without machines. Made from the model in
`cluster/standalone/config.py` by `python -m quire.cluster.standalone.page > docs/standalone.md`; a test compares
the two.

    quire serve --standalone --listen 127.0.0.1:7000 --data-dir ./log

    curl -X POST --data-binary @photo.jpg -H 'Content-Type: application/octet-stream' http://127.0.0.1:7000/records
    curl -X POST --data-binary @values.ndjson -H 'Content-Type: application/x-ndjson' http://127.0.0.1:7000/records
    curl http://127.0.0.1:7000/index_bounds
    curl http://127.0.0.1:7000/records/0
    curl -X POST -H 'Content-Type: application/json' -d '{"truncate_index": 5}' http://127.0.0.1:7000/rpc/truncate

| call | does |
|---|---|
| `POST /records[?index=n]` | appends: raw bytes (up to 1 MiB a `bin`, above it a blob; streamed, in flat memory), \
`application/json` (one value), NDJSON or a msgpack array (a batch, all or nothing). `{"write_index": n, "count": \
k}`. `index` is what the caller expects: 409 otherwise. `Quire-Headers`, a JSON object of strings, becomes the \
record's headers (raw bytes and JSON) |
| `GET /records/{index}` | the bytes of a bin or blob, streamed; any other value as JSON, or as msgpack by \
`Accept`; `Quire-Kind`, `Quire-Headers` |
| `GET /index_bounds` | `{"lowest_index": n, "highest_index": m}` of what can be read |
| `POST /rpc/truncate` | `{"truncate_index": n}` removes every record from n on, also inside a batch; answers the \
bounds; n = highest removes nothing |
| `GET /healthz` | 200 while the log takes records, else 503 with the reason |

What an answer to a write proves: 200, that it is as durable as `flush` says; 4xx and 503, that nothing was written
(408: its body stopped coming); 504, that it was appended at
`write_index` and not flushed in time, or that the device failed. Errors are
problem+json, as a cluster's. 256 writes and 256 reads of large records are in progress at most; the next is told 429.

SIGTERM answers what is in progress, flushes, and marks a clean stop. A device that fails ends the process with 1: after
a failed flush only a restart tells what is durable. A directory of one mode is refused in the other; `quire log` looks
at its files while it is stopped ([command-line.md](command-line.md)).

Each value can be given as a flag (`--data-dir ./log`), as a variable (`QUIRE_DATA_DIR=./log`) or as a key of a TOML
file (`data_dir = "./log"`) that `--config FILE` or `QUIRE_CONFIG` names. Flags win over variables, variables over the
file. An unknown key, an unknown `QUIRE_` variable and a named file that is not there are errors.
"""


def standalone_page() -> str:
    """The whole page, as Markdown."""
    return page_of(StandaloneConfig, HEAD)


if __name__ == "__main__":
    sys.stdout.write(standalone_page())
