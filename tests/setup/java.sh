#!/usr/bin/env bash
# Sees to it that there is a Java, which the tests of the Spark pipeline need.
#
# In this order: the one in JAVA_HOME, the one on PATH, Debian's headless one if this user may install it. Does nothing
# when there is one. Where nothing is found it says what is missing, and fails.
set -euo pipefail

lowest=17            # Spark 4 needs Java 17
package=default-jre-headless

version_of() { "$1" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1; }

fits() {
    local have
    command -v "$1" >/dev/null || return 1
    have=$(version_of "$1") || return 1
    [ -n "$have" ] && ((have >= lowest))
}

# As Spark's own scripts do: JAVA_HOME, where it is set, is the only one that counts.
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
if fits "$java"; then exit 0; fi

# shellcheck source=tests/setup/apt.sh
source "$(dirname "$0")/apt.sh"

if [ -z "${JAVA_HOME:-}" ] && command -v apt-get >/dev/null && may_be_root; then
    echo "No Java $lowest or newer on PATH, which Spark needs: installing $package (200 MB)"
    try_apt "$package"
    if fits java; then exit 0; fi
fi

if [ -n "${JAVA_HOME:-}" ]; then
    found="JAVA_HOME is $JAVA_HOME, and no Java $lowest or newer is in it."
else
    found="No Java $lowest or newer is on PATH, JAVA_HOME is not set, and apt-get could not be used or did not help."
fi
cat >&2 <<SAY

The tests of the Spark pipeline need a Java runtime, version $lowest or newer, and there is none.
$found
Install one (Debian 12 or newer: sudo apt install openjdk-17-jre-headless), or name one: make JAVA_HOME=/path/to/jre,
and run make again.
SAY
exit 1
