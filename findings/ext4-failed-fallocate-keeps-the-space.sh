#!/usr/bin/env bash
# ext4 of Linux 6.18: a fallocate that fails for lack of space keeps all the space that there was, and the file's size.
#
# One would guess: fallocate reserves the whole range or fails and changes nothing; a program that preallocates 64 MiB
# for a file, gets ENOSPC and falls back to something smaller finds the space as it was. xfs and btrfs do so.
#
# What happens: ext4 allocates extent by extent and stops where it finds no more. The call fails, the file has grown
# to what it got, and nothing is free: not for the fallback, not for other programs, not after a restart. Only
# truncating or removing the file gives it back.
#
# Needs root, for a mount of a file; mkfs.xfs and mkfs.btrfs are those of Debian 12 (xfsprogs 6.1, btrfs-progs 6.2).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

folder=$(mktemp -d)
trap 'umount "$folder/at" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/at"

cat >"$folder/seen.py" <<'PYTHON'
import os
import sys

MIB = 1 << 20


def free_mib(path):
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize // MIB


kind, mount = sys.argv[1:]
before = free_mib(mount)
file = os.open(f"{mount}/file", os.O_RDWR | os.O_CREAT)
try:
    os.posix_fallocate(file, 0, (before + 100) * MIB)
    answer = "succeeded"
except OSError as error:
    answer = error.strerror
size = os.fstat(file).st_size // MIB
kept = "what there was" if size > before - 10 else f"{size} MiB"
left = "nothing" if free_mib(mount) == 0 else "all"
os.ftruncate(file, 0)
back = "all is back" if free_mib(mount) == before else "not all is back"
print(f"{kind}: {answer}; the file has {kept}, {left} is free; after a truncation to 0: {back}")
PYTHON

for kind in ext4 xfs btrfs; do
    truncate --size 400M "$folder/image"
    "mkfs.$kind" -q "$folder/image" >"$folder/said"
    mount -o loop "$folder/image" "$folder/at"
    python3 "$folder/seen.py" "$kind" "$folder/at"
    umount "$folder/at"
    rm "$folder/image"
done >"$folder/seen"

cat >"$folder/expected" <<'SEEN'
ext4: No space left on device; the file has what there was, nothing is free; after a truncation to 0: all is back
xfs: No space left on device; the file has 0 MiB, all is free; after a truncation to 0: all is back
btrfs: No space left on device; the file has 0 MiB, all is free; after a truncation to 0: all is back
SEEN
cat "$folder/seen"
diff "$folder/expected" "$folder/seen" && echo "as described"
