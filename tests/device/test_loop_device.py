"""Scans as kernels on the device, with their gradients, against JAX on the CPU and against turns that are dispatched."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from fusion_programs import compare, flat
from loop_programs import LOOPS, SMOOTH, diagonal, loss_of, normal, rnn

import k3jit


@pytest.mark.parametrize("name", list(LOOPS))
def test_loop(name: str) -> None:
    function, args = LOOPS[name]
    results = flat(k3jit.jit(function)(*args))
    compare(results, flat(jax.jit(function)(*args)), 1e-5, 1.0)
    with k3jit.config.override(loops=False):
        compare(results, flat(k3jit.jit(function)(*args)), 1e-5, 1.0)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient(name: str) -> None:
    function, args = LOOPS[name]
    gradient = jax.grad(loss_of(function), tuple(range(len(args))))
    compare(flat(k3jit.jit(gradient)(*args)), flat(jax.jit(gradient)(*args)), 2e-4, 1.0)


@pytest.mark.parametrize("length", [5, 127])
def test_special_values_and_large_slices(length: int) -> None:
    """NaN, infinities and signed zeros go through registers unchanged; more slices than workgroups of one dispatch axis."""
    x = normal(length, 70_001)
    x[2, :4] = np.nan, np.inf, -np.inf, -0.0
    a = np.clip(normal(length, 70_001, seed=1), -0.9, 0.9)
    a[3, :4] = 0.0
    got, wanted = (flat(jit(diagonal)(a, x)) for jit in (k3jit.jit, jax.jit))
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("batch", "width"), [(1, 64), (16, 64), (9, 37)])
def test_rnn(batch: int, width: int) -> None:
    args = normal(width, width) * 0.1, normal(width, width) * 0.1, normal(batch, width), normal(31, batch, width)
    assert "one kernel" in k3jit.jit(rnn).lower(*args).explain()
    compare(flat(k3jit.jit(rnn)(*args)), flat(jax.jit(rnn)(*args)), 1e-5, 1.0)
