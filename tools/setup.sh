#!/usr/bin/env bash
# Set up the local .venv; the Makefile calls this and keeps the stamps.
#   tools/setup.sh environment   a Python of 3.11 or newer with what requirements.lock pins
#   tools/setup.sh package       the wheel of this clone in .venv, compiled where a C compiler works
#   tools/setup.sh dev           .venv-dev: the packages of .venv, and src as it stands, uncompiled
#   tools/setup.sh wheel DIR     build the wheel of this clone in a directory
#   tools/setup.sh lock [flags]  remake requirements.lock; --upgrade takes newer versions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
python=$venv/bin/python
dev=.venv-dev

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.11"
}

# A uv that is installed already is used as it is; otherwise the locked one goes into .venv.
find_uv() {
    if uv --version >/dev/null 2>&1; then
        echo uv
    elif [ -x "$venv/bin/uv" ]; then
        echo "$venv/bin/uv"
    fi
}

make_environment() {
    local base pinned
    if ! is_recent "$python"; then
        base=$(find_python)
        rm -rf "$venv"
        if [ -n "$(find_uv)" ]; then
            uv venv --quiet --python "$base" "$venv"
        else
            "$base" -m venv "$venv" || fail "python -m venv failed; install python3-venv, or uv"
        fi
    fi
    if [ -z "$(find_uv)" ]; then
        pinned=$(grep -o '^uv==[^ ]*' requirements.lock || echo uv)
        "$python" -m pip install --quiet --disable-pip-version-check "$pinned"
    fi
}

sync_environment() {
    make_environment
    "$(find_uv)" pip sync --quiet --compile-bytecode --python "$python" --require-hashes \
        requirements.lock
}

has_compiler() {
    "$python" - <<'PROBE' >/dev/null 2>&1
import os, shlex, subprocess, sysconfig
compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
command = [*compiler, "-fsyntax-only", "-x", "c", "-I", sysconfig.get_path("include"), "-"]
subprocess.run(command, input=b"#include <Python.h>\n", check=True)
PROBE
}

# Earlier versions compiled into src, where an extension hides the module beside it.
forget_extensions() {
    find src -name '*.so' -delete
}

build_wheel() {
    rm -f "$1"/siltstone-*.whl
    "$(find_uv)" build --quiet --wheel --no-build-isolation --python "$python" --out-dir "$1"
}

install_package() {
    local form
    forget_extensions
    build_wheel build/wheel
    "$(find_uv)" pip install --quiet --compile-bytecode --python "$python" --no-deps --no-index \
        --reinstall-package siltstone build/wheel/siltstone-*.whl
    form=$("$python" -c 'import siltstone.version; print(siltstone.version.form())')
    echo "setup: installed siltstone ($form)"
    if [ "$form" != compiled ] && [ "${SILTSTONE_PURE:-}" != 1 ]; then
        if has_compiler; then
            fail "the C compiler works but the hot modules were not compiled:" \
                "$python setup.py build_ext shows why"
        fi
        echo "setup: no working C compiler: the hot modules run as plain Python, slower;" \
            "when there is one, make clean and start again"
    fi
}

# An environment over the other one: nothing is installed twice, and src comes before the wheel.
make_dev() {
    local path='import sysconfig; print(sysconfig.get_path("purelib"))' locked
    forget_extensions
    rm -rf "$dev"
    "$python" -m venv --without-pip "$dev"
    locked=$("$python" -c "$path")
    # The names of .pth files decide their order: this one comes after __editable__, which names src.
    echo "import site; site.addsitedir('$locked')" >"$("$dev/bin/python" -c "$path")/locked.pth"
    "$(find_uv)" pip install --quiet --python "$dev/bin/python" --no-deps --no-index \
        --no-build-isolation --editable .
    "$dev/bin/siltstone" --version
}

make_lock() {
    make_environment
    "$(find_uv)" pip compile --quiet --python "$python" --python-version 3.11 --universal \
        --generate-hashes --no-emit-index-url --custom-compile-command "make lock" \
        --group dev --group bench --output-file requirements.lock "$@" pyproject.toml
}

case "${1:-}" in
    environment) sync_environment ;;
    package) install_package ;;
    dev) make_dev ;;
    wheel) build_wheel "$2" ;;
    lock) shift && make_lock "$@" ;;
    *) sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
