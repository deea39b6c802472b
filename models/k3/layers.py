"""The small parts every layer is made of: linear map, RMSNorm, SiTU.

Statistics and nonlinearities run in the compute type: float32 for float32, bfloat16 and float16 inputs, float64 for float64.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def compute_dtype(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The type sums and nonlinearities are evaluated in: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x [..., in] @ weight[out, in]^T -> [..., out]``, accumulated in the compute type, in x's dtype."""
    contract = (((x.ndim - 1,), (1,)), ((), ()))
    out = lax.dot_general(x, weight.astype(x.dtype), contract, preferred_element_type=compute_dtype(x.dtype))
    return out.astype(x.dtype)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMSNorm over the last axis: rounded to x's dtype first, then scaled by the weight in that dtype."""
    wide = x.astype(compute_dtype(x.dtype))
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + eps)).astype(x.dtype) * weight.astype(x.dtype)


def situ(gate: jax.Array, up: jax.Array, beta: float | None = 4.0, linear_beta: float | None = 25.0) -> jax.Array:
    """``beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta)``; ``up`` unbounded where linear_beta is None.

    A beta of None or 0 counts as 1.
    """
    beta = beta or 1.0
    wide = compute_dtype(gate.dtype)
    gate32, up32 = gate.astype(wide), up.astype(wide)
    bounded_up = up32 if linear_beta is None else linear_beta * jnp.tanh(up32 / linear_beta)
    return (beta * jnp.tanh(gate32 / beta) * jax.nn.sigmoid(gate32) * bounded_up).astype(gate.dtype)


def silu_product(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``silu(gate) * up`` (the feed-forward nonlinearity of Kimi Linear)."""
    wide = gate.astype(compute_dtype(gate.dtype))
    return (wide * jax.nn.sigmoid(wide)).astype(gate.dtype) * up
