#!/usr/bin/env bash
# Build another version of this project in build/base, to measure beside it.
#   tools/base.sh REF
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -ne 1 ]; then
    echo "name the version to build: make base REF=<commit>" >&2
    exit 2
fi
ref=$(git rev-parse --verify "$1^{commit}")
base=build/base
if [ "$(cat "$base/REF" 2>/dev/null)" = "$ref" ]; then
    exit 0
fi
rm -rf "$base"
mkdir -p "$base"
git clone --quiet --no-checkout . "$base/clone"
git -C "$base/clone" checkout --quiet "$ref"
uv=$(command -v uv || echo "$PWD/.venv/bin/uv")
"$uv" venv --quiet --python .venv/bin/python "$base/env"
export VIRTUAL_ENV=$PWD/$base/env
"$uv" pip install --quiet -r "$base/clone/requirements.lock"
"$uv" pip install --quiet --no-deps --no-build-isolation "./$base/clone"
"$base/env/bin/siltstone" --version
echo "$ref" >"$base/REF"
