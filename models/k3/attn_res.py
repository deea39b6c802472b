"""Attention Residuals: each layer reads a learned mixture of the frozen block sums and the running one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from .layers import compute_dtype


def mix(candidates: Sequence[jax.Array], norm: jax.Array, proj: jax.Array, eps: float) -> jax.Array:
    """Softmax-weighted sum of ``candidates`` (each ``[B, T, H]``, the running sum last), token by token.

    ``norm [H]`` and ``proj [1, H]`` score each normalised candidate; the sum takes the candidates as they are. The softmax is
    written out over the list, so that all of it stays within a token's row.
    """
    wide = compute_dtype(candidates[0].dtype)
    weight = norm.astype(wide) * proj[0].astype(wide)
    values = [candidate.astype(wide) for candidate in candidates]
    scores = []
    for value in values:
        mean_square = jnp.mean(value * value, axis=-1, keepdims=True)
        scores.append(jnp.sum(value * weight, axis=-1, keepdims=True) * lax.rsqrt(mean_square + eps))
    highest = lax.stop_gradient(reduce(jnp.maximum, scores))
    shares = [jnp.exp(score - highest) for score in scores]
    total = reduce(jnp.add, shares)
    mixed = reduce(jnp.add, [share * value for share, value in zip(shares, values, strict=True)])
    return (mixed / total).astype(candidates[0].dtype)
