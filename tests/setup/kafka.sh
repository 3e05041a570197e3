#!/usr/bin/env bash
# Puts Kafka's jars at .cache/kafka, for `make bench`: benchmarks/kafka/pom.xml has the version.
#
# By the Maven on PATH, or Debian's if this user may install it. Does nothing when the jars are there. Without Java or
# Maven it says so and succeeds: the benchmark then goes without Kafka.
set -euo pipefail
cd "$(dirname "$0")/../.."

jars=$PWD/.cache/kafka
pom=benchmarks/kafka/pom.xml
version=$(sed -nE 's/^      <version>(.*)<.*/\1/p' "$pom")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

without() {
    tail -n 5 "$log" >&2
    rm -rf "$jars"
    echo "$1: make bench goes without Kafka." >&2
    exit 0
}

tests/setup/java.sh || without "There is no Java"
if [[ -f $jars/kafka_2.13-$version.jar ]]; then exit 0; fi

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

if ! command -v mvn >/dev/null; then
    echo "No Maven on PATH, which gets Kafka: installing maven"
    { as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends maven; } >"$log" 2>&1 || without "Maven could not be installed"
fi
echo "Getting Kafka $version by Maven (45 MB)"
rm -rf "$jars"
mvn --quiet --batch-mode --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$jars" >"$log" 2>&1 || without "Maven could not get Kafka $version"
