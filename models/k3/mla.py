"""Multi-head latent attention without positional encoding, optionally with an output gate.

Two forms of the same numbers: expanded keys and values for whole sequences, and the absorbed form on the cached latent for
decoding, where only ``kv_lora_rank + qk_rope_head_dim`` numbers a token are kept.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .config import Config
from .layers import compute_dtype, linear, rms_norm

LATENT_EPS = 1e-6  # the released code does not pass rms_norm_eps to the latent norms


def mla_attention(
    params: dict[str, Any],
    config: Config,
    x: jax.Array,
    segment_ids: jax.Array | None = None,
    cache: dict[str, jax.Array] | None = None,
    position: Any = None,
) -> tuple[jax.Array, dict[str, jax.Array] | None]:
    """``x [B, T, H]`` (normed) to the layer's output ``[B, T, H]`` and the cache with this call's tokens added.

    ``cache = {"latent" [B, M, c], "key_rope" [B, M, r]}`` is filled up to ``position``, a scalar.
    """
    batch, length, _ = x.shape
    heads, nope, rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
    if config.q_lora_rank is None:
        query = linear(x, params["q_proj"])
    else:
        query = linear(rms_norm(linear(x, params["q_a_proj"]), params["q_a_layernorm"], LATENT_EPS), params["q_b_proj"])
    query = query.reshape(batch, length, heads, nope + rope)
    compressed = linear(x, params["kv_a_proj_with_mqa"])
    latent = rms_norm(compressed[..., : config.kv_lora_rank], params["kv_a_layernorm"], LATENT_EPS)
    key_rope = compressed[..., config.kv_lora_rank :]
    if cache is None:
        context = _expanded(params, config, query, latent, key_rope, segment_ids)
    else:
        start = (0, position, 0)
        cache = {
            "latent": lax.dynamic_update_slice(cache["latent"], latent.astype(cache["latent"].dtype), start),
            "key_rope": lax.dynamic_update_slice(cache["key_rope"], key_rope.astype(cache["key_rope"].dtype), start),
        }
        context = _absorbed(params, config, query, cache, position)
    context = context.astype(x.dtype).reshape(batch, length, heads * config.v_head_dim)
    if config.mla_use_output_gate:
        context = context * jax.nn.sigmoid(linear(x, params["g_proj"]))
    return linear(context, params["o_proj"]), cache


def _expanded(params, config, query, latent, key_rope, segment_ids):
    batch, length, heads, _ = query.shape
    nope = config.qk_nope_head_dim
    key_value = linear(latent, params["kv_b_proj"]).reshape(batch, length, heads, nope + config.v_head_dim)
    scores = _dot("bthd,bshd->bhts", query[..., :nope], key_value[..., :nope])
    scores = scores + _dot("bthd,bsd->bhts", query[..., nope:], key_rope)
    visible = np.tril(np.ones((length, length), bool))
    if segment_ids is not None:
        visible = visible & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
    weights = _masked_softmax(scores * query.shape[-1] ** -0.5, visible).astype(query.dtype)
    return _dot("bhts,bshd->bthd", weights, key_value[..., nope:])


def _absorbed(params, config, query, cache, position):
    length, heads = query.shape[1], query.shape[2]
    nope, rank = config.qk_nope_head_dim, config.kv_lora_rank
    up = params["kv_b_proj"].reshape(heads, nope + config.v_head_dim, rank).astype(query.dtype)
    latent, key_rope = cache["latent"].astype(query.dtype), cache["key_rope"].astype(query.dtype)
    folded = _dot("bthd,hdc->bthc", query[..., :nope], up[:, :nope]).astype(query.dtype)
    scores = _dot("bthc,bsc->bhts", folded, latent) + _dot("bthd,bsd->bhts", query[..., nope:], key_rope)
    rows = lax.broadcasted_iota(jnp.int32, (length, latent.shape[1]), 0) + position
    visible = lax.broadcasted_iota(jnp.int32, (length, latent.shape[1]), 1) <= rows
    weights = _masked_softmax(scores * query.shape[-1] ** -0.5, visible).astype(query.dtype)
    mixed = _dot("bhts,bsc->bthc", weights, latent).astype(query.dtype)
    return _dot("bthc,hdc->bthd", mixed, up[:, nope:])


def _dot(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=compute_dtype(left.dtype))


def _masked_softmax(scores: jax.Array, visible: jax.Array | np.ndarray) -> jax.Array:
    """Softmax over the last axis; every row sees at least itself, so the maximum is finite."""
    scores = jnp.where(visible, scores, -jnp.inf)
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)
