"""What a compilation shows: the debug ladder on standard error, and the stage files under `K3JIT_DUMP_TO`."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from pathlib import Path
from typing import Any

from . import config

_numbers = itertools.count()


def report(program: Any, closed: Any, seconds: float, cached: bool) -> None:
    """Print and write what the settings ask for."""
    from .stages import stage_text

    level = config.value("debug")
    if level >= 1:
        how = "read from the plan cache" if cached else "compiled"
        say(
            f"{program.name} {how} in {seconds:.2f} s: {len(program.spirv)} kernels, {dispatches(program.steps)} dispatches, "
            f"{len(closed.jaxpr.eqns)} equations, {program.arena_bytes:,} bytes of temporaries"
        )
    if level >= 3:
        for decision in program.decisions:
            say(f"  {decision}")
    for stage, needed in (("tile", 4), ("spirv", 5)):
        if level >= needed:
            with contextlib.suppress(ValueError):  # a program from the plan cache has no tile IR
                print(stage_text(program, closed, stage), file=sys.stderr)
    target = config.value("dump_to")
    if target:
        write(program, closed, Path(target))


def write(program: Any, closed: Any, root: Path) -> Path:
    """Write every stage of one compilation into its own folder."""
    from .stages import stage_text

    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", program.name) or "function"
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = root / f"{next(_numbers):03d}_{safe}"
        try:
            folder.mkdir()
            break
        except FileExistsError:
            continue
    texts = {**program.texts, "explain": "\n".join(program.decisions)}
    for stage in ("jaxpr", "tile"):
        with contextlib.suppress(ValueError):
            texts[stage] = stage_text(program, closed, stage)
    for stage, text in texts.items():
        (folder / f"{stage}.txt").write_text(text if text.endswith("\n") else text + "\n")
    for number, (kernel, code) in enumerate(zip(program.kernels, program.spirv, strict=True)):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", kernel.name)[:80]
        (folder / f"kernel_{number:03d}_{name}.spv").write_bytes(code)
    return folder


def dispatches(steps: Any) -> int:
    """vkCmdDispatch calls that a list of steps records."""
    return sum(dispatches(s.body) if hasattr(s, "body") else int(hasattr(s, "groups") and all(s.groups)) for s in steps)


def say(text: str) -> None:
    """One line on standard error."""
    print(f"k3jit: {text}", file=sys.stderr)
