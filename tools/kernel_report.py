"""Writes docs/kernels.md: the kernels of the model's layers and of the demo's training step. No device is needed.

With --check it writes nothing and fails when the counts on the page are no longer right.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from k3jit.lowering.compile import lower
from k3jit.lowering.program import Dispatch, HostLoop, Program, Step
from k3jit.lowering.tile import Kernel
from k3jit.models import k3
from k3jit.models import train as training
from k3jit.models.k3.layers import rms_norm
from k3jit.models.k3.mla import mla_attention
from k3jit.models.k3.model import CHUNK_SIZE, _kda_layer, _Record
from k3jit.models.k3.moe import moe
from k3jit.runtime.caps import NULL_CAPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "kernels.md"
# A kernel of nothing but these moves elements without computing any.
MOVES = frozenset(
    (
        "broadcast",
        "reshape",
        "transpose",
        "slice",
        "reverse",
        "iota",
        "const",
        "concat",
        "pad",
        "window",
        "copy",
        "convert_element_type",
        "bitcast_convert_type",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
    )
)
Row = tuple[str, tuple[int, int, int], tuple[str, ...]]


def program_of(function: Callable[..., Any], *args: Any, donate: int = 0, name: str = "program", **options: Any) -> Program:
    """The plan of `function` for arguments (arrays or ShapeDtypeStructs), of which the first `donate` are donated."""
    closed = jax.make_jaxpr(function)(*args)
    donated = frozenset(range(len(jax.tree.leaves(args[:donate]))))
    return lower(closed, NULL_CAPS, name=name, donated=donated, **options)


def dispatches(steps: Sequence[Step]) -> Iterator[Dispatch]:
    """All dispatches in order, those of host loops once."""
    for step in steps:
        if isinstance(step, HostLoop):
            yield from dispatches(step.body)
        elif isinstance(step, Dispatch):
            yield step


def kernels(program: Program) -> list[Kernel]:
    """The kernel of each dispatch, in order. There are no transfer or fill commands beside them."""
    return [program.kernels[d.kernel] for d in dispatches(program.steps)]


def movers(program: Program) -> list[str]:
    """Names of the dispatched kernels that merely copy, cast, fill or transpose."""
    return [f"{k.name} {k.operations}" for k in kernels(program) if MOVES.issuperset(k.operations)]


# -- what is reported --------------------------------------------------------------------------------------------------
def _tokens(config: k3.Config) -> jax.ShapeDtypeStruct:
    shape = (training.DEFAULT_BATCH, training.DEFAULT_LENGTH, config.hidden_size)
    return jax.ShapeDtypeStruct(shape, np.float32)


def _layer(config: k3.Config, index: int) -> Any:
    params = jax.eval_shape(lambda: k3.init_params(config, jax.random.key(0)))
    return params["layers"][index]


def kda_layer() -> Program:
    """Norm, projections, convolutions, chunked delta rule, gated norm and output projection."""
    config = k3.tiny()

    def forward(layer: Any, x: jax.Array) -> jax.Array:
        normed = rms_norm(x, layer["input_layernorm"], config.rms_norm_eps)
        return _kda_layer(layer["self_attn"], config, normed, None, None, CHUNK_SIZE, _Record(False), 0)[0]

    return program_of(forward, _layer(config, 0), _tokens(config), name="kda_layer")


def mla_layer() -> Program:
    """Norm, latent projections, attention with output gate and output projection."""
    config = k3.tiny()

    def forward(layer: Any, x: jax.Array) -> jax.Array:
        normed = rms_norm(x, layer["input_layernorm"], config.rms_norm_eps)
        return mla_attention(layer["self_attn"], config, normed, None, None, None)[0]

    return program_of(forward, _layer(config, 3), _tokens(config), name="mla_layer")


def moe_layer() -> Program:
    """Norm, router, routed experts in their latent space and shared experts."""
    config = k3.tiny()

    def forward(layer: Any, x: jax.Array) -> jax.Array:
        normed = rms_norm(x, layer["post_attention_layernorm"], config.rms_norm_eps)
        return moe(layer["block_sparse_moe"], config, normed)[0]

    return program_of(forward, _layer(config, 1), _tokens(config), name="moe_layer")


def training_step() -> Program:
    """Forward, backward and AdamW update of the demo's model, with donated state."""
    config = k3.tiny()
    optimizer = training.make_optimizer(config, training.DEFAULT_STEPS, training.DEFAULT_LEARNING_RATE)
    params = jax.eval_shape(lambda: k3.init_params(config, jax.random.key(0)))
    state = jax.eval_shape(optimizer.init, params)
    batch = jax.ShapeDtypeStruct((training.DEFAULT_BATCH, training.DEFAULT_LENGTH), np.int32)
    return program_of(training.make_step(config, optimizer), params, state, batch, donate=2, name="training_step")


PROGRAMS: dict[str, Callable[[], Program]] = {
    "KDA layer, forward": kda_layer,
    "MLA layer, forward": mla_layer,
    "latent-MoE layer, forward": moe_layer,
    "training step of the demo": training_step,
}


# -- the page ----------------------------------------------------------------------------------------------------------
def table(program: Program) -> list[str]:
    """Dispatches of equal kernel and size as one row, in the order of the first."""
    rows: dict[Row, list[int]] = {}
    for step in dispatches(program.steps):
        kernel = program.kernels[step.kernel]
        row = rows.setdefault((kernel.name, step.groups, kernel.operations), [0, 0, 0, 0])
        for i, amount in enumerate((1, len(step.rows), _kib(step.reads), _kib(step.writes))):
            row[i] += amount
    lines = [
        "| dispatches | parts | kernel | workgroups | KiB read | KiB written | computes |",
        "|--:|--:|---|--:|--:|--:|---|",
    ]
    for (name, groups, operations), (count, parts, read, written) in rows.items():
        size = " x ".join(str(g) for g in groups if g > 1) or "1"
        lines.append(f"| {count} | {parts} | {name} | {size} | {read} | {written} | {' '.join(operations)} |")
    return lines


def _kib(refs: Sequence[Any]) -> int:
    return sum(-(-r.nbytes // 1024) for r in refs)


def page() -> str:
    made = {title: make() for title, make in PROGRAMS.items()}
    lines = [
        "# Kernels of the model",
        "",
        f"The demo model (`k3.tiny()`) on a batch of {training.DEFAULT_BATCH} x {training.DEFAULT_LENGTH} tokens, planned for "
        f"a device with {NULL_CAPS.subgroup_size} lanes a",
        "subgroup. This page is generated: `python tools/kernel_report.py`. A dispatch is one `vkCmdDispatch`; there are no",
        "transfer or fill commands beside them. A dispatch of several parts is the same kernel for several arrays. The turns",
        "of a `scan` are recorded one after another and counted each.",
        "",
        "| program | dispatches | kernels | barriers | that only move elements |",
        "|---|--:|--:|--:|--:|",
    ]
    for title, program in made.items():
        count = len(kernels(program))
        barriers = sum(not isinstance(s, Dispatch | HostLoop) for s in program.steps)
        lines.append(f"| {title} | {count} | {len(program.kernels)} | {barriers} | {len(movers(program))} |")
    for title, program in made.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", f"{PROGRAMS[title].__doc__}", "", *table(program)]
    return "\n".join(lines) + "\n"


def stated() -> dict[str, int]:
    """Dispatches of each program as the page says."""
    found = re.findall(r"^\| ([^|]+) \| (\d+) \| \d+ \| \d+ \| \d+ \|$", PAGE.read_text(), re.MULTILINE)
    return {title: int(count) for title, count in found}


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        counts = {title: len(kernels(make())) for title, make in PROGRAMS.items()}
        if counts != stated():
            print(f"{PAGE.name} says {stated()}, but there are {counts}; run tools/kernel_report.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
