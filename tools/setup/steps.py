"""Changes to the machine as data, so that one plan can be carried out or, without the right to, be printed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Apt must neither ask questions nor give up at once because another apt is running.
APT_ENVIRONMENT = ("DEBIAN_FRONTEND=noninteractive",)
APT_OPTIONS = ("-y", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


class SetupError(Exception):
    """Setup cannot go on; the text says what is missing and what to do."""


class NoRights(SetupError):
    """Administrator rights are needed and not to be had; the text holds the commands to run."""


@dataclass(frozen=True)
class Run:
    """A command that needs administrator rights."""

    argv: tuple[str, ...]

    def as_shell(self, prefix: str) -> str:
        return f"{prefix}{shlex.join(self.argv)}"


@dataclass(frozen=True)
class Write:
    """A text file of the system, written whole."""

    path: Path
    text: str

    def as_shell(self, prefix: str) -> str:
        return f"{prefix}tee {shlex.quote(str(self.path))} >/dev/null <<'END'\n{self.text}END"


Step = Run | Write


def apt(*words: str) -> Run:
    """An apt-get command that runs unattended."""
    return Run(("env", *APT_ENVIRONMENT, "apt-get", *APT_OPTIONS, *words))


def privilege() -> tuple[str, ...] | None:
    """What to put before a command that needs root: nothing, sudo, or None when neither is possible."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        return None
    if sys.stdin.isatty():
        return ("sudo",)
    unattended = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ("sudo", "-n") if unattended.returncode == 0 else None


def perform(steps: Sequence[Step], why: str) -> None:
    """Carries the steps out as root or through sudo.

    Raises:
        NoRights: there are none; the text holds the commands to run.
        SetupError: a command failed.
    """
    prefix = privilege()
    if prefix is None:
        commands = "\n".join(step.as_shell("sudo ") for step in steps)
        raise NoRights(f"{why}. This needs administrator rights; run these commands, then make again:\n\n{commands}")
    print(f"{why}:", flush=True)
    for step in steps:
        perform_one(step, prefix)


def perform_one(step: Step, prefix: tuple[str, ...]) -> None:
    if isinstance(step, Write):
        print(f"  writing {step.path}", flush=True)
        command, text = [*prefix, "tee", str(step.path)], step.text
    else:
        shown = step.argv[1 + len(APT_ENVIRONMENT) :] if step.argv[0] == "env" else step.argv
        print(f"  {shlex.join(shown)}", flush=True)
        command, text = [*prefix, *step.argv], None
    done = subprocess.run(
        command,
        input=text,
        stdin=subprocess.DEVNULL if text is None and prefix != ("sudo",) else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise SetupError(f"this command failed with exit code {done.returncode}:\n  {shlex.join(command)}\n{tail}")
