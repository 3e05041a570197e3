"""Generates `docs/standalone.md` from the model: `python -m quire.cluster.standalone.page > docs/standalone.md`."""

import sys

from ..config.page import page_of
from .config import StandaloneConfig

HEAD = """\
# A standalone log: `quire serve --standalone`

One process serves one log, without a cluster and without a machine. Generated from the model in
`cluster/standalone/config.py` by `python -m quire.cluster.standalone.page > docs/standalone.md`; a test checks that it
is up to date.

With quire [installed](../README.md#install):

<!-- after: ../README.md#install -->

```sh
quire serve --standalone --listen 127.0.0.1:7000 --data-dir data/log &
curl --retry 9 --retry-connrefused -s http://127.0.0.1:7000/healthz
```

```console
$ curl -s --data-binary @LICENSE -H 'Content-Type: application/octet-stream' http://127.0.0.1:7000/records
{"write_index":0,"count":1}
$ printf '{"a": 1}\\n{"b": 2}\\n' >values.ndjson
$ curl -s --data-binary @values.ndjson -H 'Content-Type: application/x-ndjson' http://127.0.0.1:7000/records
{"write_index":1,"count":2}
$ curl -s http://127.0.0.1:7000/index_bounds
{"lowest_index":0,"highest_index":3}
$ curl -s http://127.0.0.1:7000/records/2
{"b":2}
$ curl -s -H 'Content-Type: application/json' -d '{"truncate_index": 1}' http://127.0.0.1:7000/rpc/truncate
{"lowest_index":0,"highest_index":1}
```

| call | does |
|---|---|
| `POST /records[?index=n]` | appends raw bytes (up to 1 MiB as a `bin`, above that as a blob; streamed, in constant \
memory), one value (`application/json`), or a batch (NDJSON or a msgpack array; all or nothing). Returns \
`{"write_index": n, "count": k}`. `index` is the index the caller expects: 409 if it is another. `Quire-Headers`, a \
JSON object of strings, becomes the record's headers (raw bytes and JSON only) |
| `GET /records/{index}` | a bin as bytes, a blob as a stream, any other value as JSON, or as msgpack by `Accept`. \
Response headers: `Quire-Kind`, `Quire-Headers` |
| `GET /index_bounds` | `{"lowest_index": n, "highest_index": m}` of the readable records |
| `POST /rpc/truncate` | `{"truncate_index": n}` removes all records from n on, even inside a batch, and returns the \
bounds; n = `highest_index` removes nothing |
| `GET /` | a page, or by `Accept` JSON, with the server's title and these calls |
| `GET /healthz` | 200 while the log accepts records, else 503 with the reason; without a token, with its name |

What the response to a write means. 200: it is as durable as `flush` says. 4xx and 503: nothing was written. One
exception is `truncated`: another caller truncated the log from `truncate_index` on before the records were flushed, and
only those of the batch that lie below it are left. 504: it was appended at `write_index` but not flushed in time, or
the disk failed. Errors are problem+json, as in a cluster. At most 256 writes and 256 reads of large records are in
progress; further ones get 429.

On SIGTERM the process finishes the requests in progress, flushes, and marks a clean stop. If the disk fails, it ends
with exit code 1: after a failed flush only a restart can tell what is durable. A data directory of one mode is refused
in the other. `quire status --server 127.0.0.1:7000` shows its bounds and whether it accepts records; `quire append` and
`quire read INDEX` work as well. While the process is stopped, `quire log` inspects its files
([command-line.md](command-line.md#the-files-of-a-log)).

Each setting can be given as a flag (`--data-dir ./log`), as a variable (`QUIRE_DATA_DIR=./log`) or as a key of the TOML
file (`data_dir = "./log"`) that `--config FILE` or `QUIRE_CONFIG` names. Flags override variables, and variables
override the file. An unknown key, an unknown `QUIRE_` variable and a missing file are errors. Variables that Kubernetes
or Docker set for a service named `quire` or `quire-...` are ignored and logged, such as `QUIRE_SERVICE_HOST`, or
`QUIRE_PORT` with a value such as `tcp://10.0.0.1:7001`. Limits that are not settings are in [limits.md](limits.md).
"""


def standalone_page() -> str:
    """The whole page, as Markdown."""
    return page_of(StandaloneConfig, HEAD)


if __name__ == "__main__":
    sys.stdout.write(standalone_page())
