#!/bin/sh
# Finds a Python that is new enough and hands over to tools/setup, which does the work.
# Usage: tools/setup.sh [--layer] [EXTRA...]   (EXTRA: further optional dependencies of pyproject.toml, such as dev;
# --layer: the Khronos validation layer, which the tests need)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
wanted="3.11"
check="import sys; sys.exit(sys.version_info < (3, 11))"

works() { command -v "$1" >/dev/null 2>&1 && "$1" -c "$check" >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if works "$candidate"; then command -v "$candidate"; return 0; fi
    done
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
        if works "$candidate"; then echo "$candidate"; return 0; fi
    done
    return 1
}

if ! python=$(find_python); then
    echo "k3jit needs Python $wanted or later, and found none." >&2
    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv; Fedora: dnf install python3;" >&2
    echo "macOS: brew install python), or name one: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
exec "$python" -B "$here/setup" "$@"
