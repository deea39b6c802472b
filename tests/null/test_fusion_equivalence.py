"""A program computes what JAX does whether fused, not fused, or in short kernels: interpreted, and hazards checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusion_programs import PROGRAMS, compare, flat
from hypothesis import given, settings
from k3jit.lowering import hazards
from k3jit.lowering.compile import lower
from k3jit.lowering.dtypes import DTYPES
from k3jit.runtime.null import NullDevice

from k3jit import testing

DEVICE = NullDevice()


def interpreted(function: Callable[..., Any], args: tuple[Any, ...], **options: bool) -> tuple[list[np.ndarray], int]:
    """Flat results of `function`, and its dispatches."""
    program = lower(jax.make_jaxpr(function)(*args), DEVICE.caps, name="program", **options)
    hazards.check(program)
    executable = DEVICE.load(program)
    buffers = executable.run([DEVICE.upload(np.asarray(leaf)) for leaf in jax.tree.leaves(args)])
    results = []
    for buffer, output in zip(buffers, program.outputs, strict=True):
        count = int(np.prod(output.shape, dtype=int))
        results.append(DEVICE.download(buffer).view(DTYPES[output.dtype].numpy)[:count].reshape(output.shape))
    return results, executable.dispatches


def all_ways(function: Callable[..., Any], args: tuple[Any, ...], tolerance: float, floor: float = 1e-30) -> None:
    fused, few = interpreted(function, args)
    apart, many = interpreted(function, args, fuse=False)
    short, _ = interpreted(function, args, compact=True)
    assert few <= many
    compare(fused, flat(jax.jit(function)(*args)), tolerance, floor)
    compare(apart, fused, tolerance, floor)
    compare(short, fused, tolerance, floor)
    turns, _ = interpreted(function, args, loops=False)
    compare(turns, fused, tolerance, floor)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    program = PROGRAMS[name]
    all_ways(program.fun, program.args(), program.tolerance)


@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if p.differentiable])
def test_gradient(name: str) -> None:
    program = PROGRAMS[name]
    all_ways(program.gradient, program.args(), 10 * program.tolerance)


@settings(max_examples=12)
@given(testing.programs(max_ops=6))
def test_random_programs(example: testing.Example) -> None:
    all_ways(example.fun, example.args, 2e-4, floor=1.0)


def test_donated_arguments_hold_the_results() -> None:
    def update(params: list[jax.Array], grads: list[jax.Array]) -> list[jax.Array]:
        return jax.tree.map(lambda p, g: 0.9 * p - 0.1 * g / (1e-3 + jnp.abs(g)), params, grads)

    rng = np.random.default_rng(0)
    params, grads = ([rng.standard_normal(s).astype(np.float32) for s in ((6, 5), (5,), (40,))] for _ in range(2))
    program = lower(jax.make_jaxpr(update)(params, grads), DEVICE.caps, name="update", donated=frozenset((0, 1, 2)))
    hazards.check(program)
    buffers = [DEVICE.upload(a) for a in (*params, *grads)]
    results = DEVICE.load(program).run(buffers, donate={0, 1, 2})
    assert [id(b) for b in results] == [id(b) for b in buffers[:3]]
    got = [DEVICE.download(b).view(np.float32).reshape(p.shape) for b, p in zip(results, params, strict=True)]
    compare(got, flat(jax.jit(update)(params, grads)), 1e-5)
