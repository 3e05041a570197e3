#!/usr/bin/env bash
# obstore 0.12.1: an object renamed onto its own name is deleted, or not, by the kind of store.
#
# One would guess: `rename(store, "a", "a")` changes nothing, as rename(2) promises for two names of one file, and `copy`
# onto itself does not either; at worst both are refused. A program that brings names into a normal form renames most
# objects onto themselves.
#
# What happens: MemoryStore deletes the object, and no error is raised. LocalStore keeps it. `copy(store, "a", "a")` keeps
# it in both, but LocalStore leaves a second file beside it, `a#0`, which no `list` shows and no `delete` of what was
# listed removes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1
mkdir "$folder/store"

cat >"$folder/seen.py" <<'PYTHON'
import os
import sys

import obstore
from obstore.store import LocalStore, MemoryStore


def names(store):
    return sorted(each["path"] for page in obstore.list(store) for each in page)


for kind, store in (("memory", MemoryStore()), ("folder", LocalStore(sys.argv[1]))):
    obstore.put(store, "a", b"precious")
    obstore.copy(store, "a", "a")
    print(f"{kind}, copied onto itself: {names(store)}")
    obstore.rename(store, "a", "a")
    print(f"{kind}, renamed onto itself: {names(store)}")
obstore.delete(store, names(store))
print(f"files in the folder when all that was listed is deleted: {os.listdir(sys.argv[1])}")
PYTHON

cat >"$folder/expected" <<'TEXT'
memory, copied onto itself: ['a']
memory, renamed onto itself: []
folder, copied onto itself: ['a']
folder, renamed onto itself: ['a']
files in the folder when all that was listed is deleted: ['a#0']
TEXT

"$folder/venv/bin/python" "$folder/seen.py" "$folder/store" >"$folder/output"
cat "$folder/output"
diff "$folder/expected" "$folder/output"
