"""The short causal convolution in front of q, k and v."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .layers import compute_dtype


def causal_conv(
    inputs: jax.Array, weight: jax.Array, tail: jax.Array | None = None, segment_ids: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Depthwise causal convolution, as a sum of shifted slices.

    ``inputs [B, T, P]``; ``weight [P, 1, W]`` (tap W-1 meets the current token); ``tail [B, W-1, P]`` what came before, zeros
    if None; ``segment_ids [B, T]`` (not negative) hides taps that reach into another segment or before the row.
    Returns the result ``[B, T, P]`` and the next tail.
    """
    batch, length, channels = inputs.shape
    width = weight.shape[-1]
    wide = compute_dtype(inputs.dtype)
    if tail is None:
        tail = jnp.zeros((batch, width - 1, channels), inputs.dtype)
    extended = jnp.concatenate([tail.astype(inputs.dtype), inputs], axis=1)
    taps = weight[:, 0, :].T.astype(wide)
    if segment_ids is not None:
        outside = jnp.full((batch, width - 1), -1, segment_ids.dtype)
        segments = jnp.concatenate([outside, segment_ids], axis=1)
    total = jnp.zeros(inputs.shape, wide)
    for tap in range(width):
        shifted = extended[:, tap : tap + length].astype(wide)
        if segment_ids is not None and tap < width - 1:
            shifted = jnp.where((segments[:, tap : tap + length] == segment_ids)[..., None], shifted, 0)
        total = total + taps[tap] * shifted
    return total.astype(inputs.dtype), extended[:, length:]
