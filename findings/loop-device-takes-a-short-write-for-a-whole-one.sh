#!/usr/bin/env bash
# Linux 6.18, loop devices: where the file below is sparse and its file system is full, a write that was done in part
# is answered as done, and fsync succeeds.
#
# One would guess: a loop device whose backing file cannot grow fails the write with an error, as a thin volume does;
# what a write and an fsync were answered for is there.
#
# What happens: the write that meets the full file system is done in part (some pages of a block of 64 KiB), and the
# driver takes any positive count for the whole. So the caller gets its full count, fsync answers 0, and the rest of the
# block reads back as zeros; only the next write fails. Seen here on tmpfs, on each run; on ext4 in one run of a few,
# and by a file system on the device: xfs answered fdatasync for bytes that were gone once its page cache was dropped.
#
# Needs root, for the loop device; losetup is that of util-linux 2.38 (Debian 12).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

folder=$(mktemp -d)
device=
trap '[ -z "$device" ] || losetup -d "$device"; umount "$folder/at" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/at"

cat >"$folder/seen.py" <<'PYTHON'
import errno
import mmap
import os
import sys

BLOCK = 64 << 10
device = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
block, back = mmap.mmap(-1, BLOCK), mmap.mmap(-1, BLOCK)
block.write(b"x" * BLOCK)
for n in range(1000):
    try:
        written = os.pwrite(device, block, n * BLOCK)
        os.fsync(device)
    except OSError as error:
        print(f"the next write: {errno.errorcode[error.errno]}")
        break
    os.preadv(device, [back], n * BLOCK)
    if back[:] != block[:]:
        print(f"pwrite returned {written} of {BLOCK}, fsync succeeded; bytes that are there: {back[:].count(b'x')}")
PYTHON

mount -t tmpfs -o size=2068k none "$folder/at" # 32 blocks and 20 KiB
truncate --size 100M "$folder/at/sparse"
device=$(losetup --find --show "$folder/at/sparse")
python3 "$folder/seen.py" "$device" >"$folder/seen"
cat "$folder/seen"

cat >"$folder/expected" <<'SEEN'
pwrite returned 65536 of 65536, fsync succeeded; bytes that are there: 20480
the next write: ENOSPC
SEEN
diff "$folder/expected" "$folder/seen" && echo "as described"
