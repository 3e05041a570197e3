#!/usr/bin/env bash
# Sees to it that ext4, xfs and btrfs can be made in a file and mounted, which the tests of file systems need: as root,
# or by sudo without a password. Does nothing when the tools are there. Says in plain words what is missing, and fails.
set -euo pipefail
source "$(dirname "$0")/apt.sh"

PATH=$PATH:/usr/sbin:/sbin
missing=()
for need in mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs; do
    command -v "${need%:*}" >/dev/null || missing+=("${need#*:}")
done

if ((${#missing[@]})) && command -v apt-get >/dev/null && may_be_root; then
    echo "The tests of file systems need ${missing[*]}: installing (10 MB)"
    try_apt "${missing[@]}"
fi

lacks() {
    cat >&2 <<SAY

The tests of file systems make ext4, xfs and btrfs in files and mount them.
$1
SAY
    exit 1
}

may_be_root || lacks "That needs root, or sudo without a password, which this user has not. The other tests: make test."
for tool in mkfs.ext4 mkfs.xfs mkfs.btrfs; do
    command -v "$tool" >/dev/null \
        || lacks "There is no $tool. Install it (Debian: sudo apt install e2fsprogs xfsprogs btrfs-progs) and run make again."
done
