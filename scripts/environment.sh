# Sourced by the other scripts: makes a virtual environment of this checkout's own and puts topo-tune into it.
# Sets PYTHON to its interpreter. Says what is missing, and the command that brings it.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=${TOPO_TUNE_VENV:-$repository/.venv}

find_python() {
    local candidate
    for candidate in ${TOPO_TUNE_PYTHON:-python3.13 python3.12 python3.11 python3.10 python3}; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "topo-tune needs Python 3.10 or newer, and none was found" >&2
    echo "hint: on Debian and Ubuntu: apt-get install python3 python3-venv" >&2
    return 1
}

make_environment() {
    local base
    if [ ! -x "$environment/bin/python" ]; then
        base=$(find_python) || return 1
        if ! "$base" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "the Python at $base has no working \`venv\` module" >&2
            echo "hint: on Debian and Ubuntu: apt-get install python3-venv" >&2
            return 1
        fi
        echo "making a virtual environment in $environment" >&2
        "$base" -m venv "$environment" || return 1
    fi
    PYTHON=$environment/bin/python
}

# install STAMP WHAT...: pip install, unless the same was installed from the same pyproject.toml before.
install() {
    local stamp=$environment/.installed-$1 wanted
    shift
    wanted="$* $(cksum <"$repository/pyproject.toml")"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "installing: $*" >&2
    "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@" || return 1
    printf '%s' "$wanted" >"$stamp"
}
