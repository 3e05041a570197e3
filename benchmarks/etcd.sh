#!/usr/bin/env bash
# Builds etcd into .cache/bin/etcd, for `python -m benchmarks.failover --etcd .cache/bin/etcd`. Needs Go 1.26 or newer;
# takes a few minutes once. A module of ten lines around etcd's main replaces a clone and its build scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v3.7.0
program=$PWD/.cache/bin/etcd
[ -x "$program" ] && exit 0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/main.go" << 'GO'
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
GO
cd "$folder"
go mod init etcd
go get "go.etcd.io/etcd/server/v3@$version"
go mod tidy
mkdir -p "$(dirname "$program")"
go build -o "$program" .
echo "built $program"
