#!/usr/bin/env bash
# obstore 0.12.1: a reader of an object that is replaced meanwhile gives the old beginning and the new end.
#
# One would guess: `open_reader` reads the object that it opened. It asks for its metadata first, so it knows the ETag and
# could demand it for each part (`If-Match`); an open file of a POSIX system goes on with the old content after a rename,
# and `get(...).stream()` has one request for all. At worst the read fails.
#
# What happens: each buffer is a request of its own for a range of whatever has that name now. Half of one version and
# half of the next are returned as one object, of the right length, without an error. Whoever verifies no checksum of
# the whole does not notice. `tell`, `seek` and the size say nothing either.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1
mkdir "$folder/store"

cat >"$folder/seen.py" <<'PYTHON'
import sys

import obstore
from obstore.store import LocalStore, MemoryStore

PART = 1 << 20

for kind, store in (("memory", MemoryStore()), ("folder", LocalStore(sys.argv[1]))):
    obstore.put(store, "a", b"1" * (3 * PART))
    reader = obstore.open_reader(store, "a", buffer_size=PART)
    read = bytes(reader.read(PART))
    obstore.put(store, "a", b"2" * (3 * PART))
    read += bytes(reader.read(2 * PART))
    versions = "".join(sorted({chr(byte) for byte in read}))
    print(f"{kind}: {len(read)} of {3 * PART} bytes, of the versions {', '.join(versions)}")
PYTHON

cat >"$folder/expected" <<'TEXT'
memory: 3145728 of 3145728 bytes, of the versions 1, 2
folder: 3145728 of 3145728 bytes, of the versions 1, 2
TEXT

"$folder/venv/bin/python" "$folder/seen.py" "$folder/store" >"$folder/output"
cat "$folder/output"
diff "$folder/expected" "$folder/output"
