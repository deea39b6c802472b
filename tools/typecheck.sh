#!/bin/sh
# Type-checks an installed copy: mypy does not follow the mapping of lowering/ to k3jit.lowering in pyproject.toml.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# A copy of the sources is built, so that no build/ of an earlier day gets in.
mkdir "$work/source" "$work/installed"
cd "$root"
cp -R pyproject.toml README.md LICENSE k3jit lowering runtime models benchmarks "$work/source"
"$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/installed" "$work/source"
cd "$work/installed"
"$root/.venv/bin/python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" -p k3jit
