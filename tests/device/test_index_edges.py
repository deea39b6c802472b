"""Indices out of range and of every kind of integer: what XLA makes of them is what we make of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import k3jit

MODES = [lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.PROMISE_IN_BOUNDS]
EXTREMES = np.array([[0, 0], [2, 4], [1, 2], [-1, 1], [1, -1], [3, 0], [0, 5], [2**31 - 1, 2], [1, -(2**31)]], np.int32)
modes = pytest.mark.parametrize("mode", MODES, ids=["clip", "fill", "promise"])


def same(function: Any, *args: Any) -> None:
    found, expected = k3jit.jit(function)(*args), jax.jit(function)(*args)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@modes
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3)])
def test_gather_of_computed_values(mode: Any, sizes: tuple[int, int]) -> None:
    """The operand is computed at the gathered place, so its index must have bounds even where the mode asks for a fill."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1))

    def function(x: jax.Array, indices: jax.Array) -> jax.Array:
        numbered = x + (jnp.arange(15, dtype=jnp.float32) % 7).reshape(3, 5)
        return lax.gather(numbered, indices, numbers, sizes, mode=mode)

    same(function, np.ones((3, 5), np.float32), EXTREMES)


@modes
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3)])
def test_scatter(mode: Any, sizes: tuple[int, int]) -> None:
    """An update that is not whole inside is dropped, also where JAX was promised that none would be."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(), scatter_dims_to_operand_dims=(0, 1)
    )
    updates = np.arange(len(EXTREMES) * sizes[0] * sizes[1], dtype=np.float32).reshape(-1, *sizes)
    same(partial(lax.scatter_add, dimension_numbers=numbers, mode=mode), np.ones((3, 5), np.float32), EXTREMES, updates)


def test_numpy_integers_as_slice_bounds() -> None:
    """The transpose of a negative padding slices with NumPy integers."""
    weights = np.arange(14, dtype=np.float32).reshape(2, 7)
    function = jax.grad(lambda x: (lax.pad(x, jnp.float32(0), [(0, 0, 0), (-2, -2, 4)]) * weights).sum())
    slices = [eqn for eqn in jax.make_jaxpr(function)(weights[:, :3]).eqns if eqn.primitive.name == "slice"]
    assert any(isinstance(bound, np.integer) for eqn in slices for bound in eqn.params["start_indices"])
    same(function, weights[:, :3])


def test_scatters_that_read_arrays_of_their_own_size() -> None:
    """The gradient of scatter_max counts ties with scatters whose updates divide by an array as large as the result."""
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    indices = np.zeros((2, 1), np.int32)

    def loss(x: jax.Array, updates: jax.Array) -> jax.Array:
        return lax.scatter_max(x, indices, updates, numbers, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS).sum()

    same(jax.grad(loss, (0, 1)), np.array([3.0], np.float32), np.array([-1.0, 3.0], np.float32))


def test_trigamma_below_zero() -> None:
    """There JAX's value is that of its truncated series, not of the function."""
    x = np.array([-0.5, -2.5, -7.2566638, -10.568727, -10.113788, 3.0], np.float32)
    function = jax.vmap(jax.grad(lax.digamma))
    np.testing.assert_allclose(k3jit.jit(function)(x), jax.jit(function)(x), rtol=4e-6)
