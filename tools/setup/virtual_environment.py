"""The virtual environment `.venv` with this project in it (editable) and the libraries it needs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from owner import ROOT
from steps import SetupError

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = ENVIRONMENT / ".k3jit-setup"
ALWAYS = ("test",)


def fingerprint(extras: Sequence[str]) -> str:
    """Changes when what should be installed, or where, changes. The path counts: a virtual environment can't be moved."""
    project = (ROOT / "pyproject.toml").read_bytes()
    parts = (str(ROOT).encode(), project, ",".join(sorted(extras)).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_alive() -> bool:
    """False for one that is missing, was moved, or whose base Python went away in an upgrade."""
    if not PYTHON.exists():
        return False
    asked = subprocess.run([str(PYTHON), "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and Path(asked.stdout.strip()).resolve() == ENVIRONMENT.resolve()


def ensure_environment(extras: Sequence[str]) -> None:
    """Makes `.venv` and installs `k3jit[test]` with `extras`; does nothing when that was done for this pyproject.toml.

    Raises:
        SetupError: it cannot be written, or pip fails.
    """
    wanted = sorted({*ALWAYS, *extras})
    alive = is_alive()
    stamps = STAMP.read_text().split() if alive and STAMP.is_file() else []
    if fingerprint(wanted) in stamps:
        return
    writable = ENVIRONMENT if ENVIRONMENT.exists() else ROOT
    if not os.access(writable, os.W_OK):
        raise SetupError(f"{writable} cannot be written by this user (an earlier run as root?); chown or delete it.")
    if not alive:
        print("Making the virtual environment .venv", flush=True)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(ENVIRONMENT)], "the virtual environment could not be made")
    print(f"Installing k3jit[{','.join(wanted)}] into .venv; the first time takes a minute or two", flush=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable"]
    run([*pip, f"{ROOT}[{','.join(wanted)}]"], "pip could not install the libraries (is there a network?)")
    # An environment with more extras serves those who ask for fewer.
    kept = {fingerprint(wanted), fingerprint(ALWAYS)}
    STAMP.write_text("\n".join(sorted(kept)) + "\n")


def run(command: list[str], failure: str) -> None:
    # setuptools warns of each editable install as such, over a dozen lines.
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONWARNINGS": "ignore"}, check=False)
    if done.returncode != 0:
        raise SetupError(f"{failure}; see above (exit code {done.returncode}).")
