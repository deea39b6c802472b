"""The Kimi K3 text model: forward pass and loss, pure and traceable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .attn_res import mix
from .cache import Cache, cache_capacity
from .config import Config
from .conv import causal_conv
from .kda import kda
from .layers import compute_dtype, linear, rms_norm
from .mla import mla_attention
from .moe import Routing, mlp, moe

Params = dict[str, Any]
CHUNK_SIZE = 16


class _Record:
    """Collects intermediate results under the names of the reference tensors; does nothing unless asked to."""

    def __init__(self, wanted: bool) -> None:
        self.values: dict[str, jax.Array] | None = {} if wanted else None

    def __call__(self, name: str, value: jax.Array) -> None:
        if self.values is not None:
            self.values[name] = value


def forward(
    params: Params,
    config: Config,
    input_ids: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    cache: Cache | None = None,
    capture: bool = False,
    chunk_size: int | None = CHUNK_SIZE,
    pixel_values: Any = None,
    grid_thws: Any = None,
) -> Any:
    """Logits ``[B, T, V]`` of ``input_ids [B, T]`` int32.

    ``segment_ids [B, T]``: all state restarts where the id changes. ``cache`` continues an earlier call; the result is then
    ``(logits, cache)``. ``capture=True`` adds a dict of intermediate results (named as the reference tensors) as the last
    result. ``chunk_size`` is that of KDA over more than one token (None: the recurrence).
    """
    if pixel_values is not None or grid_thws is not None:
        raise NotImplementedError("forward: images (pixel_values, grid_thws) need the vision tower, which is not built yet")
    if cache is not None and segment_ids is not None:
        raise ValueError("forward: segment_ids and cache exclude each other; a cache continues one sequence a row")
    position = None if cache is None else _position(cache, input_ids.shape[1])
    if segment_ids is not None:
        segment_ids = _numbered(segment_ids)
    record = _Record(capture)
    running = _embed(params, config, input_ids)
    record("embed", running)
    blocks: list[jax.Array] = []
    caches: list[dict[str, Any] | None] = []
    for index, layer in enumerate(params["layers"]):
        name = f"layers.{index}"
        layer_cache = None if cache is None else cache["layers"][index]
        residual: jax.Array | None = running
        attn_in = _mixed(layer, "self_attention_res", config, blocks, running)
        if config.opens_block(index):
            blocks = [*blocks, running]
            residual = None
        record(f"{name}.attn_in", attn_in)
        normed = rms_norm(attn_in, layer["input_layernorm"], config.rms_norm_eps)
        attention = _kda_layer if config.is_kda(index) else mla_attention
        extra = (chunk_size, record, index) if config.is_kda(index) else (position,)
        attn_out, layer_cache = attention(layer["self_attn"], config, normed, segment_ids, layer_cache, *extra)
        caches.append(layer_cache)
        record(f"{name}.attn_out", attn_out)
        running = attn_out if residual is None else residual + attn_out
        mlp_in = _mixed(layer, "mlp_res", config, blocks, running)
        record(f"{name}.mlp_in", mlp_in)
        normed = rms_norm(mlp_in, layer["post_attention_layernorm"], config.rms_norm_eps)
        if config.is_moe(index):
            mlp_out, routing = moe(layer["block_sparse_moe"], config, normed)
            if capture:
                _record_routing(record, index, routing)
        else:
            mlp_out = mlp(layer["mlp"], config, normed)
        record(f"{name}.mlp_out", mlp_out)
        running = running + mlp_out
        record(f"{name}.out", running)
    hidden = _mixed(params, "output_attn_res", config, blocks, running)
    record("output_mix", hidden)
    hidden = rms_norm(hidden, params["norm"], config.rms_norm_eps)
    record("final_hidden", hidden)
    head = params["embed_tokens"] if config.tie_word_embeddings else params["lm_head"]
    results: tuple[Any, ...] = (linear(hidden, head),)
    if position is not None:
        results = (*results, {"length": position + np.int32(input_ids.shape[1]), "layers": caches})
    if capture:
        results = (*results, record.values)
    return results if len(results) > 1 else results[0]


def loss_fn(
    params: Params,
    config: Config,
    input_ids: jax.Array,
    labels: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Mean cross-entropy (a scalar in at least float32): position t is scored against ``labels[:, t + 1]``.

    ``labels`` default to ``input_ids``; labels equal to ``config.ignore_index`` (-100) are left out.
    """
    logits = forward(params, config, input_ids, segment_ids)
    return cross_entropy(logits, input_ids if labels is None else labels, config.ignore_index)


def cross_entropy(logits: jax.Array, labels: jax.Array, ignore_index: int = -100) -> jax.Array:
    """Mean next-token cross-entropy of ``logits [B, T, V]`` against unshifted ``labels [B, T]``; 0 without any valid label."""
    batch, _, vocab = logits.shape
    logits = logits.astype(compute_dtype(logits.dtype))
    none = jnp.full((batch, 1), ignore_index, labels.dtype)
    following = jnp.concatenate([labels[:, 1:], none], axis=1)
    valid = following != ignore_index
    highest = lax.stop_gradient(jnp.max(logits, axis=-1))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)) + highest
    at_label = following[..., None] == np.arange(vocab, dtype=np.int32)
    scored = jnp.sum(jnp.where(at_label, logits, 0), axis=-1)
    total = jnp.sum(jnp.where(valid, log_total - scored, 0))
    return total / jnp.maximum(jnp.sum(valid.astype(logits.dtype)), 1)


def _embed(params: Params, config: Config, input_ids: jax.Array) -> jax.Array:
    rows = params["embed_tokens"][input_ids]
    if config.pad_token_id is None:
        return rows
    # The padding row is a constant: no gradient reaches it.
    return jnp.where((input_ids == config.pad_token_id)[..., None], lax.stop_gradient(rows), rows)


def _mixed(owner: Params, name: str, config: Config, blocks: list[jax.Array], running: jax.Array) -> jax.Array:
    if not blocks:
        return running
    return mix([*blocks, running], owner[f"{name}_norm"], owner[f"{name}_proj"], config.rms_norm_eps)


def _kda_layer(params, config, x, segment_ids, cache, chunk_size, record, index):
    batch, length, _ = x.shape
    heads, dim = config.kda_num_heads, config.kda_head_dim
    wide = compute_dtype(x.dtype)
    mixed, tails = {}, {}
    for name in "qkv":
        projected = linear(x, params[f"{name}_proj"])
        tail = None if cache is None else cache["conv"][name]
        filtered, tails[name] = causal_conv(projected, params[f"{name}_conv1d"], tail, segment_ids)
        wide_filtered = filtered.astype(wide)
        mixed[name] = (wide_filtered * jax.nn.sigmoid(wide_filtered)).astype(x.dtype).reshape(batch, length, heads, dim)
        record(f"kda.{index}.conv_tail.{name}", tails[name].swapaxes(1, 2))
    forget = linear(linear(x, params["f_a_proj"]), params["f_b_proj"]).reshape(batch, length, heads, dim)
    out, state = kda(
        mixed["q"],
        mixed["k"],
        mixed["v"],
        forget,
        linear(x, params["b_proj"]),
        params["A_log"].reshape(-1)[:heads],  # the stored tensor may be padded
        params["dt_bias"].reshape(heads, dim),
        None if cache is None else cache["state"],
        config.gate_lower_bound,
        None if length == 1 else chunk_size,
        segment_ids,
    )
    record(f"kda.{index}.final_state", state)
    low_rank = x if config.use_full_rank_gate else linear(x, params["g_a_proj"])
    gate = linear(low_rank, params["g_proj" if config.use_full_rank_gate else "g_b_proj"]).reshape(out.shape)
    gated = rms_norm(out.astype(wide), params["o_norm"], config.rms_norm_eps) * jax.nn.sigmoid(gate.astype(wide))
    result = linear(gated.astype(x.dtype).reshape(batch, length, heads * dim), params["o_proj"])
    return result, None if cache is None else {"state": state.astype(cache["state"].dtype), "conv": tails}


def _position(cache: Cache, length: int) -> jax.Array:
    position, capacity = cache["length"], cache_capacity(cache)
    known = None if isinstance(position, jax.core.Tracer) else int(position)
    if capacity is not None and (known or 0) + length > capacity:
        raise ValueError(f"forward: {known or 0} + {length} tokens do not fit the cache's {capacity}; make init_cache larger")
    return position


def _numbered(segment_ids: jax.Array) -> jax.Array:
    """Count segments from 0 along the row, so that an id used twice is two segments."""
    changed = (segment_ids[:, 1:] != segment_ids[:, :-1]).astype(jnp.int32)
    return jnp.cumsum(jnp.concatenate([jnp.zeros_like(changed[:, :1]), changed], axis=1), axis=1)


def _record_routing(record: _Record, index: int, routing: Routing) -> None:
    chosen = jnp.sort(routing.chosen, axis=-1)
    record(f"router.{index}.topk_ids", chosen)
    record(f"router.{index}.topk_weights", jnp.take_along_axis(routing.weights, chosen, axis=-1))
