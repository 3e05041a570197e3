#!/usr/bin/env bash
# Builds local substitutes, under the same names, for the images that deploy/ uses, if no image can be pulled.
#
#   deploy/standins.sh base IMAGE          Python and certificates, from Debian's packages; needs root, takes a minute
#   deploy/standins.sh toxiproxy IMAGE     only the pinned server that the tests use (tests/setup/go_tools.sh toxiproxy-server)
#
# Does nothing if the image exists. The base image gets this machine's certificates, so that pip trusts its package index.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?base or toxiproxy} image=${2:?the name of the image}
if docker image inspect "$image" >/dev/null 2>&1; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

base() {
    [ "$(id -u)" = 0 ] || fail "The substitute for $image is built with debootstrap, which needs root."
    command -v debootstrap >/dev/null || fail "The substitute for $image needs debootstrap: apt-get install debootstrap"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/root" >"$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        fail "debootstrap failed (the lines above say why)."
    }
    ln -s python3 "$work/root/usr/bin/python"
    cp -L /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/ca-certificates.crt"
    (cd "$work/root" && rm -rf var/cache/apt/archives/*.deb var/lib/apt/lists/* usr/share/{doc,locale,man})
    tar -C "$work/root" -c . | docker import \
        --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
        --change 'CMD ["python3"]' - "$image" >/dev/null
}

toxiproxy() {
    tests/setup/go_tools.sh toxiproxy-server
    cp -L .cache/bin/toxiproxy-server "$work/toxiproxy"
    printf '%s\n' 'FROM scratch' 'COPY toxiproxy /toxiproxy' 'ENTRYPOINT ["/toxiproxy"]' >"$work/Dockerfile"
    docker build --quiet --tag "$image" "$work" >/dev/null
}

case $kind in
base | toxiproxy) "$kind" ;;
*) fail "$kind is neither base nor toxiproxy" ;;
esac
echo "made a local substitute for $image"
