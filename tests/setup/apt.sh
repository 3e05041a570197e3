# Sourced by the set-up scripts: what they install with Debian's apt-get, where this user may.

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_be_root() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

# Installs the packages named, or shows the end of what apt-get said; whether they are there is the caller's to see.
try_apt() {
    local log
    log=$(mktemp)
    if ! { as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
    fi
    rm -f "$log"
}
