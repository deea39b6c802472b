"""Primitives written as JAX functions of simpler ones: traced once a shape, then inlined."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, factorial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import UnsupportedPrimitive
from ..registry import composite

_TERMS = 10  # of the sum before the tail is estimated: as in XLA, since below zero the result depends on it


def _bernoulli(count: int) -> list[float]:
    """B_0, B_1, .. by their recurrence."""
    numbers: list[float] = []
    for n in range(count):
        numbers.append(1.0 if n == 0 else -sum(comb(n + 1, k) * numbers[k] for k in range(n)) / (n + 1))
    return numbers


# B_2k / (2k)!, the factors of the Euler-Maclaurin formula.
_TAIL = [b / factorial(n) for n, b in enumerate(_bernoulli(26)) if n and n % 2 == 0]


def hurwitz_zeta(s: jax.Array, q: jax.Array) -> jax.Array:
    """sum over k >= 0 of (q + k)^-s, for s > 1; infinite or NaN at the poles as in JAX.

    The first terms are added as they are; the rest is the Euler-Maclaurin estimate of the tail.
    """
    total = jnp.zeros_like(q)
    for k in range(_TERMS):
        total += (q + k) ** -s
    start = q + _TERMS
    power = start**-s
    enough = abs(power) < abs(total) * jnp.finfo(q.dtype).eps  # factors of the estimate may overflow by then
    first = total
    total += power * start / (s - 1) + power / 2
    factor = s
    for n, coefficient in enumerate(_TAIL):
        term = power / start
        total += coefficient * factor * term
        factor = factor * (s + 2 * n + 1) * (s + 2 * n + 2)
        power = term / start
    total = jnp.where(enough, first, total)
    even = jnp.floor(s / 2) * 2 == s
    pole = (q <= 0) & (jnp.floor(q) == q)
    total = jnp.where(pole, jnp.where(even, jnp.inf, jnp.nan), total)
    total = jnp.where((q < 0) & (jnp.floor(s) != s), jnp.nan, total)
    return jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, total))


def polygamma(m: jax.Array, x: jax.Array) -> jax.Array:
    """m-th derivative of digamma; NaN where m is no integer >= 0."""
    sign = jnp.where(jnp.floor(m / 2) * 2 == m, -1.0, 1.0)
    derivative = sign * jnp.exp(lax.lgamma(m + 1)) * hurwitz_zeta(m + 1, x)
    value = jnp.where(m == 0, lax.digamma(x), derivative)
    return jnp.where((m < 0) | (jnp.floor(m) != m), jnp.nan, value)


def _widened(function: Callable[..., jax.Array]) -> Callable[..., Callable[..., jax.Array]]:
    """Compute in f32, or in f64 of f64 operands; give the first operand's dtype."""

    def factory(avals: Any, **_: Any) -> Callable[..., jax.Array]:
        dtype = avals[0].dtype
        wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
        return lambda *args: function(*(a.astype(wide) for a in args)).astype(dtype)

    return factory


composite("zeta", _widened(hurwitz_zeta))
composite("polygamma", _widened(polygamma))


def _ragged_dot_general(
    avals: Any, *, ragged_dot_dimension_numbers: Any, preferred_element_type: Any = None, **_: Any
) -> Callable[..., Any]:
    """Each group of rows times its own matrix, as a product with all groups of which the others are masked."""
    numbers = ragged_dot_dimension_numbers
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if ragged in lhs_batch:
        raise UnsupportedPrimitive("'ragged_dot_general' with a ragged batch dimension: make it a loop over the batch instead")

    def function(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        ends = jnp.cumsum(sizes, axis=-1)
        place = lax.broadcasted_iota(jnp.int32, (sizes.shape[-1], lhs.shape[ragged]), 1)

        def one_group(start: jax.Array, end: jax.Array, row: jax.Array, matrix: jax.Array) -> jax.Array:
            inside = (row >= start) & (row < end)
            mask = lax.broadcast_in_dim(inside, lhs.shape, (ragged,))
            part = jnp.where(mask, lhs, jnp.zeros((), lhs.dtype))
            return lax.dot_general(
                part, matrix, ((lhs_contract, shifted), (lhs_batch, batch)), preferred_element_type=preferred_element_type
            )

        group_dims = tuple(numbers.rhs_group_dimensions)
        (group,) = group_dims or (None,)

        def below(dims: Any) -> tuple[int, ...]:
            return tuple(d - (group is not None and d > group) for d in dims)

        shifted, batch = below(rhs_contract), below(rhs_batch)
        parts = jax.vmap(one_group, in_axes=(0, 0, 0, group))(ends - sizes, ends, place, rhs)
        return parts if ragged in lhs_contract else parts.sum(0, dtype=parts.dtype)

    return function


composite("ragged_dot_general", _ragged_dot_general)
