#!/usr/bin/env bash
# Makes the virtual environment .venv and installs quire into it, editable.
#
#   tests/setup/python.sh run     what `quire` needs to run
#   tests/setup/python.sh dev     that, and what tests and linters need
#
# Does nothing when that was done for this checkout and this pyproject.toml. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."

purpose=${1:?run or dev}
venv=.venv
stamp=$venv/quire-$purpose.stamp
wanted="$PWD $(cksum <pyproject.toml)"

fail() {
    printf '\n%s\n' "$@" >&2
    exit 1
}

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if usable "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "quire needs Python 3.11 or newer, and found none${PYTHON:+ at $PYTHON}." \
        "Install one (Debian 12 or newer: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11"
}

create() {
    local python=$1 log
    log=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$log'" EXIT
    if "$python" -m venv "$venv" >"$log" 2>&1; then return; fi
    rm -rf "$venv"
    # Debian and Ubuntu ship Python without what `venv` needs.
    local package=python3-venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [[ $("$python" -c 'import sys; print(sys.prefix)') == /usr ]]; then
        echo "Python cannot make virtual environments yet: installing $package"
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"; } \
            >"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "apt-get could not install $package (the lines above say why)."; }
        if "$python" -m venv "$venv" >"$log" 2>&1; then return; fi
        rm -rf "$venv"
    fi
    cat "$log" >&2
    fail "$python could not make a virtual environment in $venv (the lines above say why)." \
        "On Debian or Ubuntu: sudo apt install $package, then run make again."
}

if [ -d "$venv" ] && ! usable "$venv/bin/python"; then
    echo "Removing $venv: its Python does not run, or is older than 3.11"
    rm -rf "$venv"
fi
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi
if [ "$purpose" = run ] && [ -f "$venv/quire-dev.stamp" ] && [ "$(cat "$venv/quire-dev.stamp")" = "$wanted" ]; then exit 0; fi

if [ ! -d "$venv" ]; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version)"
    create "$python"
fi

target=.
if [ "$purpose" = dev ]; then target='.[dev]'; fi
echo "Installing quire and what it needs into $venv ($purpose)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$target" \
    || fail "pip could not install what quire needs (the lines above say why). Without a network, nothing can be installed."
printf '%s\n' "$wanted" >"$stamp"
