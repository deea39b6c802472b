"""Kimi Delta Attention: the recurrence, and the chunkwise form that does the same work as a few matrix products.

Every exponent taken here is a sum of gates over a run of tokens, hence never above zero: nothing can overflow, with any gate.
Sums are taken over the run itself (a product with a 0/1 matrix), not as a difference of long cumulative sums, which would lose
digits. A pair of rows (r, i), i < r, of a chunk is treated at the level where a block boundary m first parts them:
``exp(sum i+1..r) = exp(sum m..r) * exp(sum i+1..m-1)``, both factors at most one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .layers import compute_dtype

L2_EPS = 1e-6


def decay_gate(f: jax.Array, A_log: jax.Array, dt_bias: jax.Array, lower_bound: float | None) -> jax.Array:
    """Log decay ``[B, T, h, d]``, never positive; ``f [B, T, h, d]``, ``A_log [h]``, ``dt_bias [h, d]``."""
    rate = jnp.exp(A_log)[:, None]
    if lower_bound is None:
        return -rate * jax.nn.softplus(f + dt_bias)
    return lower_bound * jax.nn.sigmoid(rate * (f + dt_bias))


def kda(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    f: jax.Array,
    b: jax.Array,
    A_log: jax.Array,
    dt_bias: jax.Array,
    initial_state: jax.Array | None = None,
    gate_lower_bound: float | None = -5.0,
    chunk_size: int | None = 16,
    segment_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Kimi Delta Attention on raw inputs (before normalisation, gate and sigmoid).

    ``q, k, f [B, T, h, d]``, ``v [B, T, h, d_v]``, ``b [B, T, h]``, ``A_log [h]``, ``dt_bias [h, d]``; ``initial_state``
    ``[B, h, d, d_v]``, zeros if None; ``gate_lower_bound=None`` is the softplus gate; ``chunk_size=None`` is the recurrence,
    otherwise a power of two; ``segment_ids [B, T]``: the state restarts where the id changes.
    Returns the output ``[B, T, h, d_v]`` in v's dtype and the final state in at least float32.
    """
    if chunk_size is not None and (chunk_size < 2 or chunk_size & (chunk_size - 1)):
        raise ValueError(f"kda: chunk_size {chunk_size} must be a power of two of at least 2, or None for the recurrence")
    batch, _, heads, key_dim = q.shape
    wide = compute_dtype(v.dtype)
    q, k, values, f, b = (x.astype(wide) for x in (q, k, v, f, b))
    gates = decay_gate(f, A_log.astype(wide), dt_bias.astype(wide), gate_lower_bound)
    beta = jax.nn.sigmoid(b)
    q = _normalised(q) * key_dim**-0.5
    k = _normalised(k)
    state = jnp.zeros((batch, heads, key_dim, v.shape[-1]), wide) if initial_state is None else initial_state.astype(wide)
    starts = None
    if segment_ids is not None:
        changed = segment_ids[:, 1:] != segment_ids[:, :-1]
        starts = jnp.concatenate([jnp.zeros((batch, 1), bool), changed], axis=1)
    run = _recurrent if chunk_size is None else _chunked
    extra = () if chunk_size is None else (chunk_size,)
    out, state = run(q, k, values, gates, beta, state, starts, *extra)
    return out.astype(v.dtype), state


def _normalised(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + L2_EPS)


def _recurrent(q, k, v, gates, beta, state, starts):
    def step(state, token):
        q_t, k_t, v_t, g_t, beta_t, start = token
        state = jnp.exp(g_t)[..., None] * state
        if start is not None:
            state = jnp.where(start[:, None, None, None], 0, state)
        seen = jnp.einsum("bhkv,bhk->bhv", state, k_t)
        update = beta_t[..., None] * (v_t - seen)
        state = state + k_t[..., None] * update[..., None, :]
        return state, jnp.einsum("bhkv,bhk->bhv", state, q_t)

    tokens = tuple(None if x is None else jnp.moveaxis(x, 1, 0) for x in (q, k, v, gates, beta, starts))
    if q.shape[1] == 1:
        state, out = step(state, tuple(None if x is None else x[0] for x in tokens))
        return out[:, None], state
    state, out = lax.scan(step, state, tokens)
    return jnp.moveaxis(out, 0, 1), state


class _Levels(NamedTuple):
    """0/1 matrices of one chunk size C; ``levels`` halves blocks from C/2 down to 1."""

    prefix: np.ndarray  # [levels + 1, C, C]: sums from the block's first row to row r; last: from the chunk's first row
    suffix: np.ndarray  # [levels + 1, C, C]: sums from row i + 1 to the block's end; last: to the chunk's end
    parts: np.ndarray  # [levels, C, C] bool: pairs (r, i) that a boundary of this level parts


@lru_cache(maxsize=8)
def _levels(size: int) -> _Levels:
    row, col = np.indices((size, size))
    prefix, suffix, parts = [], [], []
    for width in [size >> shift for shift in range(1, size.bit_length())]:
        row_block, col_block = row // width, col // width
        prefix.append((row_block == col_block) & (col <= row))
        suffix.append((row_block == col_block) & (col > row))
        parts.append((row_block == col_block + 1) & (row_block % 2 == 1))
    prefix.append(col <= row)
    suffix.append(col > row)
    return _Levels(np.stack(prefix), np.stack(suffix), np.stack(parts))


@jax.custom_jvp
def unit_lower_inverse(lower: jax.Array) -> jax.Array:
    """``(I + lower)^-1`` for strictly lower triangular ``[..., C, C]``, C a power of two.

    Blocks are inverted from size 1 up: ``[[X, 0], [L, Y]]^-1 = [[X^-1, 0], [-Y^-1 L X^-1, Y^-1]]``, on whole matrices with the
    blocks of one level selected. Unlike repeated squaring nothing cancels when keys repeat.
    """
    size = lower.shape[-1]
    parts = _levels(size).parts
    inverse = jnp.eye(size, dtype=lower.dtype) - jnp.where(parts[-1], lower, 0)
    for part in parts[-2::-1]:
        inverse = inverse - inverse @ jnp.where(part, lower, 0) @ inverse
    return inverse


@unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(primals, tangents):
    inverse = unit_lower_inverse(primals[0])
    return inverse, -(inverse @ tangents[0] @ inverse)


def _chunked(q, k, v, gates, beta, state, starts, size):
    length = q.shape[1]
    q, k, v, gates = (_split(x, size) for x in (q, k, v, gates))  # [n, B, h, C, d]
    beta = _split(beta[..., None], size)
    levels = _levels(size)
    count = len(levels.parts)
    to_row = jnp.exp(_run_sums(levels.prefix, gates))  # [n, B, h, levels + 1, C, d]
    from_row = jnp.exp(_run_sums(levels.suffix, gates))
    left, right, parts = to_row[..., :count, :, :], from_row[..., :count, :, :], levels.parts
    near_k = k[..., None, :, :] * right
    pairs = "...lrd,...lid->...lri"
    attend_k = jnp.sum(jnp.where(parts, jnp.einsum(pairs, k[..., None, :, :] * left, near_k), 0), axis=-3)
    attend_q = jnp.sum(jnp.where(parts, jnp.einsum(pairs, q[..., None, :, :] * left, near_k), 0), axis=-3)
    attend_q = attend_q + jnp.where(np.eye(size, dtype=bool), jnp.sum(q * k, axis=-1, keepdims=True), 0)
    from_start, to_end = to_row[..., count, :, :], from_row[..., count, :, :]
    k_in, q_in, k_out, decay = k * from_start, q * from_start, k * to_end, from_start[..., -1, :]
    if starts is not None:
        # Segments that began inside the chunk before (and at) each row; 0 continues what the chunk was given.
        began = jnp.cumsum(_split(starts[:, :, None, None].astype(jnp.int32), size), axis=-2)
        last = began[..., -1:, :]
        same = began == jnp.swapaxes(began, -1, -2)
        attend_k, attend_q = jnp.where(same, attend_k, 0), jnp.where(same, attend_q, 0)
        k_in, q_in = jnp.where(began == 0, k_in, 0), jnp.where(began == 0, q_in, 0)
        k_out, decay = jnp.where(began == last, k_out, 0), jnp.where(last[..., 0, :] == 0, decay, 0)

    solve = unit_lower_inverse(beta * attend_k) * jnp.swapaxes(beta, -1, -2)
    update = solve @ v  # what each row would write if the chunk began with an empty state
    reads = jnp.concatenate([solve @ k_in, q_in], axis=-2)  # [n, B, h, 2 C, d]: both products with the state at once

    def chunk(state, xs):
        update_n, reads_n, k_n, decay_n = xs
        read = reads_n @ state
        written = update_n - read[..., :size, :]
        state = decay_n[..., None] * state + jnp.einsum("bhck,bhcv->bhkv", k_n, written)
        return state, (written, read[..., size:, :])

    xs = (update, reads, k_out, decay)
    if update.shape[0] == 1:
        state, (written, carried) = chunk(state, tuple(x[0] for x in xs))
        written, carried = written[None], carried[None]
    else:
        state, (written, carried) = lax.scan(chunk, state, xs)
    return _join(carried + attend_q @ written, length), state


def _run_sums(runs: np.ndarray, gates: jax.Array) -> jax.Array:
    """``runs [l, C, C]`` applied to ``gates [n, B, h, C, d]`` -> ``[n, B, h, l, C, d]``."""
    return jnp.einsum("lrj,nbhjd->nbhlrd", runs.astype(gates.dtype), gates, precision=lax.Precision.HIGHEST)


def _split(x: jax.Array, size: int) -> jax.Array:
    """``[B, T, h, d] -> [n, B, h, C, d]``; a last partial chunk is filled with zeros, which change nothing."""
    batch, length, heads, width = x.shape
    chunks = -(-length // size)
    if chunks * size != length:
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, chunks * size - length, 0), (0, 0, 0), (0, 0, 0)])
    return x.reshape(batch, chunks, size, heads, width).transpose(1, 0, 3, 2, 4)


def _join(x: jax.Array, length: int) -> jax.Array:
    chunks, batch, heads, size, width = x.shape
    return x.transpose(1, 0, 3, 2, 4).reshape(batch, chunks * size, heads, width)[:, :length]
