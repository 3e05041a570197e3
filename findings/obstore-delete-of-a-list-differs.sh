#!/usr/bin/env bash
# obstore 0.12.1: `delete` of several objects, one of which is missing, fails or not by the store, and deletes the rest.
#
# One would guess: either deleting what is not there is fine everywhere, as in S3, or it raises everywhere; and a call
# that raises FileNotFoundError for one of its names has stopped there, or has done nothing.
#
# What happens: MemoryStore returns nothing and raises nothing, whether the objects are there or not. LocalStore deletes
# several at a time and raises FileNotFoundError at the missing one: how many of the others are gone then, before and
# behind it in the list, is left to chance. A program that was tested on one store breaks on the other, and neither
# "nothing was deleted" nor "all but that one" is right after the error.
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


def names(store):
    return sorted(each["path"] for page in obstore.list(store) for each in page)


NAMES = [f"object-{number}" for number in range(16)]
ASKED = [NAMES[0], "missing", *NAMES[1:]]

store = MemoryStore()
for name in NAMES:
    obstore.put(store, name, b"1")
print(f"memory: {obstore.delete(store, ASKED)}, left: {names(store)}")

raised, left = 0, set()
for attempt in range(200):
    store = LocalStore(f"{sys.argv[1]}/{attempt}", mkdir=True)
    for name in NAMES:
        obstore.put(store, name, b"1")
    try:
        obstore.delete(store, ASKED)
    except FileNotFoundError:
        raised += 1
    left.add(len(names(store)))
print(f"folder: FileNotFoundError in {raised} of 200")
print(f"folder: always as many left: {len(left) == 1}")
print(f"left, of {len(NAMES)}: {sorted(left)}", file=sys.stderr)
PYTHON

cat >"$folder/expected" <<'TEXT'
memory: None, left: []
folder: FileNotFoundError in 200 of 200
folder: always as many left: False
TEXT

"$folder/venv/bin/python" "$folder/seen.py" "$folder/store" >"$folder/output"
cat "$folder/output"
diff "$folder/expected" "$folder/output"
