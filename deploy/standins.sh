#!/usr/bin/env bash
# Local stand-ins, under the same names, for the images that deploy/ uses, where no image can be pulled.
#
#   deploy/standins.sh base IMAGE          Python and certificates, from Debian's packages: a minute, and needs root
#   deploy/standins.sh toxiproxy IMAGE     the pinned server that the tests use (tests/setup/toxiproxy.sh), and nothing else
#
# Does nothing where the image is there. What pip needs to trust this machine's package index goes into the base image.
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
    [ "$(id -u)" = 0 ] || fail "A stand-in for $image is made with debootstrap, which needs root."
    command -v debootstrap >/dev/null || fail "A stand-in for $image needs debootstrap: apt-get install debootstrap"
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
    tests/setup/toxiproxy.sh
    cp -L .cache/bin/toxiproxy-server "$work/toxiproxy"
    printf '%s\n' 'FROM scratch' 'COPY toxiproxy /toxiproxy' 'ENTRYPOINT ["/toxiproxy"]' >"$work/Dockerfile"
    docker build --quiet --tag "$image" "$work" >/dev/null
}

case $kind in
base | toxiproxy) "$kind" ;;
*) fail "$kind is neither base nor toxiproxy" ;;
esac
echo "made a local stand-in for $image"
