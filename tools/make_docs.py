"""Writes the pages that are made from the code: docs/ops.md and docs/env_vars.md. `make docs` runs it.

With --check it writes nothing and fails when a page is not up to date.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def operations() -> str:
    """Primitives with a lowering, by the file that holds the rule; elementwise functions with their error bound."""
    from k3jit.lowering.mathlib import ERROR_BOUNDS
    from k3jit.lowering.mathlib64 import ERROR_BOUNDS as ERROR_BOUNDS64
    from k3jit.lowering.registry import rules, supported
    from k3jit.lowering.scalar import scalar_rules

    names = supported()
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names - scalar_rules.keys()):
        module = rules[name].__module__.removeprefix("k3jit.")
        families[module.replace(".", "/") + ".py"].append(name)
    exact = sorted(scalar_rules.keys() - ERROR_BOUNDS.keys())
    lines = [
        "# Operations",
        "",
        f"{len(names)} names of JAX primitives have a lowering. This page is generated: `make docs`.",
        "",
        "Anything else raises `UnsupportedPrimitive` when the function is lowered ([errors](errors.md)). Whether a form of a",
        "primitive is refused (an element type, a mode) depends on its rule, which is in the file named here.",
        "",
        "## Of arrays",
        "",
        "| file | primitives |",
        "|---|---|",
        *(f"| [`{file}`](../{file}) | {', '.join(f'`{name}`' for name in families[file])} |" for file in sorted(families)),
        "",
        "## Of elements",
        "",
        "Rules in [`lowering/rules/elementwise.py`](../lowering/rules/elementwise.py):",
        ", ".join(f"`{name}`" for name in exact) + ".",
        "",
        "Functions, with the largest error in units in the last place, in float32 and in float64 (what is meant, and where it",
        "fails, is said beside the tables in [`lowering/mathlib.py`](../lowering/mathlib.py) and",
        "[`lowering/mathlib64.py`](../lowering/mathlib64.py)):",
        "",
        f"| {' | '.join(['function | f32 | f64'] * 3)} |",
        f"|{'---|' * 9}",
    ]
    cells = [f"`{name}` | {bound:g} | {ERROR_BOUNDS64[name]:g}" for name, bound in sorted(ERROR_BOUNDS.items())]
    cells += [" |  | "] * (-len(cells) % 3)
    lines += [f"| {' | '.join(cells[start : start + 3])} |" for start in range(0, len(cells), 3)]
    return "\n".join(lines) + "\n"


def settings() -> str:
    from k3jit import config

    return config.markdown()


PAGES = {"ops.md": operations, "env_vars.md": settings}


def outdated() -> list[str]:
    """Names of the pages that differ from what the code says."""
    return [name for name, make in PAGES.items() if not (DOCS / name).is_file() or (DOCS / name).read_text() != make()]


def main(arguments: list[str]) -> int:
    old = outdated()
    if "--check" in arguments:
        if old:
            print(f"not up to date: {', '.join(old)}; run make docs", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
