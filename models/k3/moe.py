"""Feed-forward parts: the gated MLP and the latent mixture of experts.

All experts are evaluated for all tokens and combined with the routing weights (zero where an expert was not chosen): static
shapes, two large products, no gather of weights, and every expert's gradient in one product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .config import Config
from .layers import compute_dtype, linear, rms_norm, silu_product, situ


class Routing(NamedTuple):
    """``weights [N, E]``, zero for experts not chosen; ``chosen [N, k]`` int32, in the order of top-k."""

    weights: jax.Array
    chosen: jax.Array


def activation(config: Config, gate: jax.Array, up: jax.Array) -> jax.Array:
    """The configured gated nonlinearity of two equally shaped arrays."""
    if config.hidden_act == "silu":
        return silu_product(gate, up)
    return situ(gate, up, config.activation_situ_beta, config.activation_situ_linear_beta)


def mlp(params: dict[str, Any], config: Config, x: jax.Array) -> jax.Array:
    """``down(act(gate x, up x))``; ``x [..., H] -> [..., H]``."""
    return linear(activation(config, linear(x, params["gate_proj"]), linear(x, params["up_proj"])), params["down_proj"])


def route(config: Config, logits: jax.Array, correction_bias: jax.Array) -> Routing:
    """Choose experts: by score plus correction bias, ties to the smaller index; weigh them by the score alone.

    ``logits [N, E]`` in at least float32, ``correction_bias [E]``. No gradient reaches the bias.
    """
    count = config.num_experts
    if config.moe_router_activation_func == "sigmoid":
        scores = jax.nn.sigmoid(logits)
    else:
        unnormalised = jnp.exp(logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
        scores = unnormalised / jnp.sum(unnormalised, axis=-1, keepdims=True)
    bias = lax.stop_gradient(correction_bias.astype(scores.dtype))
    pick = lax.stop_gradient(scores) + bias
    if config.num_expert_group > config.topk_group:
        pick = _keep_best_groups(config, pick)
    _, chosen = lax.top_k(pick, config.num_experts_per_token)
    is_chosen = jnp.any(chosen[:, :, None] == np.arange(count, dtype=np.int32), axis=1)
    weights = jnp.where(is_chosen, scores + bias if config.router_bias_in_weights else scores, 0)
    if config.num_experts_per_token > 1 and config.moe_renormalize:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return Routing(weights * config.routed_scaling_factor, chosen)


def _keep_best_groups(config: Config, pick: jax.Array) -> jax.Array:
    """Set the scores of all but the ``topk_group`` best groups aside; a group's score is the sum of its two best."""
    groups = config.num_expert_group
    by_group = pick.reshape(-1, groups, config.num_experts // groups)
    best, _ = lax.top_k(by_group, min(2, by_group.shape[-1]))
    _, kept = lax.top_k(jnp.sum(best, axis=-1), config.topk_group)
    is_kept = jnp.any(kept[:, :, None] == np.arange(groups, dtype=np.int32), axis=1)
    excluded = 0.0 if config.router_bias_in_weights else -jnp.inf
    return jnp.where(is_kept[:, :, None], by_group, excluded).reshape(pick.shape)


def moe(params: dict[str, Any], config: Config, x: jax.Array) -> tuple[jax.Array, Routing]:
    """Mixture of experts on ``x [..., H]`` (normed): the output ``[..., H]`` and the routing of the flattened tokens."""
    wide = compute_dtype(x.dtype)
    tokens = x.reshape(-1, x.shape[-1])
    routing = route(config, linear(tokens.astype(wide), params["gate"]), params["e_score_correction_bias"])
    latent_in = linear(tokens, params["routed_expert_down_proj"]) if config.routed_expert_hidden_size else tokens
    experts = params["experts"]
    count, inner, width = experts["w1"].shape
    gate, up = (linear(latent_in, experts[name].reshape(count * inner, width)) for name in ("w1", "w3"))
    hidden = activation(config, gate, up).reshape(-1, count, inner)
    # The weights scale what goes into the down projection: the same sum as scaling its results, without keeping one per expert.
    weighted = (hidden.astype(wide) * routing.weights[:, :, None]).astype(x.dtype)
    out = jnp.einsum("nei,eli->nl", weighted, experts["w2"].astype(x.dtype), preferred_element_type=wide).astype(x.dtype)
    if config.routed_expert_hidden_size:
        if config.latent_moe_use_norm:
            out = rms_norm(out, params["routed_expert_norm"], config.rms_norm_eps)
        out = linear(out, params["routed_expert_up_proj"])
    if config.num_shared_experts:
        out = out + mlp(params["shared_experts"], config, tokens)
    return out.reshape(x.shape), routing
