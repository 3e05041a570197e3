#!/usr/bin/env bash
# btrfs of Linux 6.18: a file that posix_fallocate reserved runs out of space at its second small write, though that
# write is at an offset that was never written.
#
# One would guess: after posix_fallocate "subsequent writes to the range shall not fail for lack of space" holds at
# least for the first write of each byte; copying on write concerns what is overwritten. A log that preallocates its
# file and only appends never overwrites a byte.
#
# What happens: what counts is the block, not the byte. The first append (100 bytes, then fsync) turns its block of 4 KiB
# into data; the next one, at byte 100, is an overwrite of that block, needs a new one, and gets ENOSPC on a full disk.
# An append from the next block on succeeds. With the attribute for no copying on write, set on the empty folder before
# the file is made, all of them succeed.
#
# Needs root, for a mount of a file; mkfs.btrfs is that of Debian 12 (btrfs-progs 6.2).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

folder=$(mktemp -d)
trap 'umount "$folder/at" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/at"

cat >"$folder/seen.py" <<'PYTHON'
import errno
import fcntl
import os
import sys

FS_IOC_SETFLAGS, FS_NOCOW_FL = 0x40086602, 0x00800000
RESERVED = 16 << 20

mount, kind = sys.argv[1:]
os.mkdir(f"{mount}/folder")
if kind == "nocow":
    at = os.open(f"{mount}/folder", os.O_RDONLY)
    fcntl.ioctl(at, FS_IOC_SETFLAGS, FS_NOCOW_FL.to_bytes(4, sys.byteorder))
file = os.open(f"{mount}/folder/log", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(file, 0, RESERVED)
os.pwrite(file, b"x" * 100, 0)
os.fsync(file)

filler = os.open(f"{mount}/filler", os.O_RDWR | os.O_CREAT)
for size in (1 << 20, 1 << 16, 1 << 12):
    try:
        while True:
            os.write(filler, b"f" * size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
os.fsync(filler)


def append(at):
    try:
        os.pwrite(file, b"y" * 100, at)
        os.fsync(file)
        return "written"
    except OSError as error:
        return errno.errorcode[error.errno]


print(f"{kind}: at byte 100: {append(100)}, at byte 4096: {append(4096)}")
PYTHON

for kind in default nocow; do
    truncate --size 400M "$folder/image"
    mkfs.btrfs -q "$folder/image" >"$folder/said"
    mount -o loop "$folder/image" "$folder/at"
    python3 "$folder/seen.py" "$folder/at" "$kind"
    umount "$folder/at"
    rm "$folder/image"
done >"$folder/seen"
cat "$folder/seen"

cat >"$folder/expected" <<'SEEN'
default: at byte 100: ENOSPC, at byte 4096: written
nocow: at byte 100: written, at byte 4096: written
SEEN
diff "$folder/expected" "$folder/seen" && echo "as described"
